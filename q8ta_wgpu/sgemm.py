"""The tiled float32 matrix product behind matmul and linear: tile shapes, kernels and the choice among them.

y[m, n] = start(n) + sum over k of left[m, k] * right[k, n], for each batch. kernels/sgemm.wgsl says how a workgroup
shares the work; it is the register tiling that kernels/gemm.wgsl has for int8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from q8ta_wgpu.layout import Layout
from q8ta_wgpu.op import FLOAT, Call, Kernel, Params
from q8ta_wgpu.target import Target


@dataclass(frozen=True)
class Sizes:
    """A batched product: batches of (rows x depth) times (depth x columns)."""

    batches: int
    rows: int
    columns: int
    depth: int


SizesOf = Callable[[Call], Sizes]


@dataclass(frozen=True)
class Tile:
    """How a workgroup shares a matrix product.

    Attributes:
        threads_m, threads_n: threads along rows and along columns.
        rows, quads: quads of rows and of columns a thread makes; all threads must share the loads of a step evenly.
    """

    threads_m: int
    threads_n: int
    rows: int
    quads: int

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.threads_m * self.threads_n

    @property
    def constants(self) -> dict[str, int]:
        """The constants kernels/sgemm.wgsl is linked with."""
        return {
            "THREADS_M": self.threads_m,
            "THREADS_N": self.threads_n,
            "ROWS": self.rows,
            "QUADS": self.quads,
        }

    def groups(self, sizes: Sizes) -> int:
        """Workgroups of a result."""
        m, n = 4 * self.threads_m * self.rows, 4 * self.threads_n * self.quads
        return sizes.batches * -(-sizes.rows // m) * -(-sizes.columns // n)


TILES: Mapping[str, Tile] = {
    "64x64": Tile(threads_m=16, threads_n=8, rows=1, quads=2),
    "32x32": Tile(threads_m=8, threads_n=8, rows=1, quads=1),
}
"""The tiles there are, by the size of a workgroup's result."""


MANY_GROUPS = 300
"""Workgroups from which on the large tile keeps a large GPU busy (measured on an H200)."""

FEW_ROWS = 8
"""Rows below which a tile would be empty for the most part."""


def choose(sizes: Sizes, target: Target) -> str:
    """The name of the tile for a product: the large one where it fills the GPU. A CPU has few cores to fill."""
    return "64x64" if target.cpu or TILES["64x64"].groups(sizes) >= MANY_GROUPS else "32x32"


def kernels(op: str, stem: str, wide: tuple[str, ...], sizes: SizesOf, **fields: Any) -> tuple[Kernel, ...]:
    """The tiled kernels of an operator, those that read whole vectors first.

    Args:
        op: the operator's name.
        stem: the WGSL file that names the product's sides.
        wide: operands bound as vectors where all rows are whole vectors.
        sizes: from a call to the product's sizes.
        fields: more of Kernel's.
    """
    return tuple(
        _kernel(op, label, (stem, "sgemm", f"sgemm_{'wide' if names else 'narrow'}"), names, sizes, fields)
        for label in TILES
        for names in (wide, ())
    )


def _kernel(
    op: str, label: str, source: tuple[str, ...], wide: tuple[str, ...], sizes: SizesOf, fields: Mapping[str, Any]
) -> Kernel:
    tile = TILES[label]

    def when(call: Call, target: Target) -> bool:
        found = sizes(call)
        whole = found.columns % 4 == found.depth % 4 == 0
        return whole == bool(wide) and tile.threads <= target.invocations

    def suits(call: Call, target: Target) -> bool:
        found = sizes(call)
        return found.rows >= FEW_ROWS and label == choose(found, target)

    def params(call: Call) -> Params:
        return {name: np.uint32(value) for name, value in vars(sizes(call)).items()}

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return tile.groups(sizes(call)) * tile.threads, 1, 1

    return Kernel(
        f"{op}.tiled_{label}",
        source,
        (FLOAT,),
        FLOAT,
        when=when,
        suits=suits,
        wide=wide,
        positions=False,
        params=params,
        constants=lambda call: tile.constants,
        threads=threads,
        workgroup=(tile.threads, 1, 1),
        **fields,
    )
