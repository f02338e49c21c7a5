"""The GPU times of a program's runs and dispatches, by timestamp queries."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.executor import Executor, Words
from q8ta_wgpu.runtime.recording import Step, record_pass
from q8ta_wgpu.runtime.timestamps import FASTER, SLOWEST, SPIN_UP, runs_within, timestamps

_AT_ONCE = 1000.0
"""Microseconds of the runs that are submitted at a time until clocks have risen."""


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

    def spin_up(
        self, inputs: Sequence[Words], seconds: float = SPIN_UP, most: float = SLOWEST, only: int | None = None
    ) -> None:
        """Runs all dispatches, or the one at index `only`, until a GPU's clocks have risen: until runs have not become
        faster for `seconds`, or for `most` seconds in all. On a software adapter it does nothing."""
        if self._executor.device.software or not self._executor.steps:
            return
        runs = runs_within(_AT_ONCE, self.time_runs(inputs, 2, only=only)[-1])
        best, start = math.inf, time.perf_counter()
        risen = start
        while (now := time.perf_counter()) - risen < seconds and now - start < most:
            found = float(self.time_runs(inputs, 3, runs, only=only).min())
            if found < FASTER * best:
                best, risen = found, time.perf_counter()

    def _timed(self, inputs: Sequence[Words], repeats: int, passes: Sequence[Sequence[Step]]) -> NDArray[np.float64]:
        """Microseconds of compute passes, shape (repeats, passes)."""
        device, microseconds = self._executor.device, np.zeros((repeats, len(passes)))
        with self._executor.measuring(inputs):
            if not passes:
                return microseconds
            with timestamps(device, len(passes)) as stamps:
                for i in range(-1, repeats):  # the first run waits for the upload, which Dawn's timestamps include
                    encoder = device.wgpu.create_command_encoder()
                    for number, steps in enumerate(passes):
                        record_pass(encoder, steps, timestamp_writes=stamps.around(number))
                    microseconds[max(i, 0)] = stamps.submit(encoder)
        return microseconds
