"""Streams of inputs: the same outputs as calls, in order, and nothing lost when something fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import Array, Graph, Node, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.streaming import IN_FLIGHT
from testbed import insides
from testbed.small import SHAPE, same_bytes
from tests.session.streams import EXPECTED, INPUTS, MODEL

NATIVE = engines.native()


def difference() -> Model:
    """y = a - b."""
    graph = Graph(inputs=["a", "b"], outputs=["y"])
    graph.types = {name: TensorType((3,)) for name in ("a", "b", "y")}
    graph.nodes = [Node("add", ("a", "b"), "y", {"alpha": -1.0})]
    return Model(graph, Structure(0))


class Counted:
    """Yields arrays and counts how many were taken."""

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.taken = 0

    def __iter__(self) -> Iterator[Array]:
        for x in self.arrays:
            self.taken += 1
            yield x


def staging(opened: Session) -> int:
    """Idle staging buffers."""
    return len(insides.runs(insides.executor(opened)).idle)


def test_the_same_as_calls_in_order(session: Session) -> None:
    found = list(session.run_many(INPUTS * 3))
    assert len(found) == 24
    for outputs, expected in zip(found, EXPECTED * 3, strict=True):
        same_bytes(outputs, expected)
    assert list(session.run_many([])) == []
    same_bytes(next(session.run_many(iter(INPUTS))), EXPECTED[0])


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_items_of_every_kind(where: str) -> None:
    a, b = np.arange(3, dtype=np.float32), np.array([5, 7, 9], np.float32)
    with Session(difference(), where) as opened:
        found = list(opened.run_many([(a, b), {"b": a, "a": b}, (b, b)]))
        np.testing.assert_array_equal(found, [a - b, b - a, b - b])
        with pytest.raises(InputError, match=r"item 1: .*missing: b"):
            list(opened.run_many([(a, b), a]))
        with pytest.raises(InputError, match=r"item 0: the model has no input 'c'"):
            list(opened.run_many([{"a": a, "c": b}]))
        with pytest.raises(InputError, match=r"found one mapping: write run_many\(\[item\]\)"):
            opened.run_many({"a": a, "b": b})
        with pytest.raises(InputError, match=r"run_many takes an iterable of inputs, found int"):
            opened.run_many(3)  # type: ignore[arg-type]


def test_several_sessions_take_turns(vulkan: Device, another: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are in order and every session works; errors come at their turn, and nothing is asked of no session."""
    with Session(MODEL, vulkan) as one, Session(MODEL, another) as other:
        begun = list[Session]()
        for opened in (one, other):

            def noted(*given: Any, opened: Session = opened, start: Any = opened._begin) -> Any:
                begun.append(opened)
                return start(*given)

            monkeypatch.setattr(opened, "_begin", noted)
        for outputs, expected in zip(q8.run_many([one, other], INPUTS), EXPECTED, strict=True):
            same_bytes(outputs, expected)
        assert begun == [(one, other)[i % 2] for i in range(len(INPUTS))]
        results = q8.run_many([one, other], [INPUTS[0], INPUTS[1], np.zeros(3, np.float32)])
        for expected in EXPECTED[:2]:
            same_bytes(next(results), expected)
        with pytest.raises(InputError, match="item 2: input 'x'"):
            next(results)
    with pytest.raises(InputError, match="at least one session"):
        q8.run_many([], INPUTS)


def test_results_of_several_sessions_are_read_by_threads_of_theirs(
    vulkan: Device, another: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread would copy the results of all devices one after the other."""
    readers = set()
    with Session(MODEL, vulkan) as one, Session(MODEL, another) as other:
        for opened in (one, other):
            executor = insides.executor(opened)

            def noted(*given: Any, name: str = opened.name, read: Any = executor._read) -> Any:
                readers.add((name, threading.current_thread().name.rpartition("_")[0]))
                return read(*given)

            monkeypatch.setattr(executor, "_read", noted)
        assert len(list(q8.run_many([one, other], INPUTS))) == len(INPUTS)
        assert readers == {(one.name, "q8ta-read"), (other.name, "q8ta-read")}


def test_whoever_leaves_several_sessions_early_gives_back_what_was_held(vulkan: Device) -> None:
    with Session(MODEL, vulkan) as one, Session(MODEL, vulkan) as other:
        results = cast("Generator[Any]", q8.run_many([one, other], INPUTS))
        same_bytes(next(results), EXPECTED[0])
        results.close()
        for opened in (one, other):
            runs = insides.runs(insides.executor(opened))
            limit = time.monotonic() + 10
            while len(runs.idle) + len(runs.ahead) < len(runs._all):
                assert time.monotonic() < limit, "a run in flight was not given back"
            same_bytes(opened(INPUTS[1]), EXPECTED[1])


@pytest.mark.parametrize("when", ["at once", "later"])
def test_where_no_thread_begins_results_are_read_by_who_asks(
    when: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python is ending but for this thread, or the system has no more threads."""
    submit = ThreadPoolExecutor.submit
    begun: list[Any] = []

    def refused(pool: ThreadPoolExecutor, *given: Any, **named: Any) -> Any:
        reads = pool._thread_name_prefix == "q8ta-read"
        if not reads or (when == "later" and len(begun) < 4):
            begun.extend([given] * reads)
            return submit(pool, *given, **named)
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    with Session(MODEL, vulkan) as one, Session(MODEL, vulkan) as other:
        for outputs, expected in zip(q8.run_many([one, other], INPUTS), EXPECTED, strict=True):
            same_bytes(outputs, expected)
    assert len(begun) == (4 if when == "later" else 0)


def test_items_are_taken_as_they_are_needed(session: Session) -> None:
    items = Counted(INPUTS)
    outputs = session.run_many(items)
    assert items.taken == 0
    for i, expected in enumerate(EXPECTED):
        same_bytes(next(outputs), expected)
        assert items.taken <= min(i + IN_FLIGHT, len(INPUTS))


def test_an_array_may_change_once_the_next_item_is_taken(session: Session) -> None:
    """A camera's buffer, filled again and again."""

    def frames() -> Iterator[Array]:
        frame = np.empty(SHAPE, np.float32)
        for x in INPUTS:
            frame[:] = x
            yield frame

    for outputs, expected in zip(session.run_many(frames()), EXPECTED, strict=True):
        same_bytes(outputs, expected)


def test_a_wrong_item_is_raised_at_its_turn(session: Session) -> None:
    items = [*INPUTS[:4], np.zeros(3, np.float32), INPUTS[4]]
    outputs = session.run_many(items)
    for expected in EXPECTED[:4]:
        same_bytes(next(outputs), expected)
    with pytest.raises(InputError, match=r"item 4: input 'x' must have shape \(2, 5, 6, 7\), found shape \(3,\)"):
        next(outputs)
    assert list(outputs) == []
    same_bytes(session(INPUTS[0]), EXPECTED[0])


def test_what_the_items_raise_comes_through(session: Session) -> None:
    def items() -> Iterator[Array]:
        yield from INPUTS[:2]
        raise OSError("the camera is gone")

    outputs = session.run_many(items())
    for expected in EXPECTED[:2]:
        same_bytes(next(outputs), expected)
    with pytest.raises(OSError, match="the camera is gone"):
        next(outputs)
    same_bytes(session(INPUTS[0]), EXPECTED[0])


def test_leaving_early_gives_back_what_was_held(device: Device) -> None:
    with Session(MODEL, device) as opened:
        for _ in range(5):
            for number, outputs in enumerate(opened.run_many(INPUTS)):
                same_bytes(outputs, EXPECTED[number])
                if number == 2:
                    break
        outputs = opened.run_many(INPUTS)
        next(outputs)
        outputs.close()  # type: ignore[attr-defined]
        assert staging(opened) == IN_FLIGHT
        same_bytes(opened(INPUTS[3]), EXPECTED[3])


def test_interleaved_with_calls_and_with_itself(session: Session) -> None:
    first, second = session.run_many(INPUTS), session.run_many(reversed(INPUTS))
    for i in range(len(INPUTS)):
        same_bytes(next(first), EXPECTED[i])
        same_bytes(session(INPUTS[(i + 3) % 8]), EXPECTED[(i + 3) % 8])
        same_bytes(next(second), EXPECTED[-1 - i])


def test_streams_in_several_threads(session: Session) -> None:
    def work(turn: int) -> None:
        order = np.random.default_rng(turn).permutation(len(INPUTS))
        for i, outputs in zip(order, session.run_many(INPUTS[i] for i in order), strict=True):
            same_bytes(outputs, EXPECTED[i])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_closing_in_the_middle(session: Session) -> None:
    outputs = session.run_many(INPUTS)
    same_bytes(next(outputs), EXPECTED[0])
    session.close()
    same_bytes(next(outputs), EXPECTED[1])
    same_bytes(next(outputs), EXPECTED[2])
    with pytest.raises(InputError, match=r"item 3: this session was closed"):
        next(outputs)


def test_a_device_lost_in_the_middle() -> None:
    """Runs recorded ahead must not be submitted to a lost device: wgpu-native would end the process."""
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    opened = Session(MODEL, adapter.request_device_sync())
    outputs = opened.run_many(INPUTS)
    same_bytes(next(outputs), EXPECTED[0])
    assert opened.device is not None
    opened.device.wgpu.destroy()
    with pytest.raises(DeviceError, match=r"item \d: .*could not run the program"):
        list(outputs)
    opened.close()
    empty = Model(Graph(["x"], ["x"], types={"x": TensorType((3,))}), Structure(0))
    with pytest.raises(DeviceError, match="lost"):
        Session(empty, opened.device)
