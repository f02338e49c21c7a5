"""Measures compute passes by timestamp queries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.engine import RESOLVE
from q8ta_wgpu.runtime.pipelines import OpenDevice

SPIN_UP = 0.5
"""Seconds of work before a GPU is timed: clocks rise only under load (an H200 idles at 345 of 1,980 MHz)."""


def runs_within(microseconds: float, one: float) -> int:
    """The number of runs that take about `microseconds`, where a run takes `one`: 1 to 100."""
    return int(np.clip(microseconds / max(one, 1.0), 1, 100))


class Timestamps:
    """A pair of timestamps for each of several compute passes. `timestamps` makes it."""

    def __init__(self, device: OpenDevice, passes: int, queries: Any, resolved: Any) -> None:
        self._device = device
        self._passes = passes
        self._queries = queries
        self._resolved = resolved
        self._period = device.engine.timestamp_period(device.wgpu)

    def around(self, number: int) -> dict[str, Any]:
        """The `timestamp_writes` argument of `begin_compute_pass` for pass `number`."""
        first, last = "beginning_of_pass_write_index", "end_of_pass_write_index"
        return {"query_set": self._queries, first: 2 * number, last: 2 * number + 1}

    def submit(self, encoder: Any) -> Callable[[], NDArray[np.float64]]:
        """Submits the recorded commands. Returns the function that waits for them, and gives the microseconds of every
        pass, shape (passes,). Others may be submitted before."""
        encoder.resolve_query_set(self._queries, 0, 2 * self._passes, self._resolved, 0)
        self._device.wgpu.queue.submit([encoder.finish()])
        read = self._device.reading(self._resolved, 16 * self._passes)

        def finish() -> NDArray[np.float64]:
            ticks = np.frombuffer(read(), np.uint64).reshape(-1, 2)
            return (ticks[:, 1] - ticks[:, 0]).astype(np.float64) * self._period / 1e3

        return finish


@contextlib.contextmanager
def timestamps(device: OpenDevice, passes: int) -> Iterator[Timestamps]:
    """Timestamps for `passes` compute passes, on a device that has timestamp queries; freed at the end."""
    with contextlib.ExitStack() as resources:
        queries = device.wgpu.create_query_set(type="timestamp", count=2 * passes)
        resources.callback(queries.destroy)
        resolved = device.wgpu.create_buffer(size=16 * passes, usage=RESOLVE)
        resources.callback(resolved.destroy)
        yield Timestamps(device, passes, queries, resolved)
