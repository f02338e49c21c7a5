"""The kernels of a tiled product, one for each tile: of convolutions, first layers, linears and transposed
convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.product import four_bit_weights, gemv, halves, weighted
from q8ta_wgpu.kernels.product.gemm import (
    REGISTERS,
    TILES,
    AnyTile,
    Sizes,
    choose,
    reads_residual_early,
    tiles,
)
from q8ta_wgpu.kernels.product.units import UNITS


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of rows of x with a constant weight, as an operator reads its rows and stores its result.

    Attributes:
        name: of its kernels, before the tile's: `q8ta_conv2d.pw`.
        layouts: of x and of an int8 result.
        sizes: (rows, channels, words of int8 along k) of a call.
        weights: the weight as int8 (channels, bytes along k), or (phases, channels, bytes along k).
        reads: WGSL by which a tile reads x and stores the result: what fills the open names of its body.
        params: uniform fields of the operator.
        has_vectors: whether x, or all tensors of a prologue, are bound as vectors of four words.
        takes: whether the kernels are made for a call.
        divisors: constants of what `reads` names, for a tile.
        narrow: whether vectors of x are assembled from words or bytes.
        phases: the blocks into which rows are divided, each with weights of its own; None without phases.
        halves: rows of int8 for a row of x: 1, or 2 for int16.
        among: the tiles to choose from.
        cost: `Kernel.cost`.
    """

    name: str
    layouts: LayoutSet
    sizes: Sizes
    weights: Callable[[Call, Array], Array]
    reads: Callable[[Call, AnyTile], tuple[str, ...]]
    params: Callable[[Call], Params]
    has_vectors: Callable[[Call], bool]
    takes: Callable[[Call, str], bool] = lambda call, label: True
    divisors: Callable[[Call, AnyTile], dict[str, int]] = lambda call, tile: {}
    narrow: Callable[[Call], bool] = lambda call: False
    phases: Callable[[Call], int] | None = None
    halves: int = 1
    among: Mapping[str, AnyTile] = field(default_factory=lambda: TILES)
    cost: Callable[[Call], float] = field(default_factory=lambda: weighted.cost("tiled"))

    def vectors(self, call: Call) -> int:
        """Vectors of 16 int8 along k."""
        return -(-self.sizes(call)[2] // 4)

    def shaped(self, call: Call, tile: AnyTile) -> AnyTile:
        """The tile as a call needs it: for weights of 8 or 4 bits, with a step no longer than k."""
        return replace(tile, parts=four_bit_weights.unit_parts(call)).at_depth(self.vectors(call))

    def rows(self, call: Call, tile: AnyTile) -> int:
        """Rows of the product. Those of each phase are padded to whole tiles."""
        rows, phases = self.sizes(call)[0], self.phases(call) if self.phases else 0
        return phases * -(-rows // (phases * tile.m)) * tile.m if phases else rows

    def groups(self, call: Call, tile: AnyTile) -> int:
        """Workgroups of a call."""
        return tile.groups(self.rows(call, tile), self.sizes(call)[1])

    def source(self, call: Call, tile: AnyTile) -> tuple[str, ...]:
        """`Kernel.source` for a tile."""
        on_units = tile.body == UNITS
        return (
            *tile.source,
            *epilogue.source(call),
            *self.reads(call, tile),
            *(("store_four=store_vector",) if _stores_vectors(tile, call) else ()),
            *four_bit_weights.source(call, "unit_weights" if on_units else "weights"),
            *halves.source(call),
        )

    def wide(self, call: Call, tile: AnyTile) -> tuple[str, ...]:
        """`Kernel.wide` for a tile."""
        tensors = call.attrs["prologue"].names if "prologue" in call.attrs else ("x",)
        x = tensors if self.has_vectors(call) else ()
        return *weighted.PER_CHANNEL, "weight", *x, *(("y",) if _stores_vectors(tile, call) else ())

    def fields(self, call: Call, tile: AnyTile) -> Params:
        """`Kernel.params` for a tile shaped for the call: those of the bodies, of the epilogue and of the operator."""
        rows, vectors = self.rows(call, tile), self.vectors(call)
        numbers = {"rows": rows, "quads": -(-self.sizes(call)[1] // 4), "steps": tile.steps(vectors)}
        if self.phases:
            numbers["phase_rows"] = rows // self.phases(call)
            numbers["phase_vectors"] = tile.steps(vectors) * tile.step * tile.split
        return {
            **{name: np.uint32(number) for name, number in numbers.items()},
            **epilogue.params(call),
            **four_bit_weights.params(call),
            **halves.params(call),
            **self.params(call),
        }

    def constants(self, call: Call, tile: AnyTile) -> dict[str, int]:
        """`Kernel.constants` for a tile shaped for the call."""
        early = {"EARLY": int(reads_residual_early(call))} if tile.body == UNITS else {}
        return {**tile.constants, **early, **four_bit_weights.constants(call, tile.n), **self.divisors(call, tile)}

    def prepack(self, tile: AnyTile) -> dict[int, Callable[[Call, Array], Array]]:
        """`Kernel.prepack` for a tile. Matrix units read two vectors of a channel's weights of 4 bits at a time."""

        def packed(call: Call, weight: Array) -> Array:
            rows = self.weights(call, weight)
            pack = replace(tile, parts=four_bit_weights.unit_parts(call)).pack
            return np.concatenate([pack(phase) for phase in rows]) if rows.ndim == 3 else pack(rows)

        columns = 1 if tile.body == UNITS else tile.n
        return {1: four_bit_weights.packed(packed, columns), **weighted.PAD_CHANNELS}

    def chosen(self, call: Call, target: Target) -> str:
        """The tile that is expected to be the fastest. For few rows none may be."""
        (rows, channels, words), parts = self.sizes(call), four_bit_weights.unit_parts(call)
        sizes = rows * self.halves, channels, words
        if gemv.is_faster(sizes[0], words, target):
            return ""
        return choose(sizes, target, self.narrow(call), reads_residual_early(call), self.halves, parts)


def _stores_vectors(tile: AnyTile, call: Call) -> bool:
    """Whether a thread stores four quads of a row as one vector: for tiles in registers, if the channels of an int8
    result are a multiple of 16."""
    return tile.body == REGISTERS and call.inputs[1].shape[0] % 16 == 0 and call.output.dtype == INT8X4


def kernels(product: Product) -> tuple[Kernel, ...]:
    """The kernels of a product, one for each of its tiles."""
    return tuple(_kernel(product, *each) for each in tiles(product.halves, product.among).items())


def _kernel(product: Product, label: str, tile: AnyTile) -> Kernel:
    def supports(call: Call, target: Target) -> bool:
        return product.takes(call, label) and tile.fits(target) and product.shaped(call, tile).is_shared()

    def threads(call: Call, layout: Any) -> tuple[int, int, int]:
        return product.groups(call, product.shaped(call, tile)) * tile.threads, 1, 1

    return Kernel(
        f"{product.name}_{label}",
        lambda call: product.source(call, tile),
        (product.layouts | FLOAT,),
        product.layouts | FLOAT,
        supports=supports,
        turns=lambda call: tile.turns(product.vectors(call)),
        preferred=lambda call, target: label == product.chosen(call, target),
        wide=lambda call: product.wide(call, tile),
        params=lambda call: product.fields(call, product.shaped(call, tile)),
        constants=lambda call: product.constants(call, product.shaped(call, tile)),
        prepack=product.prepack(tile),
        threads=threads,
        workgroup=(tile.threads, 1, 1),
        workgroup_memory=tile.memory,
        unrolled=tile.unrolled,
        cost=product.cost,
    )
