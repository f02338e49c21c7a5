"""What AMD's compiler makes of the kernels, family by family. No AMD GPU is needed, and none was run.

The families that Mesa knows are compiled one after another (testbed/radv.py). Debian 12's Mesa 22.3 knows those up to
RDNA 2. A newer Mesa need not be installed: unpack its packages, and name its two drivers in VK_DRIVER_FILES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import origin, write
from bench.options import Options
from q8ta_wgpu.kernels.lib.thresholds import PADDED
from q8ta_wgpu.kernels.product.gemm import TILES
from testbed import radv

FAMILIES = {
    "vega10": "GCN 5",
    "renoir": "GCN 5, APUs",
    "navi10": "RDNA 1",
    "navi23": "RDNA 2",
    "rembrandt": "RDNA 2, APUs",
    "navi31": "RDNA 3",
    "phoenix": "RDNA 3, APUs",
    "gfx1150": "RDNA 3.5, APUs",
    "gfx1201": "RDNA 4",
}
"""Names of families as Mesa knows them, and what they are called."""

SHOWN = ("64x64", "64x16", "16x16")
"""Tiles of the pointwise convolution whose registers, waves and instructions are shown."""

COLUMNS = (
    "family",
    "is",
    "packed dots",
    "kernels",
    "failed",
    "spilled",
    "below 4 waves",
    *(f"{tile}: registers, waves, instructions" for tile in SHOWN),
    "most LDS",
    "most code",
    "element",
)
"""`element` is the time of an element of the result, by tile, as `estimated`."""


def part_amd(options: Options) -> None:
    """Prints a table, and writes docs/amd.json. `--names` chooses families, and writes nothing."""
    found = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for family in options.names or FAMILIES:
        try:
            found.append(cells(family, radv.compiled(family)))
            print(f"| {' | '.join(map(str, found[-1]))} |", flush=True)
        except RuntimeError as error:
            print(f"| {family} | {error} |")
    if not options.names:
        now = origin("python -m bench amd", "RADV's null device")
        write(Path("docs/amd.json"), {**now, "columns": COLUMNS, "rows": found}, "rows")


def cells(family: str, rows: Sequence[radv.Row]) -> list[object]:
    """The cells of a family's row, by COLUMNS. Fewer than four waves of a SIMD hide little of what memory takes."""
    good = [row for row in rows if "error" not in row]
    by_name = {row["kernel"]: row for row in good}
    shown = [by_name[f"q8ta_conv2d.pw_{tile}"] for tile in SHOWN]
    return [
        family,
        FAMILIES.get(family, ""),
        "yes" if rows[0]["packed_dot"] else "no",
        len(rows),
        len(rows) - len(good),
        sum(bool(row["spilled"] or row["spilled_sgprs"] or row["scratch"]) for row in good),
        sum(row["waves"] < 4 for row in good),
        *(f"{row['vgprs']}, {row['waves']}, {row['instructions']}" for row in shown),
        f"{max(row['lds'] for row in good) >> 10} KiB",
        f"{max(row['code'] for row in good) >> 10} KiB",
        estimated(by_name),
    ]


def estimated(rows: Mapping[str, radv.Row]) -> dict[str, float]:
    """The time of an element of the result in each of the large tiles, beside 64x64's, as PADDED has it: by the
    compiler's inverse throughput, a geometric mean of pointwise and of implicit convolutions."""
    tiles = {label: TILES[label] for label in PADDED}

    def element(label: str, method: str) -> float:
        tile = tiles[label]
        return float(rows[f"q8ta_conv2d.{method}_{label}"]["cycles"]) * tile.threads / (tile.m * tile.n)

    def mean(label: str) -> float:
        return math.sqrt(element(label, "pw") * element(label, "implicit"))

    return {label: round(mean(label) / mean("64x64"), 2) for label in tiles}
