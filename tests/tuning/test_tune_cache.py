"""What tuning keeps: its cache files, on every platform, damaged, in the way or written by several at once."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import cache as tune_cache
from q8ta_wgpu.tuning.cache import Cache
from testbed.small import same_bytes, small_input, small_model
from testbed.standins import failing
from tests.clock import INFO, by_estimate, clocked, tuned

MODEL = small_model()
pytestmark = pytest.mark.usefixtures("caches")


def written(content: object, path: Path) -> Cache:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Cache.of(INFO)


def test_what_is_saved_is_read(caches: Path) -> None:
    cache = Cache.of(INFO)
    assert (cache.times, cache.note) == ({}, "")
    assert cache.path is not None and cache.path.parent == caches and "A-GPU-1-0-x-Vulkan" in cache.path.name
    cache.times["kernel abc"] = 12.5
    cache.save()
    assert Cache.of(INFO).times == {"kernel abc": 12.5}
    assert [p.name for p in caches.iterdir()] == [cache.path.name]
    for changed in (
        {"description": "driver 6"},
        {"device": "another"},
        {"backend_type": "OpenGL"},
        {"engine": "wgpu 9"},
    ):
        assert Cache.of({**INFO, **changed}).times == {}
    assert Cache.of(INFO).clear() and not Cache.of(INFO).clear()
    assert Cache.of(INFO).times == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b'{"format": 1, "adapter"', "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        ([1, 2], "it is not of format 1"),
        ({"format": 0, "microseconds": {"a": 1.0}}, "it is not of format 1"),
        ({"format": 1, "adapter": {"device": "x"}, "microseconds": {"a": 1.0}}, "it is another adapter's"),
        ({"format": 1, "adapter": tune_cache.identity(INFO)}, "its times are not"),
        *(
            (
                {"format": 1, "adapter": tune_cache.identity(INFO), "microseconds": {"a": 1.0, "b": us}},
                "its times are not",
            )
            for us in (0, -1.0, float("nan"), float("inf"), 10**400, True, "1", None, [1])
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_is_no_cache_counts_as_empty(content: object, reason: str) -> None:
    path = Cache.of(INFO).path
    assert path is not None
    cache = written(content, path)
    assert cache.times == {} and reason in cache.note and str(path) in cache.note
    cache.times["a"] = 2.0
    cache.save()
    assert (Cache.of(INFO).times, Cache.of(INFO).note) == ({"a": 2.0}, "")


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache.of(INFO)
    monkeypatch.setattr(tune_cache, "MAX_ENTRIES", 5)
    cache.times = {f"kernel {i}": 1.0 + i for i in range(9)}
    cache.save()
    assert list(Cache.of(INFO).times) == [f"kernel {i}" for i in range(4, 9)]
    monkeypatch.setattr(tune_cache, "MAX_BYTES", 100)
    assert "larger than 100 bytes" in Cache.of(INFO).note


def test_a_corrupt_file_is_tuned_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert first.cache is not None
    first.cache.write_text("broken")
    again, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert again.sampled == first.sampled and "it is not JSON" in str(again)
    last, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert last.sampled == 0 and not last.note


def test_a_folder_that_cannot_be_written(caches: Path, monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    caches.write_text("in the way")
    clocked(monkeypatch, by_estimate)
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "cannot be written" in str(session.tuning) and "nothing is kept" in str(session.tuning)
    failing(monkeypatch, tune_cache, "folder", RuntimeError("Could not determine home directory."))
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "there is no cache folder" in str(session.tuning)
        assert session.tuning is not None and session.tuning.cache is None
    assert not Cache.of(INFO).clear()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(caches: Path) -> None:
    cache = Cache.of(INFO)
    assert cache.path is not None
    cache.path.mkdir(parents=True)
    (cache.path / "in the way").touch()
    again = Cache.of(INFO)
    assert "it cannot be read" in again.note
    again.times["a"] = 1.0
    again.save()
    assert "cannot be written" in again.note
    assert [p.name for p in caches.iterdir()] == [cache.path.name]


def test_processes_that_write_at_once(caches: Path) -> None:
    """Readers see whole files, and what one wrote before the other is kept."""
    first, second = Cache.of(INFO), Cache.of(INFO)
    first.times["a"], second.times["b"] = 1.0, 2.0
    first.save()
    second.save()
    assert Cache.of(INFO).times == {"a": 1.0, "b": 2.0}
    writers = [Cache.of(INFO) for _ in range(4)]
    notes: list[str] = []

    def work(number: int) -> None:
        for i in range(20):
            writers[number].times[f"{number} {i}"] = 1.0
            writers[number].save()
            notes.append(Cache.of(INFO).note + writers[number].note)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(notes) == {""}
    assert {"a", "b"} <= Cache.of(INFO).times.keys()
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
    assert tune_cache.folder() == Path(expected)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_the_cache(caches: Path) -> None:
    """Nobody writes to it: reading it would wait for ever."""
    path = Cache.of({}).path
    assert path is not None
    caches.mkdir()
    os.mkfifo(path)
    assert "it is no regular file" in Cache.of({}).note
