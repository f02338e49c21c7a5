"""Files are written whole: full disks and interrupts leave the old contents or the new ones."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q8ta_wgpu.writing import replace
from testbed.standins import noted

OLD, NEW = b"what was there", b"what is new"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "interrupt"])
def test_a_failing_disk_harms_nothing(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.q8ta"
    path.write_bytes(OLD)

    def fail(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt if failing == "interrupt" else OSError(28, "No space left on device")

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(data[:5])
            fail()
            return 5

    steps: dict[str, tuple[Any, str, Any]] = {
        "open": (Path, "open", fail),
        "write": (Path, "open", lambda self, mode: Full(self, "x")),
        "replace": (Path, "replace", fail),
    }
    monkeypatch.setattr(*steps.get(failing, (os, "fsync", fail)))
    with pytest.raises(KeyboardInterrupt if failing == "interrupt" else OSError) as caught:
        replace({path: NEW})
    monkeypatch.undo()
    assert failing == "interrupt" or "No space left" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["net.q8ta"]
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_no_file_of_several_changes_before_all_are_on_the_disk(
    failing: int, tmp_path: Path, full_disk: Callable[[int], None]
) -> None:
    before = {name: OLD for name in ("a", "b", "c")}
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    full_disk(failing - 1)
    with pytest.raises(OSError, match="No space left") as caught:
        replace({tmp_path / name: NEW for name in before})
    assert caught.value.filename == str(tmp_path / "abc"[failing - 1])
    assert contents(tmp_path) == before


def test_several_files_are_replaced_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second").mkdir()
    with pytest.raises(OSError, match="no regular file"):
        replace({tmp_path / "first": NEW, tmp_path / "second": NEW})
    assert [path.name for path in tmp_path.iterdir()] == ["second"]
    renamed = noted(monkeypatch, Path, "replace")
    replace({tmp_path / name: NEW for name in ("z", "b", "a")})
    assert [target.name for _, target in renamed] == ["z", "b", "a"]


def test_writers_of_one_file_leave_each_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "net.q8ta"
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                replace({path: bytes([number]) * 1000})
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [path.name for path in tmp_path.iterdir()] == ["net.q8ta"]
    assert path.read_bytes() in {bytes([number]) * 1000 for number in range(4)}


@pytest.mark.skipif(sys.platform == "win32", reason="names of 255 bytes")
def test_the_longest_name_there_is(tmp_path: Path) -> None:
    path = tmp_path / ("網" * 85)
    replace({path: NEW})
    assert path.read_bytes() == NEW


def test_a_file_below_a_file_is_named(tmp_path: Path) -> None:
    """Not the temporary file beside it, which cannot be made either."""
    (tmp_path / "taken").write_bytes(OLD)
    path = tmp_path / "taken" / "net.q8ta"
    with pytest.raises(OSError) as caught:
        replace({path: NEW})
    assert caught.value.filename == str(path)
    assert contents(tmp_path) == {"taken": OLD}
