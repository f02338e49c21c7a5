"""The GPU times of a program's runs and dispatches, by timestamp queries."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.executor import Executor, Words
from q8ta_wgpu.runtime.recording import Step, record_pass
from q8ta_wgpu.runtime.timestamps import runs_within, timestamps

_AT_ONCE = 5e3
"""Microseconds of the runs that are submitted at a time while clocks rise. The next ones are recorded meanwhile."""

WINDOW, AGREEING, LONGEST = 0.4, 0.02, 6.0
"""Seconds of a window; by which share the medians of two windows in a row may differ; limit of seconds until they do.
Clocks rise late where the device has pauses: an H100 timed ResNet-50 at 2.66 ms after half a second of runs with an
upload before each, and at 1.56 ms later."""


class Stopwatch:
    """Times the runs of an executor. They are no calls: states stay as they are.

    `inputs` are words in port order, as for `Executor.submit`. All methods raise DeviceError if the device fails.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def time_dispatches(self, inputs: Sequence[Words], repeats: int) -> NDArray[np.float64]:
        """Microseconds of every dispatch, shape (repeats, dispatches). Each dispatch has its own compute pass."""
        return self._timed(inputs, repeats, [[step] for step in self._executor.steps])

    def time_runs(
        self, inputs: Sequence[Words], repeats: int, runs: int = 1, only: int | None = None
    ) -> NDArray[np.float64]:
        """Microseconds of a run, shape (repeats,), measured over `runs` runs in one compute pass.

        A run is all dispatches, or only the one at index `only`.
        """
        steps = self._executor.steps if only is None else [self._executor.steps[only]]
        return self._timed(inputs, repeats, [steps * runs])[:, 0] / runs

    def settle(self, inputs: Sequence[Words]) -> bool:
        """Keeps a GPU busy until the times of two windows agree, since its clocks rise only under load. Whether they
        did within LONGEST seconds. On a software adapter it does nothing."""
        if self._executor.device.software or not self._executor.steps:
            return True
        before, end = math.inf, time.perf_counter() + LONGEST
        while time.perf_counter() < end:
            found = self.load(inputs, WINDOW)
            if abs(found - before) <= AGREEING * found:
                return True
            before = found
        return False

    def load(self, inputs: Sequence[Words], seconds: float, only: int | None = None) -> float:
        """Runs all dispatches, or the one at index `only`, without a pause for some seconds. Returns the median
        microseconds of a run. On a software adapter it does nothing."""
        if self._executor.device.software or not self._executor.steps:
            return 0.0
        runs = runs_within(_AT_ONCE, self.time_runs(inputs, 1, only=only)[-1])
        steps = self._executor.steps if only is None else [self._executor.steps[only]]
        end, found = time.perf_counter() + seconds, list[float]()
        with closing(self._passes(inputs, [steps * runs])) as passes:
            for (microseconds,) in passes:
                found.append(float(microseconds) / runs)
                if time.perf_counter() >= end:
                    break
        return float(np.median(found))

    def _timed(self, inputs: Sequence[Words], repeats: int, passes: Sequence[Sequence[Step]]) -> NDArray[np.float64]:
        """Microseconds of compute passes, shape (repeats, passes)."""
        found = self._passes(inputs, passes, repeats + 1) if passes else iter(())
        return np.array(list(found), np.float64).reshape(repeats, len(passes))

    def _passes(
        self, inputs: Sequence[Words], passes: Sequence[Sequence[Step]], most: int | None = None
    ) -> Generator[NDArray[np.float64]]:
        """Submits compute passes again and again, at most so often, and each time before the last ones have ended.
        Yields their microseconds, without those of the first ones: they wait for the upload, which Dawn's timestamps
        include."""
        device, waiting = self._executor.device, deque[Callable[[], NDArray[np.float64]]]()
        with self._executor.measuring(inputs), timestamps(device, len(passes)) as stamps:
            try:
                for turn in itertools.count() if most is None else range(most):
                    encoder = device.wgpu.create_command_encoder()
                    for number, steps in enumerate(passes):
                        record_pass(encoder, steps, timestamp_writes=stamps.around(number))
                    waiting.append(stamps.submit(encoder))
                    if turn == 1:
                        waiting.popleft()()
                    elif turn > 1:
                        yield waiting.popleft()()
            finally:
                last = [finish() for finish in waiting]
            yield from last
