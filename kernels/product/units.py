"""Tiles of the int8 matrix product on matrix units (tensor cores): kernels/product/gemm_units.wgsl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.target import MatrixUnit, Target

UNITS = "gemm_units"


@dataclass(frozen=True)
class UnitTile:
    """How a workgroup shares a matrix product on matrix units. It has the methods of `gemm.Tile`.

    Attributes:
        unit: the shape of the matrix product that a matrix unit computes at a time.
        subgroups_m, subgroups_n: subgroups along rows and along channels.
        fragments_m, fragments_n: matrices of sums that a subgroup makes, along rows and along channels.
        step: vectors of 16 int8 along k that are loaded to workgroup memory at a time.
        halves: rows of the product for a row of the result: 1, or 2 for int16.
        parts: columns of the product for a channel: 1, or 2 for weights of 4 bits.
    """

    unit: MatrixUnit
    subgroups_m: int
    subgroups_n: int
    fragments_m: int
    fragments_n: int
    step: int = 4
    body: str = UNITS
    split: int = 1
    halves: int = 1
    parts: int = 1

    @property
    def source(self) -> tuple[str, ...]:
        """WGSL to link: its file, and stems that the linker chooses by the target."""
        return self.body, "subgroup_matrix", "dot"

    @property
    def m(self) -> int:
        """Rows of the result that a workgroup makes."""
        return self.unit.m * self.fragments_m * self.subgroups_m // self.halves

    @property
    def n(self) -> int:
        """Channels that a workgroup makes."""
        return self.columns // self.parts

    @property
    def columns(self) -> int:
        """Columns of the product that a workgroup makes."""
        return self.unit.n * self.fragments_n * self.subgroups_n

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.unit.lanes * self.subgroups_m * self.subgroups_n

    @property
    def memory(self) -> int:
        """Bytes of workgroup memory, which holds rows of x and of w, and later the sums of each subgroup."""
        sums = self.subgroups_m * self.subgroups_n * self.unit.m * (self.unit.n * self.fragments_n // 4 + 2)
        return 16 * max((self.m * self.halves + self.columns) * (self.step + 1), sums)

    @property
    def constants(self) -> dict[str, int]:
        """The constants of kernels/product/gemm_units.wgsl."""
        names = ("subgroups_m", "subgroups_n", "fragments_m", "fragments_n", "step", "halves", "parts")
        found = {name.upper(): getattr(self, name) for name in names}
        unit = {f"UNIT_{name}": getattr(self.unit, name.lower()) for name in "MNK"}
        return {**found, **unit, "LANES": self.unit.lanes, "SPLIT": self.split}

    def fits(self, target: Target) -> bool:
        """Whether a target has the unit."""
        return self.unit in target.matrix_units

    def unrolled(self, target: Target) -> bool:
        """Whether the linker unrolls its loops: always, since sums would leave registers otherwise."""
        return True

    def at_depth(self, vectors: int) -> UnitTile:
        """The tile with a shorter step, if k has only `vectors` vectors. A step has whole products of the unit."""
        half = replace(self, step=self.step // 2)
        suffices = half.step >= max(vectors, 1) and half.step % (self.unit.k // 16) == 0
        return half.at_depth(vectors) if suffices and half.is_shared() else self

    def is_shared(self) -> bool:
        """Whether threads can share the work evenly. In a step each loads equally many vectors of x, and equally often
        from w, or some threads load from w once and the others never. At the end a subgroup computes whole rows."""
        x, w = self.step * self.m, self.step // self.parts * self.n
        rows_at_once = self.unit.lanes // (self.unit.n * self.fragments_n // self.parts // 4)
        whole = self.unit.m // self.halves % rows_at_once == 0
        return x % self.threads == 0 and (w % self.threads == 0 or self.threads % w == 0) and whole

    def steps(self, vectors: int) -> int:
        """The number of steps along `vectors` vectors of k."""
        return -(-vectors // self.step)

    def turns(self, vectors: int) -> int:
        """`Kernel.turns` for `vectors` vectors of k: one for each step, since all other loops are unrolled."""
        return self.at_depth(vectors).steps(vectors)

    def groups(self, rows: int, channels: int) -> int:
        """The number of workgroups for a result."""
        return -(-rows // self.m) * -(-channels // self.n)

    def pack(self, weight: NDArray[np.int8]) -> NDArray[np.uint32]:
        """A weight int8 (channels, bytes along k) as words in order (column tile, step, channel, vector of k), padded
        with 0."""
        channels, depth = weight.shape
        shortest = self.at_depth(-(-depth // 16))
        steps = shortest.steps(-(-depth // 16))
        more = -channels % self.n, steps * shortest.step * 16 - depth
        padded = np.pad(weight, ((0, more[0]), (0, more[1]))) if any(more) else weight
        split = padded.reshape(-1, self.n, steps, shortest.step * 16)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1).view("<u4")


NVIDIA = MatrixUnit(16, 16, 32, lanes=32)
"""The shape that NVIDIA's driver offers (m, n, k). It also offers 16 x 8 x 32, which is not faster."""

UNIT_TILES: Mapping[str, UnitTile] = {
    "units_160x128": UnitTile(NVIDIA, 2, 2, 5, 4),
    "units_128x128": UnitTile(NVIDIA, 2, 2, 4, 4),
    "units_128x64": UnitTile(NVIDIA, 2, 2, 4, 2),
    "units_128x32": UnitTile(NVIDIA, 4, 1, 2, 2),
    "units_128x16": UnitTile(NVIDIA, 4, 1, 2, 1),
    "units_64x64": UnitTile(NVIDIA, 2, 2, 2, 2),
    "units_64x64_deep": UnitTile(NVIDIA, 2, 2, 2, 2, step=8),
    "units_64x32_deep": UnitTile(NVIDIA, 2, 2, 2, 1, step=8),
    "units_32x32_deep": UnitTile(NVIDIA, 2, 2, 1, 1, step=16),
}
"""All tiles, named by the size of a workgroup's result. Those called `deep` have a longer step along k.

Each is worth something. By the speeds in `families/`, over the layers of 43 architectures at several batches, without
one of them the products of some network take 2.2 (`units_64x64_deep`) to 41 % longer (`units_128x16`); without
`units_64x64_deep` ResNet-50 at batch 32 took 0.3 and 3.5 % longer in two runs on an H100."""
