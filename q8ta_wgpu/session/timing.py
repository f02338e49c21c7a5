"""Times: what opening a session took, and what `session.time` measured, per dispatch and as a whole."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.program.program import Program

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.device import Device


@dataclass(frozen=True)
class Opening:
    """Seconds that opening a session took.

    Attributes:
        device: opening and measuring the adapter and checking its arithmetic, where no session had done so.
        scheduling: layouts, kernels, WGSL, packed weights.
        loading: compiling pipelines, making buffers, uploading weights, binding.
    """

    device: float = 0.0
    scheduling: float = 0.0
    loading: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.device + self.scheduling + self.loading

    def __str__(self) -> str:
        return (
            f"device {1e3 * self.device:.0f} ms, scheduling {1e3 * self.scheduling:.0f} ms, "
            f"pipelines and buffers {1e3 * self.loading:.0f} ms"
        )


@dataclass(frozen=True)
class Timing:
    """GPU times of a program's dispatches.

    Attributes:
        device: adapter name.
        program: what ran.
        samples: microseconds, (repeats, dispatches), each dispatch in a compute pass of its own.
        runs: microseconds, (repeats,), of all dispatches in one pass, as a call runs them.
        dot_rate: the adapter's measured packed dot products, 10^9 operations (2 a multiply-accumulate) a second; 0
            where it could not be measured.
        copy_rate: the adapter's measured copy bandwidth, 10^9 bytes read and written a second; 0 likewise. A share of
            it may pass 100 %: what stays in a cache is faster than memory.
    """

    device: str
    program: Program
    samples: NDArray[np.float64]
    runs: NDArray[np.float64]
    dot_rate: float = 0.0
    copy_rate: float = 0.0

    @property
    def medians(self) -> NDArray[Any]:
        """Median microseconds of each dispatch."""
        return np.asarray(np.median(self.samples, axis=0))

    @property
    def total_ms(self) -> float:
        """Median over runs of the summed GPU time, milliseconds."""
        return float(np.median(self.samples.sum(axis=1)) / 1e3)

    @property
    def run_ms(self) -> float:
        """Median milliseconds from a run's first dispatch to the end of its last."""
        return float(np.median(self.runs) / 1e3)

    def __str__(self) -> str:
        medians, dispatches = self.medians, self.program.dispatches
        whole = max(float(medians.sum()), 1e-9)
        times = f"{self.run_ms:.3f} ms GPU time a run, {self.total_ms:.3f} ms one by one"
        lines = [f"{self.device}: {times}, {len(dispatches)} dispatches"]
        if self.dot_rate and self.copy_rate:
            lines.append(f"measured here: packed dot {self.dot_rate:.1f} GOP/s, copy {self.copy_rate:.1f} GB/s")
        titles = f"{'us':>9} {'share':>6} {'GB/s':>8} {'of copy':>7} {'GOP/s':>8} {'of dot':>6}"
        width = max([26, *(len(d.kernel) for d in dispatches)])
        lines.append(f"{'kernel':<{width}} {titles}  layouts, value")
        for d, us in zip(dispatches, medians, strict=True):
            layouts = f"{' '.join(d.layouts[:-1])} -> {d.layouts[-1]}"
            lines.append(
                f"{d.kernel:<{width}} {self._row(float(us), whole, d.moved, d.macs)}  {layouts}, {d.described}"
            )
        moved, macs = sum(d.moved for d in dispatches), sum(d.macs for d in dispatches)
        run = 1e3 * self.run_ms
        lines.append(f"{'a whole run':<{width}} {self._row(run, whole, moved, macs)}")
        return "\n".join(lines)

    def _row(self, us: float, whole: float, moved: int, macs: int) -> str:
        """Time, share of the times one by one, and rates with their shares of what the adapter reaches."""
        us = max(us, 1e-3)
        bandwidth, rate = moved / us / 1e3, 2e-3 * macs / us
        of_copy = f"{bandwidth / self.copy_rate:>7.1%}" if self.copy_rate else " " * 7
        dot = f"{rate:>8.1f}" if macs else " " * 8
        of_dot = f"{rate / self.dot_rate:>6.1%}" if macs and self.dot_rate else " " * 6
        return f"{us:>9.1f} {us / whole:>6.1%} {bandwidth:>8.1f} {of_copy} {dot} {of_dot}"


def rates(device: Device) -> tuple[float, float]:
    """Packed dot products and copy bandwidth of a device; 0 for what cannot be measured, which is no reason to fail."""
    dot = copy = 0.0
    with contextlib.suppress(DeviceError):
        dot = device.dot_rates.packed
    with contextlib.suppress(DeviceError):
        copy = device.copy_rate
    return dot, copy
