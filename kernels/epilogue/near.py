"""Rounding accumulators by additions: the short way to int8 that most epilogues can take.

t = rint(acc * multiplier) counts only where it does not saturate: in an interval of some 2^22 steps around a middle
that depends on the channel's bias. A product that is clamped to it first, plus 1.5 * 2^23 minus that middle, is a float
between 2^23 and 2^24, whose neighbours are 1 apart: the addition rounds it half to even, and its bits are the whole
number plus a constant. With the offset and the middle added to the bits they are those of the float 1.5 * 2^23 + steps,
a residual's steps included, clamped once more where there is one. Plus 1.5 * 2^37 it lies between floats that are 2^14
apart, one int8 step: this addition rounds half to even again, and the last byte of its bits is the int8 value less its
zero point, plus a constant. Compilers cannot join the two additions, since whole numbers are added between them, nor
the product and the first, since the clamp stands between.

Shifts, masks, conversions to whole numbers and clamps of them, which many GPUs do at half the speed, become additions
of floats: on an NVIDIA H200, products of small depth and depthwise convolutions take 7 to 12 % less time by it than by
whole numbers. The bytes are those of q8ta_wgpu/ir/arithmetic.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BASE = 3 << 22
"""1.5 * 2^23, in the middle of the floats that are whole numbers 1 apart."""

_COARSE = 128
"""Middles are multiples of it: even, so that ties stay ties to even, and exact as float32 up to 2^31."""

WIDEST = 2 * (1 << 22) - 1024
"""The widest interval whose floats all lie between 2^23 and 2^24, whatever its ends and its middle are rounded to."""


def pack(offset: NDArray[np.int64], lowest: int, highest: int) -> NDArray[np.int32]:
    """What `near_quad` of kernels/epilogue/stages.wgsl reads of four channels: four int32 of the offset with the
    middle, which are added to the bits of the sum, and as the bits of float32 the ends of the interval and what rounds.

    Args:
        offset: in 2^-14 output steps, a whole number of quads of channels.
        lowest, highest: between them t + offset counts.
    """
    low, high = lowest - offset, highest - offset
    middle = (low + high) // 2 // _COARSE * _COARSE
    ends = [v.astype(np.float32).view(np.int32) for v in (low, high, _BASE - middle)]
    packed = np.stack([(offset + middle).astype(np.int32), *ends]).reshape(4, -1, 4)
    return np.ascontiguousarray(packed.transpose(1, 0, 2))
