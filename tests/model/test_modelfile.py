"""A .q8ta file is data: whatever it holds loading gives the saved model or a ModelFileError that says what is wrong."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError, ModelFileError
from q8ta_wgpu.ir.graph import TensorType
from q8ta_wgpu.model import file as modelfile
from q8ta_wgpu.model.encoding import VERSION
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from testbed.modelfiles import MODEL, field, forge, node, read, refused, same
from testbed.small import small_input
from testbed.standins import failing

UNIX = pytest.mark.skipif(os.name != "posix", reason="needs permissions, links, pipes and sockets of Unix")

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


@UNIX
def test_permissions_and_links_stay(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "net.q8ta").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "net.q8ta").chmod(0o640)
    (tmp_path / "link.q8ta").symlink_to("net.q8ta")
    MODEL.save(tmp_path / "link.q8ta")
    assert (tmp_path / "link.q8ta").is_symlink()
    assert (tmp_path / "net.q8ta").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_harms_nothing(tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    (tmp_path / "net.q8ta").write_bytes(b"what was there")
    full_disk(0)
    with pytest.raises(ModelFileError, match=r"^cannot write .*net.q8ta: No space left on device$"):
        MODEL.save(tmp_path / "net.q8ta")
    assert [p.name for p in tmp_path.iterdir()] == ["net.q8ta"]
    assert (tmp_path / "net.q8ta").read_bytes() == b"what was there"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.q8ta").mkdir()
    for path in (tmp_path / "missing" / "net.q8ta", tmp_path / "file" / "net.q8ta", tmp_path / "folder.q8ta"):
        with pytest.raises(ModelFileError, match="cannot write"):
            MODEL.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.q8ta"]


@UNIX
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
    with pytest.raises(InputError, match="save takes the path of"):
        MODEL.save("net\0.q8ta")


@UNIX
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
    for path in (tmp_path / "none.q8ta", tmp_path, tmp_path / "none" / "net.q8ta"):
        with pytest.raises(ModelFileError, match="is not a"):
            q8.load(path)
    with pytest.raises(InputError, match="load takes the path of"):
        q8.load("\0")
    path = tmp_path / "net.q8ta"
    MODEL.save(path)
    failing(monkeypatch, modelfile, "safe_open", PermissionError(13, "Permission denied"))
    with pytest.raises(ModelFileError, match=r"^cannot read .*net.q8ta: Permission denied$"):
        q8.load(path)


def test_truncated(saved: bytes, tmp_path: Path) -> None:
    assert "If model.save wrote it, it was cut short" in refused(saved[:100], tmp_path)
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
    assert "format version 1" in older and older.endswith("compile the model again")
    assert "compile the model again" in older
    message = refused(forge(saved, lambda data, _: data.update(version=VERSION + 1, surprise=[1])), tmp_path)
    assert f"format version {VERSION + 1}" in message and message.endswith("upgrade q8ta-wgpu")
    assert "upgrade" in message
    assert "checksum" not in message
    for version in (0, -1, True, "1", None, 10**30):
        refused(forge(saved, field(version=version)), tmp_path)
    assert "a version" in refused(forge(saved, lambda data, _: data.pop("version")), tmp_path)


@pytest.mark.parametrize("op", ["q16ta_softmax", "q8ta_where"])
def test_operators_that_are_gone_or_changed(op: str, saved: bytes, tmp_path: Path) -> None:
    """Files of an earlier version may hold them, with the same format version."""
    message = refused(forge(saved, lambda data, _: data["nodes"][-1].update(op=op)), tmp_path)
    assert op in message and "wrote it, compile the model again" in message


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


def test_too_many_constants(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = {str(i): entry for i in range(modelfile.MAX_TENSORS + 1)}
    assert "more than" in refused(container({"__metadata__": {"q8ta": "{}"}, **header}), tmp_path)


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
