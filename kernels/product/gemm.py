"""The tiled int8 matrix product of linear and convolution: tiles, packed weights, uniform fields, and the choice of a
tile.

y[m, c] = sum over k of x[m, k] * w[c, k]. A row m is a pixel, or an index of a linear's leading dimensions. k is
counted in vectors of 16 int8. kernels/product/gemm.wgsl describes how a workgroup shares the work. gemm_rows.wgsl and
the gemm_window files describe how x is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib.thresholds import (
    EMULATED,
    MANY_GROUPS,
    PADDED,
    PADDED_CPU,
    SOME_GROUPS,
    SPLITTING,
    UNPACKING,
)
from q8ta_wgpu.kernels.product import speeds
from q8ta_wgpu.kernels.product.units import UNIT_TILES, UnitTile

REGISTERS = "gemm_registers"
WORD_TURNS = 4
"""The most loop turns of gemm_registers.wgsl for a vector along k."""

OFFSET_TURNS = 4
"""The most loop turns in which the offset of a vector of x is computed (lane_offsets_of, gemm_window_image)."""


@dataclass(frozen=True)
class Tile:
    """How a workgroup shares a matrix product.

    Attributes:
        threads_m, threads_n: threads along rows and along channels.
        rows: rows of the product that a thread makes; they are rows of the result where `halves` is 1.
        quads: groups of four channels that a thread makes.
        step: vectors of 16 int8 along k that are loaded to workgroup memory at a time, at most 8.
        split: groups of threads that share k. Their sums are added in workgroup memory.
        halves: rows of the product for a row of the result: 1, or 2 for int16.
        parts: as of `UnitTile`. These tiles multiply weights of 4 bits as one column, too.
        body: the WGSL file. 'gemm_registers' uses no workgroup memory; its threads_n, step and split are 1, its
            quads a multiple of four.
    """

    threads_m: int
    threads_n: int
    rows: int
    quads: int
    step: int = 4
    split: int = 1
    body: str = "gemm"
    halves: int = 1
    parts: int = 1

    @property
    def m(self) -> int:
        """Rows of the result that a workgroup makes."""
        return self.threads_m * self.rows // self.halves

    @property
    def n(self) -> int:
        """Channels that a workgroup makes."""
        return self.threads_n * self.quads * 4

    @property
    def columns(self) -> int:
        """Columns of the product that a workgroup makes: a channel is one."""
        return self.n

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
        """WGSL to link: its file, and stems that the linker chooses by the target."""
        return (self.body, "dot", "exchange") if self.body == REGISTERS else (self.body, "dot")

    def fits(self, target: Target) -> bool:
        """Whether a target can use the tile. Tiles in registers are only for targets that gain nothing from workgroup
        memory."""
        return self.body != REGISTERS or not target.shares_memory

    def is_shared(self) -> bool:
        """Whether threads share the rows evenly, in whole rows of the result."""
        return self.rows % self.halves == 0

    def unrolled(self, target: Target) -> bool:
        """Whether the linker unrolls its loops: those of tiles in registers, where compilers do not."""
        return self.body == REGISTERS and target.unroll

    def at_depth(self, vectors: int) -> Tile:
        """The tile with a shorter step, if k has only `vectors` vectors and threads can share the loads of that
        step."""
        shortest = next((step for step in (1, 2) if vectors <= step * self.split and step < self.step), self.step)
        enough = shortest * self.m % (self.threads // self.split) == 0
        return replace(self, step=shortest) if enough else self

    def steps(self, vectors: int) -> int:
        """The number of steps along `vectors` vectors of k."""
        return -(-vectors // (self.step * self.split))

    def turns(self, vectors: int) -> int:
        """`Kernel.turns` for `vectors` vectors of k: the turns of the loop over steps, and of inner loops that are not
        unrolled. Tiles in registers are counted as on lavapipe, where a vector takes the most turns."""
        tile = self.at_depth(vectors)
        if tile.body == REGISTERS:
            return vectors * (WORD_TURNS + 2)
        loads = -(-tile.step * (tile.m + tile.n) // (tile.threads // tile.split)) + 1
        products = tile.step * (1 + tile.rows + tile.quads * (1 + tile.rows))
        return tile.steps(vectors) * (1 + OFFSET_TURNS + 2 * loads + products)

    def groups(self, rows: int, channels: int) -> int:
        """The number of workgroups for a result."""
        return -(-rows // self.m) * -(-channels // self.n)

    def pack(self, weight: NDArray[np.int8]) -> NDArray[np.uint32]:
        """A weight int8 (channels, bytes along k) as words in order (column tile, k, column in tile), padded with 0.

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
}
"""All tiles, named by the size of a workgroup's result; tiles in registers by the size of a thread's result. Eight
threads are one vector on lavapipe, where more rows or more channels in a thread are not faster
(docs/experiments.md). On GPUs without matrix units, the products of some network take 8 (32x16) to 40 % longer (128x32)
without one of the others, by the speeds in `families/`."""

NARROW_TILES: Mapping[str, AnyTile] = {
    **TILES,
    "registers_8x32": Tile(threads_m=8, threads_n=1, rows=8, quads=8, step=1, body=REGISTERS),
}
"""Tiles for kernels that assemble vectors of x from words or bytes, which takes as long as multiplying."""

Sizes = Callable[[Call], tuple[int, int, int]]
"""From a call to (rows, channels, words along k)."""


def tiles(halves_per_row: int, among: Mapping[str, AnyTile] = TILES) -> Mapping[str, AnyTile]:
    """The tiles for rows of x that are `halves_per_row` rows of int8 each: 1, or 2 for int16. Left out are tiles whose
    rows the threads cannot share evenly."""
    found = {label: replace(tile, halves=halves_per_row) for label, tile in among.items()}
    return {label: tile for label, tile in found.items() if tile.is_shared()}


def padded_elements(tile: AnyTile, rows: int, channels: int) -> int:
    """The number of elements of all tiles of a result, padding included."""
    return tile.groups(rows, channels) * tile.m * tile.n


def bytes_along(tile: AnyTile, vectors: int) -> int:
    """Bytes along k that a workgroup multiplies for `vectors` vectors of k, padding included."""
    shaped = tile.at_depth(vectors)
    return 16 * shaped.steps(vectors) * shaped.step * shaped.split


def _fastest(
    sizes: tuple[int, int, int], tiles: Mapping[str, AnyTile], residual: bool, adapter: str, halves_per_row: int
) -> str:
    """The name of the tile with the least expected time, of those whose speed is known."""
    rows, channels, words = sizes
    measured = speeds.FAMILIES.get(speeds.family(adapter), speeds.SPEEDS)

    def microseconds(name: str) -> float:
        tile = tiles[name]
        columns = tile.columns + (SPLITTING if halves_per_row > 1 else 0)
        unpacked = tile.m + (UNPACKING if tile.columns > tile.n else 0)
        work = 2e-6 * unpacked * columns * bytes_along(tile, -(-words // 4))
        return measured[name].microseconds(tile.groups(rows, channels), work, residual, halves_per_row)

    return min((name for name in tiles if name in measured), key=microseconds)


@functools.lru_cache(maxsize=1024)  # every tile of a call asks which one is chosen
def choose(
    sizes: tuple[int, int, int],
    target: Target,
    narrow: bool = False,
    residual: bool = False,
    halves_per_row: int = 1,
    parts: int = 1,
) -> str:
    """The name of the tile that is expected to be the fastest.

    * With matrix units: the tile with the least expected time, tiles of dot products included.
    * On other GPUs: a large tile, since it reuses most; padding decides which one. For a result with too few large
      tiles to fill a GPU, a smaller tile, or one whose threads share k. Where dot products are emulated: tiles that
      leave registers for other subgroups.
    * On CPUs: a tile in registers, by padding alone. Their few cores are always full.

    Args:
        sizes: (rows, channels, words along k). For int16 `rows` counts both halves of each row.
        target: the device.
        narrow: whether vectors of x are assembled from words, which needs NARROW_TILES.
        residual: `reads_residual_early` of the call.
        halves_per_row: rows of int8 for a row of x: 1, or 2 for int16.
        parts: columns for a channel on matrix units: 1, or 2 for weights of 4 bits.
    """
    rows, channels, _ = sizes

    def padded(weights: Mapping[str, float]) -> str:
        return min(weights, key=lambda name: padded_elements(NARROW_TILES[name], rows, channels) * weights[name])

    if not target.shares_memory:
        faster = "registers_8x32" if narrow else "registers_7x16" if target.shuffles else ""
        names = {faster, "registers_8x16"} & tiles(halves_per_row, NARROW_TILES).keys()
        return padded({name: weight for name, weight in PADDED_CPU.items() if name in names})
    if any(tile.fits(target) for tile in UNIT_TILES.values()):
        able = {name: replace(tile, parts=parts) for name, tile in tiles(halves_per_row).items() if tile.fits(target)}
        fitting = {name: replace(tile, halves=1) for name, tile in able.items() if tile.is_shared()}
        return _fastest(sizes, fitting, residual, target.name, halves_per_row)
    if not target.packed_dot:
        large, small = EMULATED
        return large if TILES[large].groups(rows, channels) >= MANY_GROUPS else small
    large = padded(PADDED)
    for name, enough in ((large, MANY_GROUPS), ("32x32", MANY_GROUPS), ("32x16", SOME_GROUPS)):
        if TILES[name].groups(rows, channels) >= enough:
            return name
    return "16x16"


def reads_residual_early(call: Call) -> bool:
    """Whether kernels/product/gemm_units.wgsl reads residuals and addends before its loop over k: if all are int8.

    That takes a register for four channels and hides the latency of memory (a network of 3x3 convolutions to 720p at
    batch 32 on an H200: 3.50 -> 3.21 ms). int16 would take two registers, so that fewer workgroups run at a time
    (ViT-B/16: 6.08 -> 6.41 ms).
    """
    operands = call.attrs["epilogue"].operands
    others = call.inputs[len(call.inputs) - len(operands) :]
    return {t.dtype for t, operand in zip(others, operands, strict=True) if operand.at_result} == {INT8X4}
