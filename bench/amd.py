"""What AMD's compiler makes of the kernels, family by family. No AMD GPU is needed, and none was run.

The families that Mesa knows are compiled one after another (testbed/radv.py). Debian 12's Mesa 22.3 knows those up to
RDNA 2. A newer Mesa need not be installed: unpack its packages, and name its two drivers in VK_DRIVER_FILES.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
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

SHOWN = ("q8ta_conv2d.pw_64x64", "q8ta_conv2d.pw_64x16", "q8ta_conv2d.pw_16x16", "q8ta_conv2d.implicit_64x16")
FILE = Path("docs/amd.json")


def part_amd(options: Options) -> None:
    """Prints a table by family, and writes it to docs/amd.json. `--names` chooses families."""
    found: dict[str, dict[str, object]] = {}
    for family in options.names or FAMILIES:
        try:
            rows = radv.compiled(family)
        except RuntimeError as error:
            print(f"{family:<10}  {error}")
            continue
        found[family] = summary(rows)
        print(f"{family:<10}  {FAMILIES.get(family, '')}: {found[family]}", flush=True)
    if not options.names:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def summary(rows: Sequence[radv.Row]) -> dict[str, object]:
    """Of all kernels of a family how many compile, how many spill, the fewest waves; of some kernels the figures."""
    good = [row for row in rows if "error" not in row]
    few = [row for row in good if row["waves"] < 4]
    return {
        "packed_dot": rows[0]["packed_dot"],
        "kernels": len(rows),
        "failed": len(rows) - len(good),
        "spilled": sum(bool(row["spilled"] or row["spilled_sgprs"] or row["scratch"]) for row in good),
        "below_four_waves": len(few),
        "largest_lds": max(row["lds"] for row in good),
        "largest_code": max(row["code"] for row in good),
        **{
            row["kernel"]: {name: row[name] for name in ("vgprs", "waves", "instructions", "lds", "code")}
            for row in good
            if row["kernel"] in SHOWN
        },
    }
