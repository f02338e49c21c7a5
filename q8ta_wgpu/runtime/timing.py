"""What `session.time` measured, per dispatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.program import Program


@dataclass(frozen=True)
class Timing:
    """GPU times of a program's dispatches.

    Attributes:
        device: adapter name.
        program: what ran.
        samples: microseconds, (repeats, dispatches), each dispatch in a compute pass of its own.
        runs: microseconds, (repeats,), of all dispatches in one pass, as a call runs them.
    """

    device: str
    program: Program
    samples: NDArray[np.float64]
    runs: NDArray[np.float64]

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
        medians, whole = self.medians, max(float(self.medians.sum()), 1e-9)
        count = len(self.program.dispatches)
        times = f"{self.run_ms:.3f} ms GPU time a run, {self.total_ms:.3f} ms one by one"
        lines = [f"{self.device}: {times}, {count} dispatches"]
        lines.append(f"{'kernel':<26} {'us':>9} {'share':>6} {'GB/s':>8} {'GOP/s':>8}  layouts, value")
        for d, us in zip(self.program.dispatches, medians, strict=True):
            us = max(float(us), 1e-3)
            layouts = f"{' '.join(d.layouts[:-1])} -> {d.layouts[-1]}"
            rate = f"{2e-3 * d.macs / us:>8.1f}" if d.macs else " " * 8
            lines.append(
                f"{d.kernel:<26} {us:>9.1f} {us / whole:>6.1%} {d.moved / us / 1e3:>8.1f} {rate}  {layouts}, {d.value}"
            )
        return "\n".join(lines)
