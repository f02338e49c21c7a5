"""What the tests of the command line share: a small model and its input in a folder, and how a mistake is told."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from q8ta_wgpu.__main__ import main
from testbed.small import small_input, small_model

Captured = pytest.CaptureFixture[str]
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[1]),
    **{name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
}
"""Of a process that runs the command line, with no variable that changes Python's streams. Windows starts none without
its own."""


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes net.q8ta and x.npy in a folder, and goes there."""
    monkeypatch.chdir(folder)
    small_model().save(folder / "net.q8ta")
    np.save(folder / "x.npy", small_input())
    return folder


def fails(captured: Captured, *arguments: str) -> str:
    """Runs, expects exit code 2, nothing on stdout and one line on stderr, and returns it."""
    assert main(arguments) == 2
    out, err = captured.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "XDG_RUNTIME_DIR" not in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("q8ta_wgpu: ")
    return lines[0]
