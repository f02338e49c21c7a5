"""q8ta_clone: a copy of an int8 or int16 value in another layout. Layout sync inserts it into plans; graphs do not have
it. Between 4C and 4W int8 is copied in tiles (clone_tile.wgsl)."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ONLY_4C, ONLY_4W, Kernel, LayoutSet, Params, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8, Layout
from q8ta_wgpu.ir.op import INTEGERS, Case, Op, Operand, dims, same_as_first

TILE = 2048
"""Words of a tile, 8 KiB of workgroup memory."""

THREADS = 256
"""Threads of a workgroup."""

LARGEST_RUN = 32
"""Most channel quads of a tile: a run of 128 bytes."""


def _quad_bits(quads: int) -> int:
    """log2 of a tile's channel quads: the longest run that leaves at most a quarter of the threads idle."""
    bits = LARGEST_RUN.bit_length() - 1
    while bits and (-quads % (1 << bits)) * 4 > quads:
        bits -= 1
    return bits


def _sizes(call: Call) -> tuple[int, int, int]:
    """(channel quads, pixels of rows that are padded to whole words, log2 of a tile's quads)."""
    _, c, h, w = dims(call.output)
    quads = -(-c // 4)
    return quads, h * 4 * -(-w // 4), _quad_bits(quads)


def _tiles(call: Call) -> tuple[int, int]:
    """Tiles along channels and along pixels."""
    quads, padded, bits = _sizes(call)
    return -(-quads // (1 << bits)), -(-padded // (TILE >> bits))


def _params(call: Call) -> Params:
    _, c, h, w = dims(call.output)
    quads, padded, bits = _sizes(call)
    across, along = _tiles(call)
    return {
        "channels": np.uint32(c),
        "quads": np.uint32(quads),
        "pixels": np.uint32(h * w),
        "padded": np.uint32(padded),
        "row": np.uint32(4 * -(-w // 4)),
        "width": np.uint32(w),
        "quad_bits": np.uint32(bits),
        "swizzle": np.uint32(max(5, bits + 2)),
        "quad_tiles": np.uint32(across),
        "pixel_tiles": np.uint32(along),
    }


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    """One workgroup for each tile."""
    across, along = _tiles(call)
    return dims(call.output)[0] * across * along * THREADS, 1, 1


def _cost(call: Call) -> float:
    """`Kernel.cost`: half a byte for each element, padding lanes included (measured on an H200)."""
    n, c, h, w = dims(call.output)
    return 2.0 * n * -(-c // 4) * h * w


def _tiled(way: str, source: LayoutSet, target: LayoutSet) -> Kernel:
    """The kernel to 4C or from it."""
    return Kernel(
        f"q8ta_clone.{way}",
        (f"clone_{way}", "clone_tile"),
        (source,),
        target,
        supports=lambda call, target: call.output.dtype == INT8X4,
        params=_params,
        threads=_threads,
        workgroup=(THREADS, 1, 1),
        cost=_cost,
    )


OPS = (
    Op(
        name="q8ta_clone",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=same_as_first,
        reference=lambda call, arrays: arrays[0],
        kernels=(
            _tiled("to_4C", ONLY_4W, ONLY_4C),
            _tiled("from_4C", ONLY_4C, ONLY_4W),
            Kernel("q8ta_clone.words", ("clone", "words"), (ANY_INT8,), ANY_INT8, True, threads=eight_words),
            Kernel("q8ta_clone", ("clone", "map"), (ANY_INT8,), ANY_INT8),
        ),
        int8=Moves(),
        cases=(
            Case(((2, 5, 3, 7),)),
            Case(((1, 8, 4, 4),)),
            Case(((13,),)),
            Case(((2, 3, 2, 3, 5),)),
            Case(((2, 126, 9, 11),)),
            Case(((1, 36, 24, 24),)),
        ),
    ),
)
