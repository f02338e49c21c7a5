"""The command line: readable output, exit code 2 and one line for every mistake, never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wgpu

from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes.layout_sync.plan import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime import adapters, engines, probe
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import Engine
from tests.conftest import BACKENDS
from tests.small import small_input, small_model

MODEL = small_model()
NATIVE = engines.native()
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    MODEL.save(tmp_path / "net.q8ta")
    np.save(tmp_path / "x.npy", small_input())
    return tmp_path


def single_output() -> Model:
    """Two inputs and one output, in a list."""
    q = QParams(0.1, 3)
    graph = Graph(inputs=["a", "b"], outputs=["file"])
    graph.types = {name: TensorType((3, 5), INT8X4, q) for name in ("a", "b", "file")}
    attrs = {"a_multiplier": 1 << 14, "b_multiplier": 1 << 14, "shift": 14, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_add", ("a", "b"), "file", attrs)]
    return Model(graph, Structure({"list": [0]}))


def fails(captured: Captured, *arguments: str) -> str:
    """Runs, expects exit code 2, nothing on stdout and one line on stderr, and returns it."""
    assert main(arguments) == 2
    out, err = captured.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "XDG_RUNTIME_DIR" not in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("q8ta_wgpu: ")
    return lines[0]


def test_wgsl_of_a_value(capsys: Captured) -> None:
    graph = lower(MODEL.graph, BASELINE)
    dispatch = build(graph, BASELINE, sync_layouts(graph, BASELINE)).dispatches[0]
    assert main(["wgsl", "net.q8ta", dispatch.value]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^// \w+\.wgsl:\d+\n@compute @workgroup_size\(.*\)\nfn main\(", text, re.MULTILINE)
    assert dispatch.value[:-1] in fails(capsys, "wgsl", "net.q8ta", dispatch.value[:-1])
    assert dispatch.value in fails(capsys, "wgsl", "net.q8ta", f"{dispatch.value}x")


KERNELS = (
    "softmax add q8ta_add.broadcast q8ta_table q8ta_clone.to_4C cat.runs_4C q8ta_conv2d.dw_4x2 q8ta_conv2d.pw_64x64 "
    "q8ta_conv2d_image.direct q8ta_linear.gemv q8ta_mean.image_4W"
)


@pytest.mark.parametrize("kernel", KERNELS.split())
def test_wgsl_of_a_kernel(kernel: str, capsys: Captured) -> None:
    assert main(["wgsl", kernel]) == 0
    assert "\nfn main(" in capsys.readouterr().out


def test_wgsl_of_nothing(capsys: Captured) -> None:
    assert "q8ta_conv2d.dw" in fails(capsys, "wgsl", "q8ta_conv2d.dww")
    assert "nonsense" in fails(capsys, "wgsl", "q8ta_conv2d.dw", "--device", "nonsense")
    assert "3 arguments" in fails(capsys, "wgsl", "net.q8ta", "a", "b")


def test_devices(capsys: Captured) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out.splitlines()
    for word in ("adapter", "backend", "engine", "packed dot", "copy", "f16", "subgroups", "binding"):
        assert word in out[0]
    for number, (engine, adapter) in enumerate(engines.listed()):
        row = out[1 + number]
        assert row.startswith(str(number))
        assert adapter.info["device"] in row
        assert adapter.info["backend_type"] in row
        assert engine.name in row
        if any(backend.lower() in engine.describe(adapter).lower() for backend in BACKENDS):
            assert row.count("GOP/s") == 2
            assert row.count("GB/s") == 1
            assert row.endswith("yes")


def test_devices_with_one_that_cannot_work(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal cards, of which one cannot make a device and the other computes other bytes."""
    original, best = adapters._from_adapter, NATIVE.adapters()[0]
    monkeypatch.setattr(engines, "dawn", lambda: None)
    monkeypatch.setattr(NATIVE, "_listed", [])
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: [best, best])

    def refuse(engine: Engine, adapter: object, number: int) -> Device:
        if number:
            raise DeviceError("it cannot make a device: no compute")
        return original(engine, adapter, number)

    monkeypatch.setattr(adapters, "_from_adapter", refuse)
    monkeypatch.setattr(probe, "contract", lambda device: "quantize of 1.0 gives 7, the contract 3")
    monkeypatch.setattr(adapters, "_open", {})
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "1: it cannot make a device: no compute" in out
    assert "breaks the arithmetic contract: quantize of 1.0 gives 7" in out
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["no", "no"]
    monkeypatch.setattr(NATIVE, "_listed", [])
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
    assert "no wgpu adapter" in fails(capsys, "devices")


def test_devices_with_one_that_ends_loops(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session would refuse is no device for int8."""
    monkeypatch.setattr(engines, "dawn", lambda: None)
    monkeypatch.setattr(NATIVE, "_listed", NATIVE.adapters()[:1])
    monkeypatch.setattr(probe, "loop_turns", lambda device, turns: 64)
    monkeypatch.setattr(adapters, "_open", {})
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "ends the loops of a thread after 64 turns" in out
    assert out.splitlines()[1].split()[-1] == "no"
    with pytest.raises(DeviceError, match="after 64 turns"):
        Session(MODEL, "vulkan")


def test_show(capsys: Captured) -> None:
    for extra in ((), ("--device", "opengl"), ("--device", "0"), ("--device", "reference")):
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
    assert re.search(r"\d+ tensors of .* share \d+ slots, used again \d+ times", out)
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
    assert not (files / "y.npz").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["unknown"], ["run", "net.q8ta"], ["show"], ["time", "net.q8ta", "--repeats", "x"]]
)
def test_usage(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: q8ta_wgpu" in capsys.readouterr().err


def test_as_a_program() -> None:
    """`python -m q8ta_wgpu`, its exit codes, and a reader that closes the pipe early."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}

    def program(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "q8ta_wgpu", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)

    shown = program("show", "net.q8ta")
    out, err = shown.communicate(timeout=60)
    assert shown.returncode == 0
    assert out.startswith("input  x")
    assert err == ""
    wrong = program("show", "nothing.q8ta")
    out, err = wrong.communicate(timeout=60)
    assert (wrong.returncode, out) == (2, "")
    assert err.count("\n") == 1
    if (full := Path("/dev/full")).exists():
        with full.open("w") as disk:
            command = [sys.executable, "-m", "q8ta_wgpu", "show", "net.q8ta"]
            done = subprocess.run(
                command, stdout=disk, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=environment
            )
        assert (done.returncode, done.stderr) == (2, "q8ta_wgpu: [Errno 28] No space left on device\n")
    closed = program("show", "net.q8ta")
    assert closed.stdout is not None
    assert closed.stderr is not None
    closed.stdout.close()
    assert closed.stderr.read() == ""
    assert closed.wait(60) == 0
    closed.stderr.close()


def claiming(shape: str) -> bytes:
    """An .npy file of one float whose header says that it has another shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(4)


@pytest.mark.parametrize("shape", ["(100000000000,)", f"({'9' * 30},)", "(2147483648, 2147483648)", "(-4,)"])
def test_an_input_that_claims_more_than_it_holds(shape: str, capsys: Captured, files: Path) -> None:
    (files / "claims.npy").write_bytes(claiming(shape))
    run = ("run", "net.q8ta", "--output", "y.npz", "--device", "reference", "--input")
    assert "claims.npy is not a readable .npy file" in fails(capsys, *run, "claims.npy")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_an_input_that_is_a_pipe(capsys: Captured, files: Path) -> None:
    """It is not waited for: nobody may ever write."""
    os.mkfifo(files / "pipe.npy")
    told = fails(capsys, "run", "net.q8ta", "--output", "y.npz", "--device", "reference", "--input", "pipe.npy")
    assert "pipe.npy is not a readable .npy file of numbers: it is no regular file" in told


def test_a_command_without_memory(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("q8ta_wgpu.commands.show.load", full)
    assert "not enough memory" in fails(capsys, "show", "net.q8ta")


def test_what_is_printed_commands_no_terminal(capsys: Captured) -> None:
    """Names that were given, on both streams; a name that is no text as well."""
    for name in ("red\x1b[31m.npz", "\udcff.npz"):
        assert main(["run", "net.q8ta", "--input", "x.npy", "--output", name, "--device", "reference"]) == 0
        assert capsys.readouterr().out.rstrip("\n").isprintable()
    with pytest.raises(SystemExit):
        main(["show", "net.q8ta", "red\x1b[31m"])
    err = capsys.readouterr().err
    assert "red\\x1b[31m" in err and "\x1b" not in err


INTERRUPTED = """
import runpy, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["show", "net.q8ta"]
runpy.run_module("q8ta_wgpu", run_name="__main__")
"""


def test_an_interrupt_while_it_is_imported() -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and a full device")
@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("show net.q8ta >&-", 0, ""),
        ("show nothing.q8ta 2>&-", 2, ""),
        ("--help >/dev/full", 2, "q8ta_wgpu: [Errno 28] No space left on device\n"),
        ("show net.q8ta | true", 0, ""),
    ],
)
def test_closed_and_full_streams(command: str, code: int, error: str) -> None:
    text = f"set -o pipefail; {sys.executable} -m q8ta_wgpu {command}"
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (code, error)
