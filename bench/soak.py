"""Looks for leaks and wrong results over many sessions, runs and threads: `python -m bench soak`.

`--count` (10,000) is the number of runs of a soak. The number of sessions that are opened, run and closed, and of runs
in each of eight threads, is a tenth of it. Memory is Linux's resident memory.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.faults import Tried, record
from bench.options import Options
from q8ta_wgpu import Session
from q8ta_wgpu.commands.arguments import random_inputs
from q8ta_wgpu.ir.graph import INT8X4
from q8ta_wgpu.runtime.device import Device
from testbed.small import small_input, small_model
from testbed.states import turned

MODEL, TURNED = small_model(), turned(INT8X4, width=16)
INPUTS = [small_input(seed) for seed in range(5)]
EXPECTED = [Session(MODEL, "reference")(x) for x in INPUTS]
THREADS = 8
AWAITED = 16
WARM = 20
"""Calls after which all lazy initialization is done."""

Work = Callable[[Device, int], int]
"""Does something `int` times on a device, and returns the number of wrong results."""


@dataclass(frozen=True)
class Lasted:
    """Growth of resident memory in bytes, growth of the number of the engine's objects, and number of wrong results."""

    memory: int
    objects: int
    wrong: int

    def __str__(self) -> str:
        wrong = f"{self.wrong} wrong results" if self.wrong else "every byte right"
        return f"{wrong}; memory {self.memory / 2**20:+.1f} MiB, objects {self.objects:+d}"


def lasting(work: Work, device: Device, count: int) -> Lasted:
    """Does work `count` times, after WARM times that are not measured."""
    wrong = work(device, WARM)
    before = _held(device)
    wrong += work(device, count)
    after = _held(device)
    return Lasted(after[0] - before[0], after[1] - before[1], wrong)


def _held(device: Device) -> tuple[int, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    objects = sum(issubclass(type(o), device.engine.package.GPUObjectBase) for o in gc.get_objects())
    return pages * os.sysconf("SC_PAGESIZE"), objects


def _wrong(session: Callable[[Any], Any], turn: int) -> int:
    return _differs(session(INPUTS[turn % len(INPUTS)]), turn)


def _differs(found: Any, turn: int) -> int:
    expected = EXPECTED[turn % len(EXPECTED)]
    same = np.array_equal(found["y"], expected["y"]) and np.array_equal(found["parts"][0], expected["parts"][0])
    return int(not same)


def rounds(device: Device, count: int) -> int:
    """Opens, runs twice and closes a session."""
    wrong = 0
    for turn in range(count):
        with Session(MODEL, device) as session:
            wrong += _wrong(session, turn) + _wrong(session, turn + 1)
    return wrong


def unused(device: Device, count: int) -> int:
    """Opens and closes a session."""
    for _ in range(count):
        Session(MODEL, device).close()
    return 0


def runs(device: Device, count: int) -> int:
    """Calls a session."""
    with Session(MODEL, device) as session:
        return sum(_wrong(session, turn) for turn in range(count))


def kept(device: Device, count: int) -> int:
    """Calls a session that applies a rotary embedding and writes rows into its state."""
    inputs = {**random_inputs(TURNED), "place": np.array([3, 5], np.float32)}
    expected = Session(TURNED, "reference")(**inputs)
    with Session(TURNED, device) as session:
        return sum(not np.array_equal(session(**inputs), expected) for _ in range(count))


def streamed(device: Device, count: int) -> int:
    """Runs a stream through a session."""
    with Session(MODEL, device) as session:
        outputs = session.run_many(INPUTS[turn % len(INPUTS)] for turn in range(count))
        return sum(_differs(found, turn) for turn, found in enumerate(outputs))


def awaited(device: Device, count: int) -> int:
    """Awaits calls of a session, sixteen at a time."""

    async def all_of_them(session: Session) -> int:
        free = asyncio.Semaphore(AWAITED)

        async def one(turn: int) -> int:
            async with free:
                return _differs(await session.run_async(INPUTS[turn % len(INPUTS)]), turn)

        return sum(await asyncio.gather(*map(one, range(count))))

    with Session(MODEL, device) as session:
        return asyncio.run(all_of_them(session))


def threads_on_one(device: Device, count: int) -> int:
    """Calls one session from eight threads."""
    with Session(MODEL, device) as session:
        return _in_threads(count, lambda turn: _wrong(session, turn))


def threads_on_several(device: Device, count: int) -> int:
    """Calls eight sessions, each from a thread of its own."""
    sessions = [Session(MODEL, device) for _ in range(THREADS)]
    try:
        return _in_threads(count, lambda turn: _wrong(sessions[turn % THREADS], turn))
    finally:
        for session in sessions:
            session.close()


def _in_threads(count: int, call: Callable[[int], int]) -> int:
    """The sum of `call(turn)` over `count` turns in each of THREADS threads."""

    def work(thread: int) -> int:
        return sum(call(turn * THREADS + thread) for turn in range(count))

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS)))


SOAKS: dict[Work, int] = {
    rounds: 10,
    unused: 10,
    runs: 1,
    kept: 1,
    streamed: 1,
    awaited: 1,
    threads_on_one: 10,
    threads_on_several: 10,
}
"""The soaks, and by what `--count` is divided for each."""


def _found(options: Options) -> Iterator[Tried]:
    device = options.device
    for work, part in SOAKS.items():
        if options.names and work.__name__ not in options.names:
            continue
        count = options.count // part
        times = count * (THREADS if work in (threads_on_one, threads_on_several) else 1)
        what = str(work.__doc__).rstrip(".").lower()
        yield Tried(what, device.name, times, str(lasting(work, device, count)))


def part_soak(options: Options) -> None:
    """Runs every soak on one adapter."""
    record(list(_found(options)))
