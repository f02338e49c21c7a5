"""The tiled int8 matrix product behind linear and convolution: tile shapes, packed weights, uniforms and choice.

y[m, c] = sum over k of x[m, k] * w[c, k]. Rows m are pixels or the leading dimensions, k counts vectors of 16 int8.
kernels/product/gemm.wgsl says how a workgroup shares the work; gemm_rows.wgsl and the gemm_window files how x is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.graph import INT8X4, Array, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.product import halves, speeds, weighted
from q8ta_wgpu.kernels.product.units import UNIT_TILES, UnitTile

REGISTERS = "gemm_registers"
WORD_TURNS = 4
"""Most turns of gemm_registers.wgsl for a vector along k."""

PLACES = 4
"""Most loop turns to find the offset of a vector of x: place_of_bytes, gemm_window_image."""


@dataclass(frozen=True)
class Tile:
    """How a workgroup shares a matrix product.

    Attributes:
        threads_m, threads_n: threads along rows and along channels.
        rows: rows of the product that a thread makes, of the result where `halves` is 1.
        quads: groups of four channels that a thread makes.
        step: vectors of 16 int8 along k that are loaded to workgroup memory at a time, at most 8.
        split: groups of threads that share k; their sums meet in workgroup memory.
        halves: rows of the product that make one row of the result: 1, or 2 of int16.
        body: the WGSL. 'gemm_registers' uses no workgroup memory and has threads_n, step and split 1.
    """

    threads_m: int
    threads_n: int
    rows: int
    quads: int
    step: int = 4
    split: int = 1
    body: str = "gemm"
    halves: int = 1

    @property
    def m(self) -> int:
        """Rows of the result that a workgroup makes."""
        return self.threads_m * self.rows // self.halves

    @property
    def n(self) -> int:
        """Channels that a workgroup makes."""
        return self.threads_n * self.quads * 4

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.threads_m * self.threads_n * self.split

    @property
    def memory(self) -> int:
        """Bytes of workgroup memory."""
        if self.body == REGISTERS:
            return 0
        depth = max(self.step, self.n // 4) if self.split > 1 else self.step
        return 16 * self.split * (depth * self.m * self.halves + self.step * self.n)

    @property
    def constants(self) -> dict[str, int]:
        """The constants of kernels/product/gemm.wgsl."""
        names = ("threads_m", "threads_n", "rows", "quads", "step", "split", "halves")
        return {name.upper(): getattr(self, name) for name in names}

    @property
    def source(self) -> tuple[str, ...]:
        """The WGSL, and the names of what it chooses by the target."""
        return (self.body, "dot", "exchange") if self.body == REGISTERS else (self.body, "dot")

    def fits(self, target: Target) -> bool:
        """Whether the target suits the tile: tiles in registers are for devices that gain nothing from workgroup
        memory."""
        return self.body != REGISTERS or not target.shares_memory

    def unrolled(self, target: Target) -> bool:
        """Whether its loops are unrolled: those in registers, where compilers do not do it."""
        return self.body == REGISTERS and target.unroll

    def at_depth(self, vectors: int) -> Tile:
        """The tile with a step no longer than `vectors` vectors of k."""
        shortest = next((step for step in (1, 2) if vectors <= step * self.split and step < self.step), self.step)
        enough = shortest * self.m % (self.threads // self.split) == 0
        return replace(self, step=shortest) if enough else self

    def steps(self, vectors: int) -> int:
        """Steps each group of threads takes along `vectors` vectors of k."""
        return -(-vectors // (self.step * self.split))

    def bytes_along(self, vectors: int) -> int:
        """Bytes of k that a workgroup multiplies along `vectors` vectors of it, padding included."""
        tile = self.at_depth(vectors)
        return 16 * tile.steps(vectors) * tile.step * tile.split

    def turns(self, vectors: int) -> int:
        """`Kernel.turns` along `vectors` vectors of k: a loop over steps, and the inner loops that are not unrolled.
        Tiles in registers are counted as on lavapipe, where a vector takes the most turns."""
        tile = self.at_depth(vectors)
        if tile.body == REGISTERS:
            return vectors * (WORD_TURNS + 2)
        loads = -(-tile.step * (tile.m + tile.n) // (tile.threads // tile.split)) + 1
        products = tile.step * (1 + tile.rows + tile.quads * (1 + tile.rows))
        return tile.steps(vectors) * (1 + PLACES + 2 * loads + products)

    def groups(self, rows: int, channels: int) -> int:
        """Workgroups of a result."""
        return -(-rows // self.m) * -(-channels // self.n)

    def padded(self, rows: int, channels: int) -> int:
        """Elements of a result, including those of its last tiles beyond it."""
        return self.groups(rows, channels) * self.m * self.n

    def pack(self, weight: NDArray[np.int8]) -> NDArray[np.uint32]:
        """(channels, bytes along k) int8 -> words in order (column tile, k, column in tile), zero padded.

        Column (4q + j) * threads_n + t of a tile is its channel (q * threads_n + t) * 4 + j, so that neighbouring
        threads read neighbouring columns and write neighbouring words.
        """
        channels, depth = weight.shape
        shortest = self.at_depth(-(-depth // 16))
        vectors = shortest.steps(-(-depth // 16)) * shortest.step * self.split
        padded = np.pad(weight, ((0, -channels % self.n), (0, vectors * 16 - depth)))
        split = padded.reshape(-1, self.quads, self.threads_n, 4, vectors, 16)  # tile, q, t, j, k, byte
        return np.ascontiguousarray(split.transpose(0, 4, 1, 3, 2, 5)).reshape(-1).view("<u4")


AnyTile = Tile | UnitTile

TILES: Mapping[str, AnyTile] = {
    **UNIT_TILES,
    "64x64": Tile(threads_m=16, threads_n=8, rows=4, quads=2),
    "128x32": Tile(threads_m=16, threads_n=8, rows=8, quads=1),
    "64x16": Tile(threads_m=32, threads_n=4, rows=2, quads=1),
    "32x32": Tile(threads_m=8, threads_n=8, rows=4, quads=1),
    "32x16": Tile(threads_m=8, threads_n=4, rows=4, quads=1, split=4),
    "16x16": Tile(threads_m=8, threads_n=4, rows=2, quads=1, split=4),
    "registers_7x16": Tile(threads_m=8, threads_n=1, rows=7, quads=4, step=1, body=REGISTERS),
    "registers_8x16": Tile(threads_m=8, threads_n=1, rows=8, quads=4, step=1, body=REGISTERS),
    "registers_8x12": Tile(threads_m=8, threads_n=1, rows=8, quads=3, step=1, body=REGISTERS),
}
"""All tiles by the size of a workgroup's result; those for CPUs by the size of a thread's result. Eight threads are one
vector on lavapipe, and neither more rows nor more channels a thread are faster there (docs/experiments.md)."""

NARROW_TILES: Mapping[str, AnyTile] = {
    **TILES,
    "registers_8x32": Tile(threads_m=8, threads_n=1, rows=8, quads=8, step=1, body=REGISTERS),
}
"""Tiles for readers that assemble vectors of x from words or bytes, which takes as long as multiplying."""

Sizes = Callable[[Call], tuple[int, int, int]]
"""From a call to (rows, channels, words along k)."""


def params(tile: AnyTile, sizes: tuple[int, int, int]) -> Params:
    """The uniform fields of kernels/product/gemm.wgsl."""
    rows, channels, words = sizes
    vectors = -(-words // 4)
    return {
        "rows": np.uint32(rows),
        "quads": np.uint32(-(-channels // 4)),
        "steps": np.uint32(tile.at_depth(vectors).steps(vectors)),
    }


def tiles(parts: int, among: Mapping[str, AnyTile] = TILES) -> Mapping[str, AnyTile]:
    """The tiles where `parts` rows of int8 make one row of x: those whose threads can share the rows that are left."""
    found = {label: replace(tile, halves=parts) for label, tile in among.items()}
    return {label: tile for label, tile in found.items() if _is_shared(tile)}


def _is_shared(tile: AnyTile) -> bool:
    """Whether each thread makes whole rows of the result."""
    return tile.is_shared() if isinstance(tile, UnitTile) else tile.rows % tile.halves == 0


MANY_GROUPS, SOME_GROUPS = 300, 200
"""Workgroups that keep a large GPU busy, with tiles that do not share k and with tiles that do."""

PADDED: Mapping[str, float] = {"64x64": 1.0, "128x32": 1.04, "64x16": 1.6}
"""Relative time of an element of the result, padding included, in large tiles on a GPU (measured on an H200)."""

PADDED_CPU: Mapping[str, float] = {"registers_8x16": 1.0, "registers_8x12": 1.1}
"""The same on a CPU (measured on lavapipe, as multiples of 8x16's)."""

PADDED_EXCHANGED: Mapping[str, float] = {"registers_7x16": 0.8, "registers_8x16": 1.0, "registers_8x12": 1.0}
"""The same where threads exchange weights: more code than that of 7x16, 15 KB a step, leaves the cache of decoded
instructions of the processor that it was measured on (Zen 4)."""

PADDED_CPU_NARROW: Mapping[str, float] = {"registers_8x32": 1.0, "registers_8x16": 1.2, "registers_8x12": 1.35}
"""The same for readers that assemble vectors of x."""


# Cached: every tile of a call asks for the choice.
@functools.lru_cache(maxsize=1024)
def choose(
    sizes: tuple[int, int, int], target: Target, narrow: bool = False, joined: bool = False, parts: int = 1
) -> str:
    """The name of the tile for (rows, channels, words along k), of NARROW_TILES for a `narrow` reader. `joined` is what
    `joins_early` returns for the call. Of int16 rows `rows` counts both halves, and `parts` is 2.

    With matrix units it is the tile with the least expected time, tiles of dot products included. Without them large
    tiles reuse most, and padding decides among them. Results too small to fill a GPU get smaller tiles, at last tiles
    whose threads share k. A CPU's few cores are always full.
    """
    rows, channels, _ = sizes

    def padded(weights: Mapping[str, float]) -> str:
        return min(weights, key=lambda name: NARROW_TILES[name].padded(rows, channels) * weights[name])

    if not target.shares_memory:
        weights = PADDED_CPU_NARROW if narrow else PADDED_EXCHANGED if target.shuffles else PADDED_CPU
        able = tiles(parts, NARROW_TILES)
        return padded({name: weight for name, weight in weights.items() if name in able})
    if any(tile.fits(target) for tile in UNIT_TILES.values()):
        fitting = {name: TILES[name] for name, tile in tiles(parts).items() if tile.fits(target)}
        return speeds.fastest(sizes, fitting, joined, target.name, parts)
    large = padded(PADDED)
    for name, enough in ((large, MANY_GROUPS), ("32x32", MANY_GROUPS), ("32x16", SOME_GROUPS)):
        if TILES[name].groups(rows, channels) >= enough:
            return name
    return "16x16"


def preferred(call: Call, target: Target, label: str, sizes: Sizes, narrow: bool = False) -> bool:
    """Whether a tile is the one for a call. None is where a matrix-vector product serves so few rows better."""
    (rows, channels, words), parts = sizes(call), halves.of(call)
    chosen = choose((rows * parts, channels, words), target, narrow, joins_early(call), parts)
    return rows * parts > FEW_ROWS and label == chosen


FEW_ROWS = 8
"""Rows up to which threads share k rather than rows."""


def pack_with(tile: AnyTile, rows: Callable[[Call, Array], Array]) -> Callable[[Call, Array], Array]:
    """A prepack function: `rows` gives the weight as (channels, bytes along k)."""

    def pack(call: Call, weight: Array) -> Array:
        return tile.pack(rows(call, weight))

    return pack


def joins_early(call: Call) -> bool:
    """Whether int8 values join the sums, and nothing wider: kernels/product/gemm_units.wgsl reads them before its loop
    over k. That takes a register for four channels and hides the memory's latency (a network of 3x3 convolutions to
    720p at batch 32 on an H200: 3.50 -> 3.21 ms). int16 takes two registers, and fewer workgroups run beside each other
    (ViT-B/16: 6.08 -> 6.41)."""
    operands = call.attrs["epilogue"].operands
    others = call.inputs[len(call.inputs) - len(operands) :]
    return {t.dtype for t, operand in zip(others, operands, strict=True) if operand.at_result} == {INT8X4}


def stores_vectors(tile: AnyTile, call: Call) -> bool:
    """Whether a thread stores four quads of a row as one vector: in registers, where rows of an int8 result are whole
    vectors."""
    whole = call.inputs[1].shape[0] % 16 == 0 and call.output.dtype == INT8X4
    return isinstance(tile, Tile) and tile.body == REGISTERS and tile.quads % 4 == 0 and whole


def stored(tile: AnyTile, call: Call) -> tuple[str, ...]:
    """What is linked to store a result."""
    return ("store_four=store_vector", "store_within=store_nothing") if stores_vectors(tile, call) else ()


def wide_result(tile: AnyTile, call: Call) -> tuple[str, ...]:
    """The result's name where it is bound as vectors."""
    return ("y",) if stores_vectors(tile, call) else ()


def kernel_fields(tile: AnyTile, sizes: Sizes) -> dict[str, Any]:
    """The fields of a Kernel that follow from its tile."""

    def constants(call: Call) -> dict[str, int]:
        shortest = tile.at_depth(-(-sizes(call)[2] // 4))
        early = {"EARLY": int(joins_early(call))} if isinstance(tile, UnitTile) else {}
        return {**shortest.constants, **early}

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        rows, channels, _ = sizes(call)
        return tile.groups(rows, channels) * tile.threads, 1, 1

    return {
        "constants": constants,
        "threads": threads,
        "turns": lambda call: tile.turns(-(-sizes(call)[2] // 4)),
        "workgroup": (tile.threads, 1, 1),
        "workgroup_memory": tile.memory,
        "cost": weighted.cost("tiled"),
        "unrolled": tile.unrolled,
    }
