"""Kernels that copy values between 4C and row-major memory in tiles: kernels/lib/channel_tile.wgsl."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.kernel import ONLY_4C, ONLY_4W, Kernel, LayoutSet, Params, no_params
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target

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


def _params(call: Call, words: bool) -> Params:
    """Uniform fields. `words`: whether the tensor that is not in 4C has 4W words; otherwise it has floats."""
    _, c, h, w = dims(call.output)
    quads, width = -(-c // 4), 4 * -(-w // 4) if words else w
    bits = _quad_bits(quads)
    return {
        "channels": np.uint32(c),
        "quads": np.uint32(quads),
        "pixels": np.uint32(h * w),
        "padded": np.uint32(h * width),
        "row": np.uint32(width if width != w else 0),
        "width": np.uint32(w),
        "quad_bits": np.uint32(bits),
        "swizzle": np.uint32(max(5, bits + 2) if words else 5),
        "unit_step": np.uint32(4 if words else 1),
        "quad_tiles": np.uint32(-(-quads // (1 << bits))),
        "pixel_tiles": np.uint32(-(-h * width // (TILE >> bits))),
    }


def _threads(call: Call, words: bool) -> tuple[int, int, int]:
    """The grid: one workgroup for each tile."""
    found = _params(call, words)
    tiles = dims(call.output)[0] * int(found["quad_tiles"]) * int(found["pixel_tiles"])  # type: ignore[arg-type]
    return tiles * THREADS, 1, 1


def _cost(call: Call) -> float:
    """`Kernel.cost`: half a byte for each element, padding lanes included (measured on an H200)."""
    n, c, h, w = dims(call.output)
    return 2.0 * n * -(-c // 4) * h * w


def kernel(
    op: str,
    stem: str,
    way: str,
    other: LayoutSet,
    params: Callable[[Call], Params] = no_params,
    preferred: Callable[[Call, Target], bool] = lambda call, target: True,
) -> Kernel:
    """A kernel between 4C and other layouts of an int8 value.

    Args:
        op: the operator's name.
        stem: the WGSL file that computes a result element from an input element.
        way: "to_4C" or "from_4C".
        other: the layouts that are not 4C: ONLY_4W, or FLOAT.
        params, preferred: as for Kernel.
    """
    words = other == ONLY_4W
    return Kernel(
        f"{op}.{way}",
        (stem, way, "channel_tile"),
        (other if way == "to_4C" else ONLY_4C,),
        ONLY_4C if way == "to_4C" else other,
        supports=lambda call, target: INT8X4 in (call.inputs[0].dtype, call.output.dtype),
        preferred=preferred,
        params=lambda call: {**params(call), **_params(call, words)},
        threads=lambda call, layout: _threads(call, words),
        workgroup=(THREADS, 1, 1),
        cost=_cost,
    )
