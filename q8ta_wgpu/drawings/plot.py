"""Measured times as a figure: the longest dispatches, and how near each comes to the adapter's measured rates."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from q8ta_wgpu.errors import UnsupportedError, counted
from q8ta_wgpu.program.program import Dispatch
from q8ta_wgpu.session.timing import Timing
from q8ta_wgpu.writing import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST = 24
"""Number of bars."""

_ON_UNITS = "#cc79a7"
"""Colour of matrix units and of dispatches on them."""


def plot(timing: Timing, path: Path) -> None:
    """Draws a figure into a file with an ending that matplotlib knows (.svg, .png, .pdf).

    Left are the longest dispatches. Right is a roofline (Williams, Waterman and Patterson 2009). Dispatches that
    multiply are drawn by rate over operations a byte, below what the measured copy bandwidth, dot products and matrix
    units allow. Those that only move bytes are drawn by bandwidth over bytes, below the bandwidth of a copy. Data in
    caches can pass both lines.

    Raises UnsupportedError without matplotlib, InputError where the file cannot be written.
    """
    figure = empty_figure()
    parts = figure.subplot_mosaic([["bars", "roof"], ["bars", "moves"]], width_ratios=[1.1, 1])
    count = counted(len(timing.program.dispatches), "dispatch", "dispatches")
    figure.suptitle(f"{timing.device}: {timing.run_ms:.3f} ms a run, {count}")
    timed = list(zip(timing.program.dispatches, np.maximum(timing.medians, 1e-3).tolist(), strict=True))
    _bars(parts["bars"], timed)
    _roofline(parts["roof"], [(d, us) for d, us in timed if d.macs], timing)
    _moves(parts["moves"], [(d, us) for d, us in timed if not d.macs], timing)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=110)
    write(path, drawn.getvalue())


def empty_figure() -> Figure:
    """A figure to draw on. Raises UnsupportedError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UnsupportedError('a plot needs matplotlib: pip install "q8ta-wgpu[show]"') from error
    return Figure(figsize=(14, 8), layout="constrained")


def _bars(axes: Axes, timed: list[tuple[Dispatch, float]]) -> None:
    longest = sorted(timed, key=lambda pair: -pair[1])[:_LONGEST][::-1]
    axes.barh(range(len(longest)), [us for _, us in longest], color="#0072b2")
    names = [f"{d.kernel}  {d.value}" for d, _ in longest]
    axes.set_yticks(
        range(len(longest)), names, fontsize=7, parse_math=False
    )  # names in a file may contain dollar signs
    rest = sum(us for _, us in timed) - sum(us for _, us in longest)
    axes.set_title(f"the {len(longest)} longest dispatches" + (f" ({rest:.0f} us in others)" if rest > 0 else ""))
    axes.set_xlabel("microseconds (median)")


def _roofline(axes: Axes, timed: list[tuple[Dispatch, float]], timing: Timing) -> None:
    intensity = [2 * d.macs / d.moved for d, _ in timed]
    if timed:
        colours = [_ON_UNITS if timing.program.on_matrix_units(d) else "#0072b2" for d, _ in timed]
        axes.scatter(intensity, [2e-3 * d.macs / us for d, us in timed], s=14, color=colours, zorder=3)
        axes.set(xscale="log", yscale="log")
    roofs = (("packed dot", timing.dot_rate, "#d55e00"), ("matrix units", timing.unit_rate, _ON_UNITS))
    if found := [roof for roof in roofs if timed and roof[1] and timing.copy_rate]:
        ridges = [rate / timing.copy_rate for _, rate, _ in found]
        ends = min([min(ridges) / 8, *intensity]), max([max(ridges) * 8, *intensity])
        x = np.geomspace(*ends, 200)
        for name, rate, colour in found[::-1]:  # the lower one last, on top
            axes.plot(x, np.minimum(x * timing.copy_rate, rate), color=colour)
            axes.text(ends[1], rate, f"{name} {rate:.0f} GOP/s", ha="right", va="bottom")
        axes.text(ends[0], ends[0] * timing.copy_rate, f"  copy {timing.copy_rate:.1f} GB/s", ha="left", va="top")
    axes.set(title="products: rate over operations a byte")
    axes.set(xlabel="operations a byte moved", ylabel="10^9 operations a second")
    axes.grid(alpha=0.3)


def _moves(axes: Axes, timed: list[tuple[Dispatch, float]], timing: Timing) -> None:
    if timed:
        axes.scatter([d.moved for d, _ in timed], [1e-3 * d.moved / us for d, us in timed], s=14, color="#009e73")
        axes.set(xscale="log", yscale="log")
    if timing.copy_rate:
        axes.axhline(timing.copy_rate, color="#d55e00")
    axes.set(title="the others: bandwidth over bytes", xlabel="bytes read and written", ylabel="10^9 bytes a second")
    axes.grid(alpha=0.3)
