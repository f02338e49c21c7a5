"""The result of `session.time`: times of every dispatch and of whole runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import DeviceError, InputError, counted, is_integer, shown
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.program.program import Dispatch, Program
from q8ta_wgpu.progress import bar

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.device import Device
    from q8ta_wgpu.runtime.executor import Executor


Times = NDArray[np.float64]

MAX_REPEATS = 100_000
"""Limit of runs in `Session.time`: they take hours on the fastest GPU, and their times still fit into memory."""


@dataclass(frozen=True)
class Timing:
    """GPU times of a program's dispatches; `print` it for a table.

    Attributes:
        device: adapter name.
        program: the program that ran.
        samples: microseconds, shape (repeats, dispatches), each dispatch in a compute pass of its own.
        runs: microseconds, shape (repeats,), of all dispatches in one pass, as a call runs them.
        dot_rate: measured rate of packed dot products on the adapter, in 10^9 operations per second (2 for each
            multiply-accumulate); 0 if it could not be measured.
        copy_rate: measured copy bandwidth of the adapter, in 10^9 bytes read and written per second; 0 likewise.
        settled: whether times had stopped changing before these were measured.
    """

    device: str
    program: Program
    samples: Times
    runs: Times
    dot_rate: float = 0.0
    copy_rate: float = 0.0
    settled: bool = True

    @property
    def medians(self) -> NDArray[Any]:
        """Median microseconds of each dispatch, shape (dispatches,)."""
        return np.asarray(np.median(self.samples, axis=0))

    @property
    def total_ms(self) -> float:
        """Median over runs of the sum of all dispatches' times, in milliseconds."""
        return float(np.median(self.samples.sum(axis=1)) / 1e3)

    @property
    def run_ms(self) -> float:
        """Median time from a run's first dispatch to the end of its last, in milliseconds."""
        return float(np.median(self.runs) / 1e3)

    def __str__(self) -> str:
        medians, dispatches = self.medians, self.program.dispatches
        whole = max(float(medians.sum()), 1e-9)
        times = f"{self.run_ms:.3f} ms GPU time a run, {self.total_ms:.3f} ms one by one"
        lines = [f"{self.device}: {times}, {counted(len(dispatches), 'dispatch', 'dispatches')}"]
        measured = [
            f"{name} {rate:.1f} {unit}"
            for name, rate, unit in (
                ("packed dot", self.dot_rate, "GOP/s"),
                ("copy", self.copy_rate, "GB/s"),
            )
            if rate
        ]
        if not self.settled:
            lines.append("times still changed when these were measured: other work on the device, or clocks that vary")
        if measured:
            lines.append(f"measured here: {', '.join(measured)}")
        titles = f"{'us':>9} {'of sum':>6} {'GB/s':>8} {'of copy':>7} {'GOP/s':>8} {'of dot':>6}"
        width = max([26, *(len(d.kernel) for d in dispatches)])
        lines.append(f"{'kernel':<{width}} {titles}  layouts, value")
        for d, us in zip(dispatches, medians, strict=True):
            layouts = f"{' '.join(d.layouts[:-1])} -> {d.layouts[-1]}"
            row = self._row(float(us), [d], f"{us / whole:.1%}")
            lines.append(f"{d.kernel:<{width}} {row}  {layouts}, {d.described}")
        lines.append(f"{'a whole run':<{width}} {self._row(1e3 * self.run_ms, dispatches, '')}".rstrip())
        return "\n".join((*lines, _LEGEND))

    def _row(self, us: float, dispatches: Sequence[Dispatch], of_sum: str) -> str:
        """A table row: time, share of the sum of all times, and rates with their shares of the adapter's rates."""
        us = max(us, 1e-3)
        moved, macs = sum(d.moved for d in dispatches), sum(d.macs for d in dispatches)
        on_units = {self.program.on_matrix_units(d) for d in dispatches if d.macs}
        bandwidth, rate = moved / us / 1e3, 2e-3 * macs / us
        cells = [
            f"{us:>9.1f} {of_sum:>6} {bandwidth:>8.1f}",
            f"{_share(bandwidth, self.copy_rate):>7}",
            f"{rate:>8.1f}" if macs else " " * 8,
            f"{_share(rate, self.dot_rate) if on_units == {False} else '':>6}",
        ]
        return " ".join(cells)


_LEGEND = """\
us: median microseconds of a dispatch by itself; of sum: its share of all of them. GB/s: each operand read and the
result written once; GOP/s: 2 operations for each multiply-accumulate. of copy, dot: share of the rate measured
here. More than 100 %: data stays in a cache, which is faster than memory, or products need no packed dot."""


def _share(rate: float, measured: float) -> str:
    """A rate as a share of the adapter's measured one; empty if that was not measured."""
    return f"{rate / measured:.1%}" if measured else ""


def check_counts(repeats: object, warmup: object) -> None:
    """Raises InputError unless these are numbers of runs that can be measured."""
    counts = ((repeats, 1), (warmup, 0))
    if not all(is_integer(count) and least <= count <= MAX_REPEATS for count, least in counts):
        raise InputError(
            f"repeats must be an integer of at least 1 and warmup one of at least 0, both at most {MAX_REPEATS}, "
            f"found {shown(repeats)} and {shown(warmup)}"
        )


def measured(executor: Executor, words: Sequence[Array], repeats: int, warmup: int) -> Timing:
    """Times of each dispatch and of whole runs, once they have settled and after warm-up runs."""
    from q8ta_wgpu.runtime.stopwatch import Stopwatch

    device, watch = executor.device, Stopwatch(executor)
    watch.time_runs(words, 1)  # the first run has a bar of its own where it compiles
    with bar("timing") as update:
        update(0, 0, "until times agree")
        settled, runs = watch.settled_runs(words, warmup + repeats)
        update(0, 0, f"{counted(repeats, 'run')}")
        samples = watch.time_dispatches(words, warmup + repeats)[warmup:]
        return Timing(device.name, executor.program, samples, runs[warmup:], *_rates(device), settled)


def _rates(device: Device) -> tuple[float, float]:
    """A device's rates of packed dot products and copies, as in `Timing`; 0 if one cannot be measured."""
    dot = copy = 0.0
    with contextlib.suppress(DeviceError):
        dot = device.dot_rates.packed
    with contextlib.suppress(DeviceError):
        copy = device.copy_rate
    return dot, copy
