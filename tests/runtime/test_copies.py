"""Copies of large arrays, in pieces by several threads."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.runtime import transfer


@pytest.mark.parametrize("size", [0, 1, 7, transfer.PIECE, 5 * transfer.PIECE + 3])
def test_copies_are_equal(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    np.testing.assert_array_equal(transfer.copied(source), source)


@pytest.mark.parametrize("copy_threads", [4], indirect=True)
@pytest.mark.usefixtures("copy_threads")
@pytest.mark.parametrize("shape", [(), (3, 5), (9, 2, 1024, 300), (1, 2, 1024, 3000), (2, 2, 3, 600_000)])
def test_copies_of_any_strides(shape: tuple[int, ...]) -> None:
    """Rows without their padding, and axes in another order, as results lie in mapped memory."""
    padded = np.random.default_rng(0).integers(0, 255, (*shape[:-1], shape[-1] + 2) if shape else (), dtype=np.uint8)
    source = padded[..., :-2].swapaxes(-1, -2) if shape else padded
    found = transfer.copied(source)
    np.testing.assert_array_equal(found, source)
    assert found.flags.c_contiguous and not np.shares_memory(found, padded)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("copy_threads", [4], indirect=True)
@pytest.mark.usefixtures("copy_threads")
def test_a_forked_child_copies_with_threads_of_its_own() -> None:
    """It has none of its parent's."""
    shared = transfer._pool
    shared.cache_clear()
    source = np.zeros(4 * transfer.PIECE, np.uint8)
    list(shared().map(time.sleep, [0.05] * 8))  # all its threads have begun
    child = multiprocessing.get_context("fork").Process(target=transfer.copied, args=(source,))
    child.start()
    child.join(20)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
        shared.cache_clear()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("copy_threads", [2], indirect=True)
@pytest.mark.usefixtures("interrupts", "copy_threads")
def test_who_is_interrupted_may_free_the_memory(times: int) -> None:
    if times == 2 and not hasattr(signal, "pthread_kill"):
        pytest.skip("needs signals to threads")
    begun, ended = threading.Event(), []

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        if source[0]:
            begun.wait(5)
            raise KeyboardInterrupt
        begun.set()
        time.sleep(0.1)  # the main thread waits for this piece now
        if times == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        ended.append(True)

    source = np.zeros(2 * transfer.PIECE, np.uint8)
    source[0] = 1
    with pytest.raises(KeyboardInterrupt):
        transfer.copy(source, np.empty_like(source), copyto)
    assert ended


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_as_work_ends_does_not_stop_other_threads() -> None:
    work, is_held = transfer._Work(np.copyto), threading.Event()
    changed = work._changed

    def hold() -> None:
        with changed:
            is_held.set()
            time.sleep(0.1)  # the main thread waits for the lock now
            _thread.interrupt_main()  # which it notices in Python's own code, and not while it waits

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert is_held.wait(60)
        with pytest.raises(KeyboardInterrupt):
            work.end()
        holding.result(60)
        free = pool.submit(changed.acquire, timeout=5)
        assert free.result(60)


class _Faulty:
    """A pool of which a submission ends with an error once the piece is in its queue, as CPython's do."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, handed: int, error: BaseException
    ) -> None:
        self.pool, self.left, self.error = pool, handed, error
        monkeypatch.setattr(transfer, "_pool", lambda: self)

    def submit(self, *call: Any) -> Future[Any]:
        future = self.pool.submit(*call)
        self.left -= 1
        if self.left < 0:
            raise self.error
        return future


@pytest.mark.parametrize("copy_threads", [3], indirect=True)
@pytest.mark.usefixtures("copy_threads")
@pytest.mark.parametrize("handed", [0, 1])
def test_pieces_that_no_future_stands_for_are_not_written_later(handed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    freed, late = threading.Event(), []

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        time.sleep(0.05)
        late.append(freed.is_set())

    source = np.zeros(3 * transfer.PIECE, np.uint8)
    with ThreadPoolExecutor(1) as pool:
        if not handed:
            pool.submit(freed.wait, 5)  # the piece waits in the queue
        _Faulty(monkeypatch, pool, handed, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            transfer.copy(source, np.empty_like(source), copyto)
        freed.set()
    assert True not in late


@pytest.mark.parametrize("copy_threads", [4], indirect=True)
@pytest.mark.usefixtures("copy_threads")
def test_without_another_thread_copies_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a thread that goes on when the main one has ended."""
    source = np.random.default_rng(0).integers(0, 255, 5 * transfer.PIECE, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        _Faulty(monkeypatch, pool, 1, RuntimeError("cannot schedule new futures after interpreter shutdown"))
        np.testing.assert_array_equal(transfer.copied(source), source)
