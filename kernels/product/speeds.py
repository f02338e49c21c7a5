"""How fast tiles are on a GPU with matrix units, so that a rule can choose between units and packed dot products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Tile(Protocol):
    """What a choice asks of `gemm.Tile` and `units.UnitTile`."""

    @property
    def m(self) -> int:
        """Rows of the result a workgroup makes."""

    @property
    def n(self) -> int:
        """Channels a workgroup makes."""

    def bytes_along(self, vectors: int) -> int:
        """Bytes of k that a workgroup multiplies along `vectors` vectors of it, padding included."""

    def groups(self, rows: int, channels: int) -> int:
        """Workgroups of a result."""


@dataclass(frozen=True)
class Speed:
    """How fast a tile is.

    Attributes:
        at_once: workgroups that run at a time.
        together: TOPS of so many in their loops over k; of dot products, in short ones (a large product reaches 100).
        alone: TOPS of one of them while few others run.
        rest: microseconds that they take for the rest.
        residual: microseconds more where an int8 residual joins; larger tiles of units take more registers for it.
    """

    at_once: int
    together: float
    alone: float
    rest: float
    residual: float

    def microseconds(self, groups: int, work: float, joined: bool) -> float:
        """Of a call.

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
"""By a tile's name, on an NVIDIA H200: fitted to the layers of ResNet-50, MobileNetV2, ViT-B/16 and two networks of 3x3
convolutions at batch 1 and 32 and to square products, so that what `fastest` chooses takes, added up by network, a
sixteenth more than the fastest tiles at most. Residuals, and few words along k (images of one channel, 16 to 32
channels), were fitted once more after rounding by additions, to single layers; dot products to those alone. Layers were
timed with their operands in the cache, where few large workgroups look better than they are in a network: what was not
faster there (tiles of 96x128) is left out."""


def fastest(sizes: tuple[int, int, int], tiles: Mapping[str, Tile], joined: bool) -> str:
    """The name of the tile for (rows, channels, words along k), of those whose speed is known; where `joined`, an int8
    residual joins."""
    rows, channels, words = sizes

    def microseconds(name: str) -> float:
        tile = tiles[name]
        work = 2e-6 * tile.m * tile.n * tile.bytes_along(-(-words // 4))
        return SPEEDS[name].microseconds(tile.groups(rows, channels), work, joined)

    return min((name for name in tiles if name in SPEEDS), key=microseconds)
