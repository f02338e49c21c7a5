"""Measured speeds of tiles on GPUs with matrix units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from q8ta_wgpu.ir.target import Target


@dataclass(frozen=True)
class Speed:
    """How fast a tile is.

    Attributes:
        at_once: workgroups that run at the same time.
        together: TOPS of that many workgroups in their loops over k. For dot products it is that of short loops (a
            large product reaches 100).
        alone: TOPS of one workgroup while few others run.
        rest: microseconds outside of the loop over k.
        residual: additional microseconds with an int8 residual: large tiles of matrix units need more registers for it.
    """

    at_once: int
    together: float
    alone: float
    rest: float
    residual: float

    def microseconds(self, groups: int, work: float, residual: bool, halves_per_row: int = 1) -> float:
        """The expected microseconds of a call.

        Args:
            groups: number of workgroups.
            work: million operations of a workgroup. A multiply-accumulate counts as two.
            residual: whether the epilogue reads an int8 residual.
            halves_per_row: rows of the product for a row of the result: 1, or 2 for int16.
        """
        rest = (self.rest + (self.residual if residual else 0.0)) / halves_per_row
        waves, left = divmod(groups, self.at_once)
        last = left * work / min(left * self.alone, self.together) + rest if left else 0.0
        return waves * (self.at_once * work / self.together + rest) + last


def _read(path: Path) -> tuple[str, Mapping[str, Speed]]:
    """(text that the names of a family's adapters contain, speeds by tile) of a file. A speed has the fields of `Speed`
    in order."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["adapter"], {name: Speed(*numbers) for name, numbers in content["tiles"].items()}


FAMILIES: Mapping[str, Mapping[str, Speed]] = dict(map(_read, sorted(Path(__file__).parent.glob("families/*.json"))))
"""Speeds by tile for every family of adapters that was measured. Each has a file in `families/`."""

H200 = "NVIDIA H200"
SPEEDS = FAMILIES[H200]
"""Speeds on an NVIDIA H200. They also serve adapters that were not measured.

They were fitted to the layers of ResNet-50, MobileNetV2, ViT-B/16 and two networks of 3x3 convolutions at batch 1 and
32, and to square products. In each network the choices by them take at most a sixteenth more than the fastest
tiles. Residuals and few words along k (images of one channel, 16 to 32 channels) were fitted again to single layers,
after rounding by additions was introduced; dot products were fitted to single layers only. Layers were timed with their
operands in the cache, where few large workgroups look better than in a network. Tiles that were not faster (96x128) are
left out. `units_128x16` and `units_128x32` were fitted to layers of four networks on an H100: a U-Net's products take
147 microseconds at batch 8, 170 before, 146 by the fastest tiles."""


def family(adapter: str) -> str:
    """The name of the family that an adapter belongs to, by the adapter's name; '' if none."""
    return next((name for name in FAMILIES if name.lower() in adapter.lower()), "")


def known(target: Target) -> bool:
    """Whether the rules that choose kernels were measured on the target: on its family of adapters, or in software."""
    return not target.shares_memory or bool(family(target.name))
