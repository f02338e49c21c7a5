"""Speeds of tiles on GPUs with matrix units. A rule uses them to choose between units and packed dot products."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from q8ta_wgpu.ir.target import Target


class Tile(Protocol):
    """The methods of `gemm.Tile` and `units.UnitTile` that the rule uses."""

    @property
    def m(self) -> int:
        """Rows of the result that a workgroup makes."""

    @property
    def n(self) -> int:
        """Channels that a workgroup makes."""

    def bytes_along(self, vectors: int) -> int:
        """Bytes of k that a workgroup multiplies along `vectors` vectors of it, padding included."""

    def groups(self, rows: int, channels: int) -> int:
        """Workgroups of a result."""


@dataclass(frozen=True)
class Speed:
    """How fast a tile is.

    Attributes:
        at_once: workgroups that run at a time.
        together: TOPS of that many in their loops over k; for dot products, in short loops (a large product reaches
            100).
        alone: TOPS of one workgroup while few others run.
        rest: microseconds for everything else.
        residual: additional microseconds with an int8 residual; larger tiles of units take more registers for it.
    """

    at_once: int
    together: float
    alone: float
    rest: float
    residual: float

    def microseconds(self, groups: int, work: float, joined: bool, parts: int = 1) -> float:
        """Expected microseconds of a call.

        Args:
            groups: its workgroups.
            work: million operations of each, two for a multiply-accumulate.
            joined: whether an int8 residual joins.
            parts: rows of the product that make one row of the result: 1, or 2 of int16.
        """
        rest = (self.rest + (self.residual if joined else 0.0)) / parts
        waves, left = divmod(groups, self.at_once)
        last = left * work / min(left * self.alone, self.together) + rest if left else 0.0
        return waves * (self.at_once * work / self.together + rest) + last


def _read(path: Path) -> tuple[str, Mapping[str, Speed]]:
    """A part of the names of a family's adapters, and the speeds by tile: the numbers of Speed in order."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["adapter"], {name: Speed(*numbers) for name, numbers in content["tiles"].items()}


FAMILIES: Mapping[str, Mapping[str, Speed]] = dict(map(_read, sorted(Path(__file__).parent.glob("families/*.json"))))
"""Speeds by tile of every family of adapters that was measured: a file each in `families/`."""

H200 = "NVIDIA H200"
SPEEDS = FAMILIES[H200]
"""Speeds on an NVIDIA H200, and the guess for others. They were fitted to the layers of ResNet-50, MobileNetV2,
ViT-B/16 and two networks of 3x3 convolutions at batch 1 and 32, and to square products. Added up by network, the
choices of `fastest` take at most a sixteenth more than the fastest tiles. Residuals, and few words along k (images of
one channel, 16 to 32 channels), were fitted again to single layers after rounding by additions; dot products only to
those. Layers were timed with their operands in the cache, where few large workgroups look better than in a network.
Tiles that were not faster there (96x128) are left out."""


def family(adapter: str) -> str:
    """The family that an adapter's name belongs to, or ''."""
    return next((name for name in FAMILIES if name.lower() in adapter.lower()), "")


def known(target: Target) -> bool:
    """Whether the rules that choose kernels were measured on the target's family of adapters, or on software."""
    return not target.shares_memory or bool(family(target.name))


SPLITTING = 24
"""Splitting rows of int16 into rows of int8 takes as long as products with so many channels more, on an H200."""


def fastest(
    sizes: tuple[int, int, int], tiles: Mapping[str, Tile], joined: bool, adapter: str = H200, parts: int = 1
) -> str:
    """The name of the fastest tile with a known speed for (rows, channels, words along k) on an adapter. `joined`: an
    int8 residual joins. `parts`: rows that make one of the result."""
    rows, channels, words = sizes
    speeds = FAMILIES.get(family(adapter), SPEEDS)

    def microseconds(name: str) -> float:
        tile = tiles[name]
        columns = tile.n + (SPLITTING if parts > 1 else 0)
        work = 2e-6 * tile.m * columns * tile.bytes_along(-(-words // 4))
        return speeds[name].microseconds(tile.groups(rows, channels), work, joined, parts)

    return min((name for name in tiles if name in speeds), key=microseconds)
