"""Speeds of tiles on a GPU with matrix units. A rule uses them to choose between units and packed dot products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


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

    def microseconds(self, groups: int, work: float, joined: bool) -> float:
        """Expected microseconds of a call.

        Args:
            groups: its workgroups.
            work: million operations of each, two for a multiply-accumulate.
            joined: whether an int8 residual joins.
        """
        rest = self.rest + (self.residual if joined else 0.0)
        waves, left = divmod(groups, self.at_once)
        last = left * work / min(left * self.alone, self.together) + rest if left else 0.0
        return waves * (self.at_once * work / self.together + rest) + last


SPEEDS: Mapping[str, Speed] = {
    "units_160x128": Speed(264, 561, 2.5, 8.1, 3.8),
    "units_128x128": Speed(264, 571, 2.5, 7.3, 2),
    "units_128x64": Speed(396, 413, 1.9, 4.4, 1.7),
    "units_128x32": Speed(528, 260, 2, 3.9, 0.5),
    "units_128x16": Speed(924, 120, 0.4, 4, 0.6),
    "units_64x64": Speed(528, 401, 0.9, 3.1, 0.9),
    "units_64x64_deep": Speed(528, 263, 2.2, 3.7, 1.3),
    "units_64x32_deep": Speed(792, 233, 1.5, 3.1, 0.3),
    "units_32x32_deep": Speed(1584, 107, 1, 2.6, 0.4),
    "64x64": Speed(1056, 85, 0.96, 4.4, 0.6),
    "128x32": Speed(924, 90, 0.5, 5.1, 0.6),
    "32x32": Speed(2376, 60, 0.16, 3.3, 0.3),
    "32x16": Speed(396, 39, 0.35, 3, 0.3),
    "16x16": Speed(660, 32, 0.26, 2.6, 0.3),
}
"""Speeds by tile on an NVIDIA H200. They were fitted to the layers of ResNet-50, MobileNetV2, ViT-B/16 and two networks
of 3x3 convolutions at batch 1 and 32, and to square products. Added up by network, the choices of `fastest` take at
most a sixteenth more than the fastest tiles. Residuals, and few words along k (images of one channel, 16 to 32
channels), were fitted again to single layers after rounding by additions; dot products only to those. Layers were timed
with their operands in the cache, where few large workgroups look better than in a network. Tiles that were not faster
there (96x128) are left out."""


def fastest(sizes: tuple[int, int, int], tiles: Mapping[str, Tile], joined: bool) -> str:
    """The name of the fastest tile with a known speed for (rows, channels, words along k). `joined`: an int8 residual
    joins."""
    rows, channels, words = sizes

    def microseconds(name: str) -> float:
        tile = tiles[name]
        work = 2e-6 * tile.m * tile.n * tile.bytes_along(-(-words // 4))
        return SPEEDS[name].microseconds(tile.groups(rows, channels), work, joined)

    return min((name for name in tiles if name in SPEEDS), key=microseconds)
