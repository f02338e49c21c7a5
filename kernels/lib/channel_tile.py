"""Tiles that copy values between 4C and row-major memory, for kernels/lib/channel_tile.wgsl."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.op import dims

TILE = 2048
"""Words of a tile, 8 KiB of workgroup memory."""

WORKGROUP = (256, 1, 1)
LARGEST_RUN = 32
"""Most channel quads of a tile: a run of 128 bytes."""


def _quad_bits(quads: int) -> int:
    """log2 of a tile's channel quads: the longest run that leaves at most a quarter of the threads idle."""
    bits = LARGEST_RUN.bit_length() - 1
    while bits and (-quads % (1 << bits)) * 4 > quads:
        bits -= 1
    return bits


def params(call: Call, words: bool) -> Params:
    """Uniform fields. `words` says whether the side that is not 4C holds 4W words; otherwise it holds floats."""
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


def threads(call: Call, words: bool) -> tuple[int, int, int]:
    """The grid: one workgroup for each tile."""
    found = params(call, words)
    tiles = dims(call.output)[0] * int(found["quad_tiles"]) * int(found["pixel_tiles"])  # type: ignore[arg-type]
    return tiles * WORKGROUP[0], 1, 1


def cost(call: Call) -> float:
    """`Kernel.cost`: half a byte for each element (measured on an H200), in whole words of channels."""
    n, c, h, w = dims(call.output)
    return 2.0 * n * -(-c // 4) * h * w
