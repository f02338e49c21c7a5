"""The command line around what it says: other processes, pipes, full and closed streams, hostile names, interrupts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.commands import show
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from testbed.standins import failing
from tests.cli import ENVIRONMENT, Captured, enter, fails


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


def test_as_a_program() -> None:
    """`python -m q8ta_wgpu`, its exit codes, and a reader that closes the pipe early."""

    def program(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "q8ta_wgpu", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)

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
                command, stdout=disk, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=ENVIRONMENT
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
    failing(monkeypatch, show, "opened", MemoryError)
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


def test_an_output_of_few_letters(capsys: Captured, files: Path) -> None:
    """As a pipe on Windows is: what we write is in ASCII, names of the network are written out."""
    graph = Graph(["größe"], ["y"], [Node("relu", ("größe",), "y")])
    graph.types = dict.fromkeys(("größe", "y"), TensorType((3,)))
    Model(graph, Structure(0)).save(files / "named.q8ta")
    for command in (["show", "net.q8ta"], ["time", "net.q8ta", "--repeats", "1"], ["show", "named.q8ta"]):
        written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with redirect_stdout(written):
            assert main(command) == 0, capsys.readouterr().err
        written.seek(0)
        assert ("gr\\xf6\\xdfe" in written.read()) == ("named.q8ta" in command)
    assert str(q8.load("net.q8ta").report()).isascii()


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
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell of Unix and a full device")
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
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (code, error)
