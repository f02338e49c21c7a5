"""What tuning keeps: its cache files, on every platform, damaged, in the way or written by several at once."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.runtime import findings
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.findings import Findings, folder
from q8ta_wgpu.tuning.tuner import times_of
from testbed.small import same_bytes, small_input, small_model
from testbed.standins import failing
from tests.clock import INFO, by_estimate, clocked, tuned

MODEL = small_model()
ADAPTER = times_of(INFO).adapter
pytestmark = pytest.mark.usefixtures("caches")


def written(content: object, path: Path) -> Findings:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return times_of(INFO)


def test_what_is_saved_is_read(caches: Path) -> None:
    cache = times_of(INFO)
    assert (cache.found, cache.note) == ({}, "")
    assert cache.path is not None and cache.path.parent == caches and "A-GPU-1-0-x-Vulkan" in cache.path.name
    cache.found["kernel abc"] = 12.5
    cache.save()
    assert times_of(INFO).found == {"kernel abc": 12.5}
    assert [p.name for p in caches.iterdir()] == [cache.path.name]
    for changed in (
        {"description": "driver 6"},
        {"device": "another"},
        {"backend_type": "OpenGL"},
        {"engine": "wgpu 9"},
    ):
        assert times_of({**INFO, **changed}).found == {}
    assert times_of(INFO).clear() and not times_of(INFO).clear()
    assert times_of(INFO).found == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b'{"format": 2, "adapter"', "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        ([1, 2], "it is not of format 2"),
        ({"format": 0, "found": {"a": 1.0}}, "it is not of format 2"),
        ({"format": 2, "adapter": {"device": "x"}, "found": {"a": 1.0}}, "it is another adapter's"),
        ({"format": 2, "adapter": ADAPTER}, "some of its values"),
        *(
            (
                {"format": 2, "adapter": ADAPTER, "found": {"a": 1.0, "b": us}},
                "some of its values",
            )
            for us in (0, -1.0, float("nan"), float("inf"), 10**400, True, "1", None, [1])
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_is_no_cache_counts_as_empty(content: object, reason: str) -> None:
    path = times_of(INFO).path
    assert path is not None
    cache = written(content, path)
    assert cache.found == {} and reason in cache.note and str(path) in cache.note
    cache.found["a"] = 2.0
    cache.save()
    assert (times_of(INFO).found, times_of(INFO).note) == ({"a": 2.0}, "")


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = times_of(INFO)
    monkeypatch.setattr(findings, "MAX_ENTRIES", 5)
    cache.found = {f"kernel {i}": 1.0 + i for i in range(9)}
    cache.save()
    assert list(times_of(INFO).found) == [f"kernel {i}" for i in range(4, 9)]
    monkeypatch.setattr(findings, "MAX_BYTES", 100)
    assert "larger than 100 bytes" in times_of(INFO).note


def test_a_corrupt_file_is_tuned_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert first.cache is not None
    first.cache.write_text("broken")
    again, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert again.timed == first.timed and "it is not JSON" in str(again)
    last, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert last.timed == 0 and not last.note


def test_a_folder_that_cannot_be_written(caches: Path, monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    caches.write_text("in the way")
    clocked(monkeypatch, by_estimate)
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "cannot be written" in str(session.tuning) and "nothing is kept" in str(session.tuning)
    failing(monkeypatch, findings, "folder", RuntimeError("Could not determine home directory."))
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "there is no cache folder" in str(session.tuning)
        assert session.tuning is not None and session.tuning.cache is None
    assert not times_of(INFO).clear()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(caches: Path) -> None:
    cache = times_of(INFO)
    assert cache.path is not None
    cache.path.mkdir(parents=True)
    (cache.path / "in the way").touch()
    again = times_of(INFO)
    assert "it cannot be read" in again.note
    again.found["a"] = 1.0
    again.save()
    assert "cannot be written" in again.note
    assert [p.name for p in caches.iterdir()] == [cache.path.name]


def test_processes_that_write_at_once(caches: Path) -> None:
    """Readers see whole files, and what one wrote before the other is kept."""
    first, second = times_of(INFO), times_of(INFO)
    first.found["a"], second.found["b"] = 1.0, 2.0
    first.save()
    second.save()
    assert times_of(INFO).found == {"a": 1.0, "b": 2.0}
    writers = [times_of(INFO) for _ in range(4)]
    notes: list[str] = []

    def work(number: int) -> None:
        for i in range(20):
            writers[number].found[f"{number} {i}"] = 1.0
            writers[number].save()
            notes.append(times_of(INFO).note + writers[number].note)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(notes) == {""}
    assert {"a", "b"} <= times_of(INFO).found.keys()
    assert len(list(caches.iterdir())) == 1


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere/q8ta_wgpu"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/q8ta_wgpu"),
        ("linux", {}, "/home/me/.cache/q8ta_wgpu"),
        ("darwin", {"XDG_CACHE_HOME": "/elsewhere"}, "/home/me/Library/Caches/q8ta_wgpu"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/q8ta_wgpu/Cache"),
        ("win32", {}, "/home/me/AppData/Local/q8ta_wgpu/Cache"),
    ],
)
def test_the_folder_of_each_platform(
    platform: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert folder() == Path(expected)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_the_cache(caches: Path) -> None:
    """Nobody writes to it: reading it would wait for ever."""
    path = times_of({}).path
    assert path is not None
    caches.mkdir()
    os.mkfifo(path)
    assert "it is no regular file" in times_of({}).note
