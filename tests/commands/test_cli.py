"""The commands: readable output, exit code 2 and one line for every mistake, never a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import MAX_MESSAGE, DeviceError
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.wgsl_definitions import scan
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from testbed import insides
from testbed.devices import BACKENDS, Listing, Opened
from testbed.moved_graphs import MOVED
from testbed.onnx.networks import quantized
from testbed.op_graphs import SETTINGS
from testbed.small import small_input, small_model
from tests.cli import Captured, enter, fails

MODEL = small_model()
NATIVE = engines.native()
DIGITS = "9" * 5000
"""More than Python makes a number of."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


def single_output() -> Model:
    """Two inputs and one output, in a list."""
    q = QParams(0.1, 3)
    graph = Graph(inputs=["a", "b"], outputs=["file"])
    graph.types = {name: TensorType((3, 5), INT8X4, q) for name in ("a", "b", "file")}
    attrs = {"a_multiplier": 1 << 14, "b_multiplier": 1 << 14, "shift": 14, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_add", ("a", "b"), "file", attrs)]
    return Model(graph, Structure({"list": [0]}))


def test_wgsl_of_a_value(capsys: Captured) -> None:
    graph = lower(MODEL.graph, BASELINE)
    dispatch = build(graph, BASELINE, sync_layouts(graph, BASELINE)).dispatches[0]
    assert main(["wgsl", "net.q8ta", dispatch.value]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^// \w+\.wgsl:\d+\n@compute @workgroup_size\(.*\)\nfn main\(", text, re.MULTILINE)
    assert dispatch.value[:-1] in fails(capsys, "wgsl", "net.q8ta", dispatch.value[:-1])
    assert dispatch.value in fails(capsys, "wgsl", "net.q8ta", f"{dispatch.value}x")


KERNELS = (
    "softmax add q16ta_div q8ta_add.broadcast q8ta_table q8ta_clone.to_4C cat.runs_4C q8ta_conv2d.dw_4x2 "
    "q8ta_conv2d.pw_64x64 q8ta_conv2d_image.implicit_64x64 q8ta_linear.gemv q8ta_mean.image_4W"
)


@pytest.mark.parametrize("kernel", KERNELS.split())
def test_wgsl_of_a_kernel(kernel: str, capsys: Captured) -> None:
    """In the order in which it is read: what the call declares, then `main` and what it calls, depth first, each below
    its place. What is not a function stands above its users."""
    assert main(["wgsl", kernel]) == 0
    text = capsys.readouterr().out
    lines, found = text.splitlines(), [*scan(text.partition("\n")[2])]
    placed = {d.name: d for d in found if re.match(r"// (\w+\.wgsl:\d+|table)", lines[d.line - 1])}
    assert [d.name for d in found][-len(placed) :] == [*placed]

    def called(name: str) -> Iterator[str]:
        yield name
        for used in functions[name].names:
            if used in functions:
                yield from called(used)

    functions = {d.name: d for d in found if d.kind == "fn"}
    assert [n for n in functions if n in placed] == [n for n in dict.fromkeys(called("main")) if n in placed]
    for d in placed.values():
        for used in d.names:
            assert used not in placed or placed[used].kind == "fn" or placed[used].line < d.line, (d.name, used)


def test_wgsl_of_nothing(capsys: Captured) -> None:
    assert "q8ta_conv2d.direct" in fails(capsys, "wgsl", "q8ta_conv2d.directt")
    assert "nonsense" in fails(capsys, "wgsl", "q8ta_conv2d.direct", "--device", "nonsense")
    assert "wgsl takes a value with a model file; dispatches on baseline write" in fails(capsys, "wgsl", "net.q8ta")
    assert "3 arguments" in fails(capsys, "wgsl", "net.q8ta", "a", "b")


def test_version(capsys: Captured) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"q8ta-wgpu {q8.__version__}\n"


def test_devices(capsys: Captured) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    for number, (engine, adapter) in enumerate(engines.listed()):
        _, _, rest = out.partition(f"{number}: {engine.describe(adapter)}")
        said = rest.partition(f"\n{number + 1}: ")[0]
        if any(backend.lower() in engine.describe(adapter).lower() for backend in BACKENDS):
            for word in ("features: ", "limits: ", "GOP/s by packed dot", "GB/s", "int8: computes the bytes"):
                assert word in said


class Unable:
    """An adapter like another one that makes no device."""

    def __init__(self, other: Any) -> None:
        self.info, self.features, self.limits = other.info, other.features, other.limits

    def request_device_sync(self, **wanted: Any) -> Any:
        raise RuntimeError("no compute")


def test_devices_with_one_that_cannot_work(
    capsys: Captured, vulkan: Device, listing: Listing, nothing_open: Opened
) -> None:
    """Two equal cards, of which one cannot make a device and the other computes other bytes."""
    card = vulkan.wgpu.adapter
    listing([card, Unable(card)])
    wrong = insides.like(vulkan, contract="quantize of 1.0 gives 7, the contract 3")
    nothing_open[NATIVE.describe(card), 0] = wrong
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert f"{NATIVE.describe(card)} cannot make a device: no compute" in out
    assert "breaks the arithmetic contract: quantize of 1.0 gives 7" in out
    assert out.count("int8: no, ") == 2
    listing([])
    assert "no wgpu adapter" in fails(capsys, "devices")


def test_devices_with_one_that_ends_loops(
    capsys: Captured, vulkan: Device, listing: Listing, nothing_open: Opened
) -> None:
    """What a session would refuse is no device for int8."""
    card = vulkan.wgpu.adapter
    listing([card])
    nothing_open[NATIVE.describe(card), 0] = insides.like(vulkan, loop_turns=64)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "ends the loops of a thread after 64 turns" in out
    assert "int8: no, " in out
    with pytest.raises(DeviceError, match="after 64 turns"):
        Session(MODEL)


def test_show(capsys: Captured) -> None:
    opengl = [("--device", "opengl")] * ("opengl" in BACKENDS)
    for extra in ((), *opengl, ("--device", "0"), ("--device", "reference")):
        assert main(["show", "net.q8ta", *extra]) == 0
        out = capsys.readouterr().out
        assert "input  x: float32[2, 5, 6, 7]" in out
        assert "3 of 3 compute nodes in int8" in out
        assert "q8ta_conv2d" in out.split("dispatches")[1]
        assert ("OpenGL" in out) == ("opengl" in extra)


def test_show_of_a_network_whose_first_convolution_reads_the_image(capsys: Captured, files: Path) -> None:
    small_model(channels=3).save(files / "image.q8ta")
    for extra in ((), ("--device", "vulkan")):
        assert main(["show", "image.q8ta", *extra]) == 0
        graph, _, layouts, program = capsys.readouterr().out.split("\n\n")
        assert "quantize(x" in graph  # what the file holds
        assert "first.q: int8x4" in layouts and "x.q" not in layouts and "proved optimal" in layouts
        assert "q8ta_conv2d_image" in program


def test_what_a_convolution_reads_in_place(capsys: Captured, files: Path) -> None:
    """Half of a shuffle of two tensors, which have no dispatch: in the listing, the picture and the WGSL."""
    graph, _ = MOVED["shuffle"].graph(SETTINGS[1])
    Model(graph, Structure(0)).save(files / "moved.q8ta")
    for extra in ((), ("--draw", "moved.html")):
        assert main(["show", "moved.q8ta", *extra]) == 0
        told = capsys.readouterr().out if not extra else (files / "moved.html").read_text()
        assert "q8ta_conv2d_parts" in told and "x[4:20] + x1[4:20]" in told
    capsys.readouterr()
    assert main(["wgsl", "moved.q8ta", "y"]) == 0
    assert "fn part_vector(tensor: u32, at: u32)" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["vulkan", "0", "reference"])
def test_run(where: str, capsys: Captured, files: Path) -> None:
    assert main(["run", "net.q8ta", "--input", "x.npy", "--output", "y.npz", "--device", where]) == 0
    assert "y float32[2, 6, 6, 7], first float32[2, 6, 6, 7]" in capsys.readouterr().out
    expected = Session(MODEL, "reference")(small_input())
    with np.load("y.npz", allow_pickle=False) as found:
        assert sorted(found) == ["first", "y"]
        np.testing.assert_array_equal(found["y"], expected["y"])
        np.testing.assert_array_equal(found["first"], expected["parts"][0])


def test_run_with_two_inputs(capsys: Captured, files: Path) -> None:
    model = single_output()
    model.save(files / "two.q8ta")
    arrays = {name: np.random.default_rng(i).integers(-128, 128, (3, 5)).astype(np.int8) for i, name in enumerate("ab")}
    for name, array in arrays.items():
        np.save(f"{name}=1.npy", array)
    expected = Session(model, "reference")(**arrays)[0]
    given = (("a=a=1.npy", "b=b=1.npy"), ("b=b=1.npy", "./a=1.npy"), ("./a=1.npy", "./b=1.npy"))
    for first, second in given:
        assert main(["run", "two.q8ta", "--input", first, "--input", second, "--output", "y.npy"]) == 0
        np.testing.assert_array_equal(np.load("y.npy"), expected)
        Path("y.npy").unlink()
    assert main(["run", "two.q8ta", "--input", "a=a=1.npy", "--input", "b=b=1.npy", "--output", "y.npz"]) == 0
    np.testing.assert_array_equal(np.load("y.npz")["file"], expected)
    capsys.readouterr()
    assert "missing: b" in fails(capsys, "run", "two.q8ta", "--input", "a=a=1.npy", "--output", "y.npy")
    assert "given twice" in fails(
        capsys, "run", "two.q8ta", "--input", "a=a=1.npy", "--input", "a=b=1.npy", "--output", "y.npy"
    )


def test_time(capsys: Captured) -> None:
    assert main(["time", "net.q8ta", "--repeats", "2", "--device", "vulkan"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"load: file \d+ ms, device \d+ ms, scheduling \d+ ms, .* = \d+\.\d\d s; first result", out)
    assert re.search(r"memory: .* at most = slots .*, constants .*, uniforms .*, staging ", out)
    assert "ms GPU time" in out
    assert "a whole run" in out
    assert "6 dispatches" in out
    assert out.count("q8ta_conv2d") == 2
    assert main(["time", "net.q8ta", "--repeats", "1", "--input", "x.npy"]) == 0
    capsys.readouterr()
    for repeats in ("0", "-1", "99999999999999"):
        assert "repeats must be an integer of at least 1" in fails(capsys, "time", "net.q8ta", "--repeats", repeats)
    assert "no timestamp queries" in fails(capsys, "time", "net.q8ta", "--device", "reference")


def test_an_input_may_be_called_as_an_option_is(capsys: Captured, files: Path) -> None:
    graph = Graph(["repeats"], ["y"], [Node("relu", ("repeats",), "y")])
    graph.types = dict.fromkeys(("repeats", "y"), TensorType((3,)))
    Model(graph, Structure(0)).save(files / "named.q8ta")
    assert main(["time", "named.q8ta", "--repeats", "1", "--device", "vulkan"]) == 0
    assert "1 dispatch" in capsys.readouterr().out


def test_names_command_no_terminal(capsys: Captured) -> None:
    """A file's name may hold escape sequences: they are shown."""
    found = fails(capsys, "show", "red\x1b[31m\x07.q8ta")
    assert "red\\x1b[31m\\x07.q8ta is not a file" in found
    assert found.isprintable()


def test_mistakes(capsys: Captured, files: Path) -> None:
    (files / "text.npy").write_text("not an array")
    (files / "broken.q8ta").write_bytes((files / "net.q8ta").read_bytes()[:-9])
    np.savez(files / "two.npz", a=np.zeros(3), b=np.zeros(3))
    np.save(files / "objects.npy", np.array([{}, []], dtype=object))
    np.save(files / "small.npy", np.zeros((1, 2), np.float32))
    (files / "folder.npz").mkdir()
    run = ("run", "net.q8ta", "--output", "y.npz", "--input")
    assert "nothing.q8ta is not a file" in fails(capsys, "show", "nothing.q8ta")
    told = fails(capsys, "show", "broken.q8ta")
    assert "broken.q8ta is not a readable" in told
    assert "copy it again" in told
    assert "broken.q8ta" in fails(capsys, "run", "broken.q8ta", "--input", "x.npy", "--output", "y.npz")
    assert "nothing.npy is not a readable .npy file" in fails(capsys, *run, "nothing.npy")
    assert "text.npy is not a readable .npy file" in fails(capsys, *run, "text.npy")
    assert "objects.npy is not a readable .npy file" in fails(capsys, *run, "objects.npy")
    assert "folder.npz is not a readable .npy file" in fails(capsys, *run, "folder.npz")
    assert "two.npz holds several arrays" in fails(capsys, *run, "two.npz")
    assert "must have shape (2, 5, 6, 7), found shape (1, 2)" in fails(capsys, *run, "small.npy")
    assert "no input 'z'; it takes x float32[2, 5, 6, 7]" in fails(capsys, *run, "z=x.npy")
    assert "2 inputs given, the model takes x" in fails(capsys, *run, "x.npy", "--input", "x.npy")
    assert "missing: x" in fails(capsys, "run", "net.q8ta", "--output", "y.npz")
    assert "2 outputs (y, first): use --output y.npz" in fails(
        capsys, *run[:2], "--input", "x.npy", "--output", "y.npy"
    )
    assert "must end in .npy or .npz" in fails(capsys, *run[:2], "--input", "x.npy", "--output", "y.txt")
    for output, problem in (("missing/y.npz", "there is no folder missing"), ("folder.npz", "it is a folder")):
        assert problem in fails(capsys, *run[:2], "--input", "x.npy", "--device", "nobody", "--output", output)
    assert "no adapter is called ''" in fails(capsys, "show", "net.q8ta", "--device", "")
    assert "no adapter is called 'nobody'" in fails(capsys, *run, "x.npy", "--device", "nobody")
    assert "no adapter is called 77" in fails(capsys, "show", "net.q8ta", "--device", "77")
    assert "no adapter is called '999" in fails(capsys, "show", "net.q8ta", "--device", DIGITS)
    assert not (files / "y.npz").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["run", "net.q8ta"],
        ["show"],
        ["time", "net.q8ta", "--repeats", "x"],
        ["time", "net.q8ta", "--repeats", DIGITS],
    ],
)
def test_usage(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "usage: q8ta_wgpu" in told
    assert len(told) < 2 * MAX_MESSAGE


def test_an_onnx_file_is_imported_and_taken_as_it_is(capsys: Captured) -> None:
    Path("net.onnx").write_bytes(quantized("single", "QDQ", "s8s8"))
    assert main(["import", "net.onnx", "-o", "made.q8ta"]) == 0
    assert "multiply-adds in int8" in capsys.readouterr().out
    assert q8.load("made.q8ta").report() == q8.from_onnx("net.onnx").report()
    assert main(["show", "net.onnx"]) == 0
    assert "q8ta_conv2d" in capsys.readouterr().out
    made = ("import", "net.onnx", "-o", "made.q8ta")
    for size in ("batch", "batch=", "batch=1:2:3:4", f"batch={DIGITS}", f"batch=1:{DIGITS}"):
        assert "such as batch=1" in fails(capsys, *made, "--size", size)
    assert "sizes name 'batch', but the file leaves none open" in fails(capsys, *made, "--size", "batch=1")
    assert "cannot read" in fails(capsys, "import", "none.onnx", "-o", "made.q8ta")
    assert "-o must end in .q8ta, found made.txt" in fails(capsys, "import", "net.onnx", "-o", "made.txt")
    assert not Path("made.txt").exists()


def test_names_that_no_kernel_has(capsys: Captured) -> None:
    """What is like none of them is told what names look like, and a file that is missing is told to be."""
    assert "there are, among others, conv2d" in fails(capsys, "wgsl", "conv")
    assert "'xyzzy'; there are, among others, abs" in fails(capsys, "wgsl", "xyzzy")
    assert "none.q8ta is not a file" in fails(capsys, "wgsl", "none.q8ta")
