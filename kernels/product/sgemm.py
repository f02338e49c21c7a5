"""The tiled float32 matrix product of matmul, linear and conv2d: tiles, kernels, and the choice of a tile.

y[m, n] = start(m, n) + sum over k of left[m, k] * right[k, n], for each batch. sgemm.wgsl describes how a workgroup
shares the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params, no_params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MANY_GROUPS


@dataclass(frozen=True)
class Sizes:
    """A batched product: batches of (rows x depth) times (depth x columns)."""

    batches: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class Tile:
    """How a workgroup shares a matrix product.

    Attributes:
        threads_m, threads_n: threads along rows and along columns.
        rows, quads: groups of four rows, and of four columns, that a thread makes. Threads must be able to share the
            loads of a step evenly.
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
        """The constants of kernels/product/sgemm.wgsl."""
        return {
            "THREADS_M": self.threads_m,
            "THREADS_N": self.threads_n,
            "ROWS": self.rows,
            "QUADS": self.quads,
        }

    def groups(self, sizes: Sizes) -> int:
        """The number of workgroups for a result."""
        m, n = 4 * self.threads_m * self.rows, 4 * self.threads_n * self.quads
        return sizes.batches * -(-sizes.rows // m) * -(-sizes.columns // n)


TILES: Mapping[str, Tile] = {
    "64x64": Tile(threads_m=16, threads_n=8, rows=1, quads=2),
    "32x32": Tile(threads_m=8, threads_n=8, rows=1, quads=1),
}
"""All tiles by the size of a workgroup's result."""


DEPTH = 16
"""Indices of k in a step."""

TURNS = DEPTH + 2
"""Loop turns for a step: those along k, and those of other loops that Mesa does not unroll (measured: 18 at 64x64)."""


def choose(sizes: Sizes, target: Target) -> str:
    """The name of the tile for a product: the large one if it fills the GPU. On a CPU, whose cores are few, it always
    does."""
    return "64x64" if target.few_cores or TILES["64x64"].groups(sizes) >= MANY_GROUPS else "32x32"


def _always(call: Call) -> bool:
    return True


@dataclass(frozen=True)
class Product:
    """An operator as a batched product.

    Attributes:
        op: the operator's name.
        stem: the WGSL file that reads the operands of the product.
        wide: operands bound as vectors of four, in calls whose rows are a whole number of vectors.
        sizes: the product's sizes in a call.
        matrix: whether the right operand of a call is stored as a matrix.
        gather: WGSL binding of `right_quad`, which reads four columns, for calls where it is not.
        params: more uniform fields.
    """

    op: str
    stem: str
    wide: tuple[str, ...]
    sizes: Callable[[Call], Sizes]
    matrix: Callable[[Call], bool] = _always
    gather: tuple[str, ...] = ()
    params: Callable[[Call], Params] = no_params

    def has_vectors(self, call: Call) -> bool:
        """Whether both operands can be read as vectors of four."""
        found = self.sizes(call)
        return found.columns % 4 == found.depth % 4 == 0 and self.matrix(call)

    def all_params(self, call: Call) -> Params:
        """The uniform fields of kernels/product/sgemm.wgsl and of the operator's own WGSL."""
        return {**{name: np.uint32(value) for name, value in vars(self.sizes(call)).items()}, **self.params(call)}


def kernels(product: Product, **fields: Any) -> tuple[Kernel, ...]:
    """The tiled kernels of an operator. They read vectors of four in calls whose rows are a whole number of these.
    `fields` are more fields of Kernel."""
    return tuple(_kernel(product, label, fields) for label in TILES)


def _kernel(product: Product, label: str, fields: Mapping[str, Any]) -> Kernel:
    tile = TILES[label]

    def preferred(call: Call, target: Target) -> bool:
        found = product.sizes(call)
        return found.rows >= FEW_ROWS and label == choose(found, target)

    def source(call: Call) -> tuple[str, ...]:
        return (
            product.stem,
            "sgemm",
            *(("sgemm_wide",) if product.has_vectors(call) else ("sgemm_narrow", *product.gather)),
        )

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return tile.groups(product.sizes(call)) * tile.threads, 1, 1

    return Kernel(
        f"{product.op}.tiled_{label}",
        source,
        (FLOAT,),
        FLOAT,
        turns=lambda call: -(-product.sizes(call).depth // DEPTH) * TURNS,
        preferred=preferred,
        wide=lambda call: product.wide if product.has_vectors(call) else (),
        params=product.all_params,
        constants=lambda call: tile.constants,
        threads=threads,
        workgroup=(tile.threads, 1, 1),
        **fields,
    )
