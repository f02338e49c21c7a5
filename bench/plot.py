"""Draws README's picture of whole networks here and in PyTorch CUDA, from the figures of one run."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from bench.networks import INT8
from bench.options import Options

DRAWN = {
    INT8: ("this library, int8", "#1f77b4"),
    "torch f32 compiled": ("PyTorch CUDA float32, compiled", "#bbbbbb"),
    "torch f16 compiled": ("PyTorch CUDA float16 (tensor cores), compiled", "#ff9d4d"),
}
"""The columns of the figures that are drawn, with label and colour."""

UNIT = "torch f32 compiled"
"""The column by which others are divided."""

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "networks.svg"


def part_plot(options: Options) -> None:
    """Draws docs/images/networks.svg from the JSON that `python -m bench networks torch` wrote."""
    figures = json.loads(options.figures.read_text(encoding="utf-8"))
    rows = [row for row in figures["rows"] if all(column in row for column in DRAWN)]
    batches = sorted({row["batch"] for row in rows})
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
        shown = [row for row in rows if row["batch"] == batch]
        for offset, (column, (label, colour)) in enumerate(DRAWN.items()):
            places = [i + (offset - 1) * 0.27 for i in range(len(shown))]
            shares = [row[column] / row[UNIT] for row in shown]
            bars = axes.barh(places, shares, 0.26, label=label, color=colour)
            axes.bar_label(bars, [f"{row[column]:.3g} ms" for row in shown], padding=2, fontsize=7)
        axes.set_yticks(range(len(shown)), [row["network"] for row in shown], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.set_title(f"batch {batch}", fontsize=9)
        axes.set_xlabel("GPU time, PyTorch's float32 being 1: less is better", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    style = {"ncols": len(DRAWN), "fontsize": 8, "title_fontsize": 9, "frameon": False}
    figure.legend(handles, labels, loc="outside upper center", title=figures["adapter"], **style)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})
    print(f"{PICTURE}")
