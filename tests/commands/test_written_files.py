"""A command that cannot write its file leaves the one that was there; what it lacks is found before it measures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from q8ta_wgpu.__main__ import main
from q8ta_wgpu.commands import show
from testbed.small import small_model
from testbed.standins import failing
from tests.cli import Captured, enter, fails

OLD = b"what was there"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file takes more than some bytes: of more, the first are written and the rest is refused."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of Unix")
@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("run net.q8ta --input x.npy --device reference", "--output", "y.npz"),
        ("show net.q8ta", "--draw", "net.html"),
        ("show net.q8ta", "--draw", "net.svg"),
        ("time net.q8ta --repeats 1", "--json", "t.json"),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    command: str, option: str, name: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / name).write_bytes(OLD)
    before = sorted(path.name for path in tmp_path.iterdir())
    with full_disk():
        assert main([*command.split(), option, name]) == 2
    assert f"q8ta_wgpu: cannot write {name}: File too large" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of Unix")
def test_a_full_disk_leaves_an_exported_folder_whole(tmp_path: Path, capsys: Captured) -> None:
    assert main(["export-web", "net.q8ta", "web"]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "web").iterdir()}
    small_model(channels=7).save("net.q8ta")
    capsys.readouterr()
    with full_disk():
        message = fails(capsys, "export-web", "net.q8ta", "web")
    assert "cannot write web/" in message and "File too large" in message
    assert {path.name: path.read_bytes() for path in (tmp_path / "web").iterdir()} == before


def test_a_missing_extra_is_found_before_measuring(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    failing(monkeypatch, show, "Session", AssertionError("a device was opened"))
    assert "q8ta-wgpu[show]" in fails(capsys, "show", "net.q8ta", "--draw", "net.svg", "--time")
