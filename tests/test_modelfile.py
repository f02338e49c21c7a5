"""A .q8ta file is data: whatever it holds loading gives the saved model or a ModelFileError that says what is wrong."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import re
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import save as safetensors_bytes

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, ModelFileError, Q8taError
from q8ta_wgpu.ir.graph import Array, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.ir.op import MAX_EXTENT, MAX_WORK, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.product import weighted
from q8ta_wgpu.model import encoding, reference
from q8ta_wgpu.model import file as modelfile
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from tests import harness, test_wgsl
from tests.small import SHAPE, small_input, small_model

MODEL = small_model()
SECONDS = 2.0
"""No file may keep `load` busy for longer (it takes a few ms)."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "net.q8ta"
    MODEL.save(path)
    return path.read_bytes()


def same(a: Model, b: Model) -> bool:
    graphs = a.graph, b.graph
    return (
        str(graphs[0]) == str(graphs[1])
        and graphs[0].types == graphs[1].types
        and graphs[0].nodes == graphs[1].nodes
        and graphs[0].notes == graphs[1].notes
        and a.structure == b.structure
        and graphs[0].constants.keys() == graphs[1].constants.keys()
        and all(np.array_equal(c, graphs[1].constants[n], equal_nan=True) for n, c in graphs[0].constants.items())
    )


def read(data: bytes, folder: Path) -> Model:
    path = folder / "read.q8ta"
    path.write_bytes(data)
    return q8.load(path)


def refused(data: bytes, folder: Path) -> str:
    """Loads, and returns the message of the ModelFileError that must come, soon and in one readable piece."""
    started = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        read(data, folder)
    assert time.perf_counter() - started < SECONDS
    assert "read.q8ta" in str(caught.value)
    assert len(str(caught.value)) < 1200
    return str(caught.value)


# --- writing and reading back ---


def test_round_trip(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    assert same(loaded, MODEL)
    assert loaded.graph.nodes[0].source == "small.x.q"
    found, expected = (q8.Session(m, "reference")(small_input()) for m in (loaded, MODEL))
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_the_same_model_gives_the_same_bytes(saved: bytes, tmp_path: Path) -> None:
    for i in range(8):  # safetensors orders its metadata at random: with two entries this fails every other time
        read(saved, tmp_path).save(tmp_path / f"again{i}")
        assert (tmp_path / f"again{i}").read_bytes() == saved


def test_an_input_may_be_an_output_and_an_output_may_come_twice(tmp_path: Path) -> None:
    graph = MODEL.graph.copy()
    graph.outputs = ["x", "y", "y"]
    graph.prune()
    Model(graph, Structure({"list": [0, 1, 2]})).save(tmp_path / "net.q8ta")
    x = small_input()
    for device in (None, "reference"):
        same_x, y, again = q8.Session(q8.load(tmp_path / "net.q8ta"), device)(x)
        np.testing.assert_array_equal(same_x, x)
        np.testing.assert_array_equal(y, again)
        same_x[:] = 0
        assert x.any()


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "net.q8ta").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "net.q8ta").chmod(0o640)
    (tmp_path / "link.q8ta").symlink_to("net.q8ta")
    MODEL.save(tmp_path / "link.q8ta")
    assert (tmp_path / "link.q8ta").is_symlink()
    assert (tmp_path / "net.q8ta").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "interrupt"])
def test_a_failing_disk_harms_nothing(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.q8ta"
    path.write_bytes(b"what was there")

    def fail(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt if failing == "interrupt" else OSError(28, "No space left on device")

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[:100])
            fail()

    original = Path.open
    match failing:
        case "open":
            monkeypatch.setattr(Path, "open", fail)
        case "write":
            monkeypatch.setattr(Path, "open", lambda self, *args: Full(original(self, *args)))
        case "replace":
            monkeypatch.setattr(Path, "replace", fail)
        case _:
            monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt if failing == "interrupt" else ModelFileError) as caught:
        MODEL.save(path)
    monkeypatch.undo()
    assert failing == "interrupt" or "No space left" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["net.q8ta"]
    assert path.read_bytes() == b"what was there"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.q8ta").mkdir()
    for path in (tmp_path / "missing" / "net.q8ta", tmp_path / "file" / "net.q8ta", tmp_path / "folder.q8ta"):
        with pytest.raises(ModelFileError, match="cannot write"):
            MODEL.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.q8ta"]


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.q8ta")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.q8ta"))
        (tmp_path / "folder.q8ta").mkdir()
        (tmp_path / "link.q8ta").symlink_to("pipe.q8ta")
        (tmp_path / "circle.q8ta").symlink_to("circle.q8ta")
        before = {p.name: p.lstat().st_mode for p in tmp_path.iterdir()}
        for name in before:
            with pytest.raises(ModelFileError, match="cannot write"):
                MODEL.save(tmp_path / name)
        assert {p.name: p.lstat().st_mode for p in tmp_path.iterdir()} == before
    with pytest.raises(ModelFileError, match="no regular file"):
        MODEL.save(tmp_path / "link.q8ta")
    with pytest.raises(ModelFileError, match="cannot write"):
        MODEL.save("net\0.q8ta")


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.q8ta").symlink_to("folder/net.q8ta")
    MODEL.save(tmp_path / "link.q8ta")
    assert (tmp_path / "link.q8ta").is_symlink()
    assert same(q8.load(tmp_path / "folder" / "net.q8ta"), MODEL)


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    graph = MODEL.graph.copy()
    graph.types["y"] = TensorType((1, 2))
    with pytest.raises(ModelFileError, match=r"cannot save .*node y"):
        Model(graph, MODEL.structure).save(tmp_path / "net.q8ta")
    assert list(tmp_path.iterdir()) == []


# --- files that are damaged, foreign or newer ---


def test_missing_and_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none.q8ta", tmp_path, tmp_path / "none" / "net.q8ta", "\0"):
        with pytest.raises(ModelFileError, match="is not a"):
            q8.load(path)
    path = tmp_path / "net.q8ta"
    MODEL.save(path)

    def forbidden(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(modelfile, "safe_open", forbidden)
    with pytest.raises(ModelFileError, match="Permission denied"):
        q8.load(path)


def test_truncated(saved: bytes, tmp_path: Path) -> None:
    for size in [*range(0, 64), *range(64, len(saved), 61), *range(len(saved) - 16, len(saved))]:
        refused(saved[:size], tmp_path)
    refused(saved + b"\0", tmp_path)
    assert same(read(saved, tmp_path), MODEL)


def test_every_bit_of_a_region_may_flip(saved: bytes, tmp_path: Path) -> None:
    """Header length, container header, JSON and tensors: a flipped bit is found (or, in an escape, changes nothing)."""
    (length,) = struct.unpack("<Q", saved[:8])
    positions = [*range(8), *range(8, 8 + length, 37), *range(8 + length, len(saved), 23), len(saved) - 1]
    for position in positions:
        for bit in range(8) if position < 8 else (position % 8, 5):
            data = bytearray(saved)
            data[position] ^= 1 << bit
            refused(bytes(data), tmp_path)


def test_foreign(tmp_path: Path) -> None:
    weights = {"layer.weight": np.zeros((3, 4), np.float32)}
    assert "no q8ta model" in refused(safetensors_bytes(weights), tmp_path)
    assert "no q8ta model" in refused(safetensors_bytes(weights, {"format": "pt"}), tmp_path)
    for data in (
        b"",
        b"PK\x03\x04" + bytes(100),
        b"\x80\x04\x95" + bytes(50),
        b"\x89PNG\r\n\x1a\n" + bytes(90),
        b"{}",
        bytes(8),
    ):
        assert "safetensors" in refused(data, tmp_path)
    for text in ("", "{}", "[]", "null", "not json", "{" * 3000, '{"version":1}', '"sha256"'):
        refused(safetensors_bytes(weights, {"q8ta": text}), tmp_path)


def test_another_version(saved: bytes, tmp_path: Path) -> None:
    older = refused(forge(saved, lambda data, _: data.update(version=1, surprise=[1])), tmp_path)
    assert "format version 1" in older
    assert "compile the model again" in older
    message = refused(forge(saved, lambda data, _: data.update(version=3, surprise=[1])), tmp_path)
    assert "format version 3" in message
    assert "upgrade" in message
    assert "checksum" not in message
    for version in (0, -1, True, "1", None, 10**30):
        refused(forge(saved, field(version=version)), tmp_path)
    assert "a version" in refused(forge(saved, lambda data, _: data.pop("version")), tmp_path)


def container(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}},
        {"w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}},
        {"w": {"dtype": "I8", "shape": [2**64 - 1], "data_offsets": [0, 8]}},
        {"w": {"dtype": "I8", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
        {"w": {"dtype": "I8", "shape": [2**60, 0], "data_offsets": [0, 0]}},
        {"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}},
        {"w": {"dtype": "I8", "shape": [8], "data_offsets": [4, 12]}},
        {"w": {"dtype": "I8", "shape": [8], "data_offsets": [8, 0]}},
        {"w": {"dtype": "I8", "shape": [-8], "data_offsets": [0, 8]}},
        {"w": "F32", "__metadata__": 3},
        {"w": {"dtype": "I8", "shape": [1] * 70, "data_offsets": [0, 8]}},
    ],
    ids=lambda header: json.dumps(header)[:50],
)
def test_absurd_containers_allocate_nothing(header: dict[str, Any], tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        refused(container(header, bytes(8)), tmp_path)
        refused(container({"__metadata__": {"q8ta": '{"version":1}'}, **header}, bytes(8)), tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    huge = struct.pack("<Q", 2**60) + b"{}"
    refused(huge, tmp_path)


def test_loading_touches_no_device(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "good.q8ta").write_bytes(saved)
    (tmp_path / "bad.q8ta").write_bytes(forge(saved, lambda data, _: node(data, "quantize").update(op="nothing")))
    code = f"""
import sys, pathlib, q8ta_wgpu as q8
q8.load({str(tmp_path / "good.q8ta")!r})
try:
    q8.load({str(tmp_path / "bad.q8ta")!r})
except q8.ModelFileError:
    assert "wgpu" not in sys.modules and "torch" not in sys.modules
    print("untouched")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "untouched", done.stderr


# --- files edited by hand, with a checksum that fits ---

Edit = Callable[[dict[str, Any], dict[str, Array]], object]


def forge(saved: bytes, edit: Edit) -> bytes:
    """The file after `edit` changed its JSON and tensors, with the checksum the format asks for."""
    data, constants = unpacked(saved)
    edit(data, constants)
    return sealed(json.dumps(data, separators=(",", ":")), constants)


def unpacked(saved: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    (length,) = struct.unpack("<Q", saved[:8])
    header = json.loads(saved[8 : 8 + length])
    data = json.loads(header.pop("__metadata__")["q8ta"])
    del data["sha256"]
    dtypes = {"F32": np.float32, "I32": np.int32, "I8": np.int8}
    constants = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        raw = saved[8 + length + first : 8 + length + last]
        constants[name] = np.frombuffer(raw, dtypes[entry["dtype"]]).reshape(entry["shape"]).copy()
    return data, constants


def sealed(text: str, constants: dict[str, Array]) -> bytes:
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        digest.update(f"{name} {constants[name].dtype} {constants[name].shape}".encode() + constants[name].tobytes())
    return safetensors_bytes(constants, {"q8ta": f'{{"sha256":"{digest.hexdigest()}",{text[1:]}'})


def stages(node: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node["attrs"].get("epilogue", [])
    return found


def node(data: dict[str, Any], op: str) -> dict[str, Any]:
    """The first node of an operator, or of 'operator stage'."""
    op, _, last = op.partition(" ")
    found = (n for n in data["nodes"] if n["op"] == op and (not last or stages(n)[-1]["stage"] == last))
    first: dict[str, Any] = next(found)
    return first


def stage(op: str, place: int, **values: Any) -> Edit:
    return lambda data, _: stages(node(data, op))[place].update(values)


def before(op: str, *more: dict[str, Any]) -> Edit:
    """Stages before those there are."""
    return lambda data, _: stages(node(data, op)).__setitem__(slice(0, 0), list(more))


def attr(op: str, **values: Any) -> Edit:
    return lambda data, _: node(data, op)["attrs"].update(values)


def value(name: str, **fields: Any) -> Edit:
    return lambda data, _: data["values"][name].update(fields)


def field(**fields: Any) -> Edit:
    return lambda data, _: data.update(fields)


def constant(name: str, change: Callable[[Array], Array], retype: bool = False) -> Edit:
    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        array = np.ascontiguousarray(change(constants[name]))
        constants[name] = array
        if retype:
            data["values"][name].update(shape=list(array.shape), dtype=str(array.dtype))

    return edit


def both(*edits: Edit) -> Edit:
    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        for each in edits:
            each(data, constants)

    return edit


def far_apart(data: dict[str, Any], constants: dict[str, Array]) -> None:
    """A tiny image whose padding asks for 2^50 results."""
    node(data, "q8ta_conv2d")["attrs"].update(padding=[MAX_EXTENT] * 4)
    data["values"]["first.q"]["shape"] = [2, 6, 2 * MAX_EXTENT + 6, 2 * MAX_EXTENT + 7]


def swap_first_two(data: dict[str, Any], constants: dict[str, Array]) -> None:
    data["nodes"][0], data["nodes"][1] = data["nodes"][1], data["nodes"][0]


def cycle(data: dict[str, Any], constants: dict[str, Array]) -> None:
    node(data, SUM)["inputs"][-1] = "sum.q"


def twice(data: dict[str, Any], constants: dict[str, Array]) -> None:
    data["nodes"].append(copy.deepcopy(node(data, SUM)))


CONV, SUM, TABLE = "q8ta_conv2d", "q8ta_conv2d add", "q8ta_table"
DEEP: Any = 0
for _ in range(60):
    DEEP = {"tuple": [DEEP]}

EDITS: dict[str, tuple[Edit, str]] = {
    # operators and names
    "unknown operator": (lambda d, c: node(d, TABLE).update(op="exec"), "no operator 'exec'"),
    "operator without kernels": (
        lambda d, c: node(d, TABLE).update(op="dequantize_weight", attrs={"axis": 0}),
        "dequantize_weight",
    ),
    "dangling input": (lambda d, c: node(d, TABLE).update(inputs=["nowhere", "table"]), "reads nowhere"),
    "dangling output": (field(outputs=["y", "nowhere"]), "nowhere"),
    "dangling graph input": (field(inputs=["x", "nowhere"]), "nowhere has no type"),
    "missing constant": (lambda d, c: c.pop("table"), "table"),
    "extra constant": (lambda d, c: c.update(more=np.zeros(3, np.float32)), "more has no type"),
    "undefined value": (lambda d, c: d["values"].update(ghost={"shape": [1], "dtype": "float32"}), "ghost"),
    "reads before it is written": (swap_first_two, "nothing before it writes"),
    "cycle": (cycle, "reads sum.q"),
    "written twice": (twice, "a second time"),
    "writes an input": (lambda d, c: node(d, "quantize").update(output="x"), "a second time"),
    "writes a constant": (lambda d, c: node(d, TABLE).update(output="table"), "a second time"),
    "input twice": (field(inputs=["x", "x"]), "another input"),
    "constant as input": (field(inputs=["x", "table"]), "a constant"),
    "int8 constant as output": (field(outputs=["y", "table"]), "float32 or int8x4"),
    "no outputs": (field(outputs=[]), "no outputs"),
    "escape sequences in a name": (field(outputs=["y", "\x1b[2J"]), "printable"),
    "escape sequences in a source": (lambda d, c: node(d, TABLE).update(source="\x1b[2J"), "printable"),
    "a name of a megabyte": (field(outputs=["y" * 2**20, "y"]), "1 to 200"),
    "too few inputs": (lambda d, c: node(d, SUM).update(inputs=["first.q"]), "takes 6 inputs"),
    "too many inputs": (lambda d, c: node(d, TABLE).update(inputs=["sum.q", "table", "table"]), "takes 2 inputs"),
    "activation as table": (lambda d, c: node(d, TABLE).update(inputs=["sum.q", "first.q"]), "must be int8"),
    "constants swapped": (
        lambda d, c: node(d, CONV)["inputs"].__setitem__(slice(3, 5), ["first.q.correction", "first.q.multiplier"]),
        "must be int32",
    ),
    # types
    "wrong shape": (value("first.q", shape=[2, 6, 6, 6]), "its type says"),
    "wrong dtype": (value("y", dtype="int32"), "its type says"),
    "unknown dtype": (value("y", dtype="float99"), "float99"),
    "scale on a float": (value("y", scale=0.5, zero=0), "belong to int8x4"),
    "int8 without scale": (lambda d, c: d["values"]["sum.q"].pop("scale"), "'scale' is missing"),
    "scale zero": (value("sum.q", scale=0.0), "a scale must be"),
    "scale negative": (value("sum.q", scale=-1.0), "a scale must be"),
    "scale too small for float32": (value("sum.q", scale=1e-300), "a scale must be"),
    "scale too large": (value("sum.q", scale=1e300), "a scale must be"),
    "scale is text": (value("sum.q", scale="0.1"), "must be a float"),
    "scale is true": (value("sum.q", scale=True), "must be a float"),
    "zero point 128": (value("sum.q", zero=128), "zero point"),
    "zero point huge": (value("sum.q", zero=-(10**40)), "zero point"),
    "zero point 0.5": (value("sum.q", zero=0.5), "must be a int"),
    "shape zero": (value("x", shape=[0, 5, 6, 7]), "positive sizes"),
    "shape negative": (value("x", shape=[-2, 5, 6, 7]), "positive sizes"),
    "shape true": (value("x", shape=[True, 5, 6, 7]), "positive sizes"),
    "shape fraction": (value("x", shape=[2.0, 5, 6, 7]), "positive sizes"),
    "shape of rank 9": (value("x", shape=[1] * 9), "at most 8"),
    "shape with a million entries": (value("x", shape=[1] * 10**6), "entries"),
    "shape with many sizes": (value("x", shape=[1] * 10**5), "at most 8"),
    "size 2^60": (value("x", shape=[2**60]), "positive sizes"),
    "2^60 elements": (value("x", shape=[2**20, 2**20, 2**20]), "elements"),
    "shape is text": (value("x", shape="2567"), "must be a list"),
    "type is a list": (lambda d, c: d["values"].update(x=[2, 5]), "must be an object"),
    "moved bytes change scale": (
        lambda d, c: (
            node(d, TABLE).update(op="q8ta_clone", inputs=["sum.q"]),
            d["values"].pop("table"),
            c.pop("table"),
        ),
        "only moves bytes",
    ),
    # constants
    "table of 255 entries": (constant("table", lambda a: a[:255], retype=True), "256 entries"),
    "table of floats": (constant("table", lambda a: a.astype(np.float32), retype=True), "must be int8"),
    "constant is not what its type says": (constant("table", lambda a: a.astype(np.int32)), "its type says"),
    "weight of rank 3": (constant("first.q.weight", lambda a: a[..., 0], retype=True), "4-D weight"),
    "weight with other channels": (constant("first.q.weight", lambda a: a[:, :4], retype=True), "groups"),
    "multiplier too short": (constant("first.q.multiplier", lambda a: a[:-1], retype=True), "per-channel"),
    "offset too long": (constant("first.q.offset", lambda a: np.append(a, a), retype=True), "per-channel"),
    "multiplier NaN": (constant("first.q.multiplier", lambda a: a * np.float32(np.nan)), "finite"),
    "multiplier infinite": (constant("first.q.multiplier", lambda a: np.full_like(a, np.inf)), "finite"),
    "multiplier negative": (constant("first.q.multiplier", lambda a: -a), "not negative"),
    "offset past int32": (constant("first.q.offset", lambda a: np.full_like(a, 2**31 - 1)), "must be in"),
    "offset at int32's end": (constant("first.q.offset", lambda a: np.full_like(a, -(2**31))), "must be in"),
    "correction of other weights": (constant("first.q.correction", lambda a: a + 1), "sums of the weights"),
    # attributes
    "kernel larger than the image": (attr(CONV, dilation=[2**20, 2**20]), "does not fit"),
    "stride 0": (attr(CONV, stride=[0, 1]), "stride must be in"),
    "stride 2^40": (attr(CONV, stride=[1, 2**40]), "stride must be in"),
    "stride negative": (attr(CONV, stride=[-1, 1]), "stride must be in"),
    "stride with three entries": (attr(CONV, stride=[1, 1, 1]), "2 entries"),
    "stride of lists": (attr(CONV, stride=[[1], [1]]), "an integer"),
    "stride is a number": (attr(CONV, stride=1), "must be a list"),
    "stride is text": (attr(CONV, stride="11"), "must be a list"),
    "stride with 10^5 entries": (attr(CONV, stride=[1] * 10**5), "at most 64"),
    "stride true": (attr(CONV, stride=[True, True]), "an integer"),
    "stride 1.0": (attr(CONV, stride=[1.0, 1.0]), "an integer"),
    "groups 0": (attr(CONV, groups=0), "groups must be in"),
    "groups 5": (attr(CONV, groups=5), "groups"),
    "groups none": (attr(CONV, groups=None), "an integer"),
    "dilation 10^400": (attr(CONV, dilation=[10**400, 1]), "dilation must be in"),
    "padding negative": (attr(CONV, padding=[-1, 0, 0, 0]), "padding must be in"),
    "2^50 results": (far_apart, "elements"),
    "lo 200": (stage(CONV, 0, lo=200), "lo must be in"),
    "lo above hi": (stage(CONV, 0, lo=5, hi=4), "lo..hi is empty"),
    "unknown attribute": (attr(CONV, shader="@compute fn main() {}"), "has attributes"),
    "missing attribute": (lambda d, c: node(d, CONV)["attrs"].pop("groups"), "has attributes"),
    "attribute is an object": (attr(CONV, groups={"a": 1}), "an integer"),
    "add's shift 77": (stage(SUM, 1, shift=77), "shift must be in"),
    "add's multipliers pass int32": (stage(SUM, 1, multiplier=2**31 - 1), "pass int32"),
    "add's range is empty": (stage(SUM, 1, lo=5, hi=4), "lo..hi is empty"),
    # epilogues
    "no epilogue": (lambda d, c: node(d, CONV)["attrs"].pop("epilogue"), "has attributes"),
    "epilogue of a table": (attr(TABLE, epilogue=[{"stage": "scale"}]), "has attributes"),
    "epilogue of nothing": (attr(CONV, epilogue=[]), "an epilogue's stages are"),
    "epilogue is text": (attr(CONV, epilogue="requantize"), "is a list of at most 8"),
    "epilogue of 10^4 stages": (attr(CONV, epilogue=[{"stage": "scale"}] * 10**4), "at most 8"),
    "stage is text": (attr(CONV, epilogue=["scale"]), "a stage is one of"),
    "unknown stage": (stage(CONV, 0, stage="exec"), "a stage is one of"),
    "stage's name is a list": (stage(CONV, 0, stage=["requantize"]), "a stage is one of"),
    "stage with another number": (stage(CONV, 0, zero=3), "requantize has ['hi', 'lo']"),
    "stage lacks a number": (lambda d, c: stages(node(d, CONV))[0].pop("hi"), "requantize has ['hi', 'lo']"),
    "stage's number is text": (stage(CONV, 0, lo="-128"), "an integer"),
    "stage's number is true": (stage(CONV, 0, lo=True), "an integer"),
    "stage's number is a list": (stage(CONV, 0, lo=[1]), "an integer"),
    "stage's number is 10^400": (stage(CONV, 0, hi=10**400), "hi must be in"),
    "scale behind rounding": (lambda d, c: stages(node(d, CONV)).append({"stage": "scale"}), "an epilogue's stages"),
    "rounded twice": (before(CONV, {"stage": "requantize", "lo": -128, "hi": 127}), "an epilogue's stages"),
    "a residual nobody gives": (before(CONV, {"stage": "residual", "multiplier": 1}), "takes 6 inputs"),
    "a residual past int32": (before(CONV, {"stage": "residual", "multiplier": 2**23}), "multiplier must be in"),
    "a curve for an addend": (
        both(before(CONV, {"stage": "curve"}), lambda d, c: node(d, CONV)["inputs"].append("x.q")),
        "must be int32",
    ),
    "an addend of another shape": (lambda d, c: node(d, SUM)["inputs"].__setitem__(5, "x.q"), "the sum's shape"),
    "shuffled channels do not split": (
        attr(
            CONV,
            epilogue=[
                {"stage": "requantize", "lo": -128, "hi": 127},
                {"stage": "pixel_shuffle", "factor": 5},
                {"stage": "dequantize", "zero": 3, "scale": 0.5},
            ],
        ),
        "pixel_shuffle by 5",
    ),
    "dequantized at scale 0": (
        lambda d, c: stages(node(d, CONV)).append({"stage": "dequantize", "zero": 3, "scale": 0.0}),
        "scale must be in",
    ),
    # the document
    "structure with unknown position": (field(structure={"tuple": [0, 2]}), "positions"),
    "structure with a position twice": (field(structure={"tuple": [0, 0, 1]}), "positions"),
    "structure lacks an output": (field(structure=0), "positions"),
    "structure of nothing": (field(structure={"set": [0, 1]}), "structure holds"),
    "structure with two kinds": (field(structure={"tuple": [0], "list": [1]}), "structure holds"),
    "structure of text": (field(structure="tuple"), "structure holds"),
    "structure with true": (field(structure=[True, 0]), "structure holds"),
    "structure 60 deep": (field(structure=DEEP), "nested"),
    "structure with 10^5 outputs": (field(structure={"tuple": [0] * 10**5}), "positions"),
    "nodes is an object": (field(nodes={}), "'nodes' must be a list"),
    "nodes hold numbers": (field(nodes=[1, 2]), "must be an object"),
    "10^5 nodes": (lambda d, c: d.update(nodes=[d["nodes"][0]] * 10**5), "entries"),
    "unknown key": (field(shader="@compute fn main() {}"), "a key that is not known: 'shader'"),
    "unknown key of a value": (value("x", device="x" * 2**20), "value x has a key that is not known: 'device'"),
    "unknown key of a node": (lambda d, c: node(d, TABLE).update(more=[1]), "a key that is not known: 'more'"),
    "values is a list": (field(values=[]), "'values' must be a dict"),
    "inputs hold numbers": (field(inputs=[0]), "a name must be"),
    "inputs is text": (field(inputs="x"), "'inputs' must be a list"),
    "notes hold objects": (field(notes=[{}]), "printable"),
    "a node's inputs are text": (lambda d, c: node(d, TABLE).update(inputs="ab"), "'inputs' must be a list"),
    "a node's attributes are a list": (lambda d, c: node(d, TABLE).update(attrs=[]), "'attrs' must be a dict"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_by_hand(name: str, saved: bytes, tmp_path: Path) -> None:
    edit, expected = EDITS[name]
    message = refused(forge(saved, edit), tmp_path)
    assert expected in message, message
    assert "checksum" not in message


@pytest.mark.parametrize("key", ["inputs", "outputs", "structure", "notes", "values", "nodes"])
def test_missing_key(key: str, saved: bytes, tmp_path: Path) -> None:
    assert f"'{key}' is missing" in refused(forge(saved, lambda data, _: data.pop(key)), tmp_path)


@pytest.mark.parametrize("key", ["op", "inputs", "output", "attrs", "source"])
def test_missing_key_of_a_node(key: str, saved: bytes, tmp_path: Path) -> None:
    assert f"'{key}' is missing" in refused(forge(saved, lambda data, _: data["nodes"][1].pop(key)), tmp_path)


def test_json_that_is_not_json(saved: bytes, tmp_path: Path) -> None:
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    for old, new, expected in (
        ('"zero":3', '"zero":NaN', "NaN"),
        ('"scale":0.05', '"scale":Infinity', "Infinity"),
        ('"scale":0.05', '"scale":1e999', "a scale must be"),
        ('"scale":0.05', '"scale":' + "1" * 5000, ""),
        ('"zero":3', '"zero":3,"zero":4', "twice"),
        ('"notes":[]', '"notes":' + "[" * 100_000, ""),
        ('"notes":[]', '"notes":["\\ud800"]', "printable"),
    ):
        assert old in text
        message = refused(sealed(text.replace(old, new, 1), constants), tmp_path)
        assert expected in message, message
    assert same(read(sealed(text, constants), tmp_path), MODEL)


def test_checksum_is_checked_first(saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, constants = unpacked(saved)
    good = sealed(json.dumps(data, separators=(",", ":")), constants)
    assert same(read(good, tmp_path), MODEL)
    monkeypatch.setattr(modelfile, "decode", lambda *_: pytest.fail("the text was parsed"))
    assert "checksum" in refused(good.replace(b"small.y", b"small.z"), tmp_path)


COSTLY = {
    "keys given twice": ('"notes":[]', '"notes":{' + ",".join(f'"{i}":0' for i in range(25_000)) + ',"24999":0}'),
    "empty objects": ('"notes":[]', '"notes":[' + "{}," * 3_000_000 + "{}]"),
    "empty lists": ('"notes":[]', '"more":[' + "[]," * 3_000_000 + "[]]"),
    "short texts": ('"notes":[]', '"notes":[' + '"ab",' * 2_000_000 + '"ab"]'),
    "many keys": ('"notes":[]', '"notes":{' + ",".join(f'"{i:x}":0' for i in range(1_000_000)) + "}"),
    "a long name": ('"notes":[]', '"' + "a" * (modelfile.MAX_TEXT + 1) + '":[]'),
}


@pytest.mark.parametrize("name", COSTLY)
def test_text_that_would_cost_much(name: str, saved: bytes, tmp_path: Path) -> None:
    """Refused within the time, and no more than a few copies of the file's bytes are held."""
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    old, new = COSTLY[name]
    assert old in text
    forged = sealed(text.replace(old, new, 1), constants)
    message = refused(forged, tmp_path)
    assert "checksum" not in message
    path = tmp_path / "read.q8ta"
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            q8.load(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(forged) + (16 << 20)
    finally:
        tracemalloc.stop()


def test_text_as_large_as_allowed(saved: bytes, tmp_path: Path) -> None:
    """What parsing itself may cost, at its worst."""
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    members = ",".join(f'"{i:x}":0' for i in range(encoding.MAX_PARTS - 2000))
    path = tmp_path / "read.q8ta"
    path.write_bytes(sealed(text.replace('"notes":[]', f'"notes":{{{members}}}', 1), constants))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="'notes' must be a list"):
            q8.load(path)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def test_too_many_constants(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = {str(i): entry for i in range(modelfile.MAX_TENSORS + 1)}
    assert "more than" in refused(container({"__metadata__": {"q8ta": "{}"}, **header}), tmp_path)


# --- fuzzing ---

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])

KINDS = ("flip", "set", "cut", "insert", "copy")
MUTATION = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32), st.binary(min_size=1, max_size=9))


@FUZZ
@given(mutations=st.lists(MUTATION, min_size=1, max_size=4))
def test_random_bytes(mutations: list[tuple[str, int, bytes]], saved: bytes, tmp_path: Path) -> None:
    data = bytearray(saved)
    for kind, where, new in mutations:
        at = where % (len(data) + 1)
        match kind:
            case "flip" if at < len(data):
                data[at] ^= 1 << (new[0] % 8)
            case "set":
                data[at : at + len(new)] = new
            case "cut":
                del data[at : at + 1 + new[0]]
            case "insert":
                data[at:at] = new
            case "copy":
                data[at:at] = data[at : at + new[0]]
    with contextlib.suppress(ModelFileError):
        assert same(read(bytes(data), tmp_path), MODEL)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every member of a JSON document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for key, member in items:
        yield (*path, key)
        yield from places(member, (*path, key))


NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 127, 128, 255, 2**16, MAX_EXTENT, 2**31, 2**32, 2**40, 2**63, 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-8, 16),
)
HOSTILE = st.recursive(
    st.one_of(
        NUMBERS,
        st.none(),
        st.booleans(),
        st.text(max_size=6),
        st.sampled_from(["x", "table", "sum.q", "first.q", *OPS]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@FUZZ
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.booleans(), HOSTILE), min_size=1, max_size=3))
def test_random_documents(choices: list[tuple[int, bool, Any]], saved: bytes, tmp_path: Path) -> None:
    """What still loads is a valid model: it schedules (or says why not) and the reference can run it."""

    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        for number, delete, new in choices:
            paths = list(places(data))
            path = paths[number % len(paths)]
            parent: Any = data
            for key in path[:-1]:
                parent = parent[key]
            if delete and isinstance(parent, dict):
                del parent[path[-1]]
            else:
                parent[path[-1]] = new

    started = time.perf_counter()
    try:
        model = read(forge(saved, edit), tmp_path)
    except ModelFileError:
        return
    finally:
        assert time.perf_counter() - started < SECONDS
    try:
        harness.program_of(model.graph)
    except Q8taError:
        return
    if sum(OPS[n.op].steps(model.graph.call(n)) for n in model.graph.nodes) < 10**8:
        inputs = {name: np.zeros(t.shape, np.float32 if t.q is None else np.int8) for name, t in model.inputs.items()}
        reference.run(model.graph, inputs)


# --- what a schema accepts bounds what a shader does ---


def hostile_values(old: Any) -> list[Any]:
    """Values of the kind an attribute has, at and past every edge."""
    numbers = [0, 1, -1, 2, 3, 7, 64, 255, 2**16, MAX_EXTENT - 1, MAX_EXTENT, -MAX_EXTENT]
    if isinstance(old, bool):
        return [not old]
    if isinstance(old, (int, float)):
        return [*numbers, 0.5, -0.5, 1e30, 2**40, math.nan, math.inf, True, "1", None]
    if isinstance(old, (tuple, list)):
        lists: list[Any] = [(n,) * len(old) for n in numbers]
        lists += [(*old[:-1], n) for n in numbers] if old else []
        return [*lists, (), (*old, 1), old[:-1], (1,) * 64, (2,) * 65, old[::-1], "12", None, (None,), ((1,),)]
    return ["", "other", 3, None, []]


CASES = [(op, i) for op in OPS.values() for i in range(len(op.cases))]


@pytest.mark.parametrize(("op", "index"), CASES, ids=lambda v: v.name if isinstance(v, Op) else str(v))
def test_hostile_attributes_of_every_operator(op: Op, index: int) -> None:
    """A shape rule answers with a shape or a GraphError, never with another error; small calls then run."""
    case = op.cases[index]
    types = tuple(TensorType(s, op.operand(i, case.attrs).dtypes[0], _q(op, i)) for i, s in enumerate(case.shapes))
    for name in op.schema:
        for new in hostile_values(case.attrs[name]):
            attrs = {**case.attrs, name: new}
            try:
                shape, dtype = op.check(types, attrs)
            except GraphError:
                continue
            assert all(type(d) is int for d in shape), (attrs, shape)
            if min(shape, default=1) < 1:
                continue  # no TensorType can have such a shape
            call = Call(op.name, attrs, types, TensorType(shape, dtype, _output_q(dtype)))
            steps = op.steps(call)
            assert type(steps) is int
            assert steps >= 0
            if steps < 1 << 16 and not any(o.constant for o in op.operands) and dtype == "float32":
                arrays = [
                    np.ones(s, np.float32 if t.q is None else np.int8) for s, t in zip(case.shapes, types, strict=True)
                ]
                with np.errstate(all="ignore"):
                    found = op.reference(call, arrays)
                assert found.shape == shape, attrs


def _q(op: Op, position: int) -> Any:
    return QParams(0.1, 3) if op.operand(position, {}).dtypes[0] == "int8x4" else None


def _output_q(dtype: str) -> Any:
    return QParams(0.1, 3) if dtype == "int8x4" else None


LOOP = re.compile(r"\b(?:for\s*\([^;]*;\s*\w+\s*<=?\s*([^;]+);|(while|loop)\b)")


def test_every_loop_is_accounted_for() -> None:
    """Trusted shader modules have no loop bound, so an operator whose shader loops over anything but a fixed number (a
    literal, module constants) or its weight's taps states its work; `verify` holds it below MAX_WORK."""
    for text, step in test_wgsl.modules().items():
        op = OPS[step.node.op]
        weighted_sum = isinstance(op.int8, WeightedSum) or op.operands[1:5] == weighted.OPERANDS[1:]
        for bound, keyword in () if weighted_sum or op.work is not None else LOOP.findall(text):
            fixed = re.fullmatch(r"(\d+u?|[A-Z][A-Z0-9_]*)( / [A-Z][A-Z0-9_]*)?", bound.strip())
            assert fixed and not keyword, (
                f"{step.variant.kernel.name} loops to {bound or keyword}; give the Op a `work`"
            )


def test_work_is_bounded(saved: bytes, tmp_path: Path) -> None:
    """Sizes that are allowed one by one, but whose product would keep a device busy for hours."""

    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        taps = (6, 5, 501, 401)
        constants["first.q.weight"] = np.zeros(taps, np.int8)
        constants["first.q.correction"][:] = 0
        data["values"]["first.q.weight"]["shape"] = list(taps)
        node(data, CONV)["attrs"].update(padding=[2**12] * 4)
        data["values"]["first.q"]["shape"] = [2, 6, 6 + 2**13 - 500, 7 + 2**13 - 400]

    message = refused(forge(saved, edit), tmp_path)
    assert "steps" in message
    assert MAX_WORK == 2**42
    largest = Call(
        "conv2d", {}, (TensorType((1, 128, 2160, 3840)), TensorType((128, 128, 3, 3))), TensorType((1, 128, 2160, 3840))
    )
    assert OPS["conv2d"].steps(largest) < MAX_WORK, "a 4K image through 128 channels stays allowed"
    assert list(SHAPE) == unpacked(saved)[0]["values"]["x"]["shape"]
