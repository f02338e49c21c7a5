"""The GPU times of a program's runs and dispatches, by timestamp queries."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.executor import Executor, Words
from q8ta_wgpu.runtime.recording import Step, record_pass
from q8ta_wgpu.runtime.timestamps import runs_within, timestamps

AT_ONCE = 5e3
"""Microseconds of the runs that are submitted at a time while clocks rise. The next ones are recorded meanwhile."""

WINDOW, AGREEING, LONGEST = 0.4, 0.02, 6.0
"""Seconds of a window; share by which medians of two in a row may differ; limit of seconds until they do."""


class Settling:
    """Tells from the times of runs without a pause whether clocks still rise: until the medians of two windows agree.

    Attributes:
        settled: whether they do.
        done: whether they do, or LONGEST seconds have passed.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.settled = self.done = False
        self._now, self._window, self._before = now, list[float](), math.inf
        self._began = self._opened = now()

    def add(self, microseconds: float) -> None:
        """Takes the time of the next run."""
        self._window.append(microseconds)
        if (now := self._now()) - self._opened < WINDOW:
            return
        median = float(np.median(self._window))
        self.settled = abs(median - self._before) <= AGREEING * median
        self.done = self.settled or now - self._began >= LONGEST
        self._before, self._opened = median, now
        self._window.clear()


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

    def settled_runs(self, inputs: Sequence[Words], repeats: int) -> tuple[bool, NDArray[np.float64]]:
        """Whether times have settled, and the microseconds of so many runs after that, shape (repeats,).

        A GPU's clocks rise only under load, and fall in pauses: an H100 timed ResNet-50 at 2.66 ms after half a second
        of runs with an upload before each, at 1.56 later. So not even an upload is between the load and what is
        measured. A run that takes a whole window is a load itself, and on a software adapter there is nothing to wait
        for."""
        steps, first = self._executor.steps, self.time_runs(inputs, 1)[-1]
        settling = Settling()
        if self._executor.device.software or not steps or first >= 1e6 * WINDOW:
            settling.settled = settling.done = True
        runs = runs_within(AT_ONCE, first)

        def passes() -> Iterator[Sequence[Sequence[Step]]]:
            while not settling.done:
                yield [steps * runs]
            yield from itertools.repeat([steps], repeats)

        found = list[float]()
        for (microseconds,) in self._passes(inputs, passes()):
            found.append(float(microseconds))
            if not settling.done:
                settling.add(found[-1] / runs)
        return settling.settled, np.array(found[len(found) - repeats :])

    def _timed(self, inputs: Sequence[Words], repeats: int, passes: Sequence[Sequence[Step]]) -> NDArray[np.float64]:
        """Microseconds of compute passes, shape (repeats, passes)."""
        found = self._passes(inputs, itertools.repeat(passes, repeats)) if passes else iter(())
        return np.array(list(found), np.float64).reshape(repeats, len(passes))

    def _passes(
        self, inputs: Sequence[Words], submissions: Iterable[Sequence[Sequence[Step]]]
    ) -> Iterator[NDArray[np.float64]]:
        """Submits compute passes, each time before the last ones have ended. Yields their microseconds. The first ones
        are submitted twice, and timed the second time: they wait for the upload, which Dawn's timestamps include."""
        device, waiting = self._executor.device, deque[Callable[[], NDArray[np.float64]]]()
        turns = iter(submissions)
        first = next(turns)
        with self._executor.measuring(inputs), timestamps(device, len(first)) as stamps:
            try:
                for turn, passes in enumerate(itertools.chain([first, first], turns)):
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
