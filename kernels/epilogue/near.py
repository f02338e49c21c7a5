"""Rounding accumulators by an addition: the short way to int8 that most epilogues can take.

t = rint(acc * multiplier) counts only where it does not saturate: in an interval of some 2^22 steps around a middle
that depends on the channel's bias. A product that is clamped to it first, plus 1.5 * 2^23 minus that middle, is a float
between 2^23 and 2^24, whose neighbours are 1 apart: the addition rounds it half to even, and its bits are the whole
number plus a constant. What would follow, offset, zero point and the clamp of int8, is part of the constants, and the
two conversions that GPUs do at a quarter of the speed or less are gone: on an NVIDIA H200, int8 products of small depth
take 6 to 13 % less time. The bytes are those of q8ta_wgpu/ir/arithmetic.py. A compiler may not fuse the product with
the addition, because the clamp stands between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.arithmetic import FRACTION

_BASE = 3 << 22
"""1.5 * 2^23, in the middle of the floats that are whole numbers 1 apart."""

_BASE_BITS = 0x4B400000
"""It as a float32: the bits of a float between 2^23 and 2^24 are these plus how much more it is."""

_COARSE = 128
"""Middles are multiples of it: even, so that ties stay ties to even, and exact as float32 up to 2^31."""

WIDEST = 2 * (1 << 22) - 1024
"""The widest interval whose floats all lie between 2^23 and 2^24, whatever its ends and its middle are rounded to."""


def pack(offset: NDArray[np.int64], lowest: int, highest: int, zero: int) -> NDArray[np.int32]:
    """What `near_quad` of kernels/epilogue/stages.wgsl reads of four channels: four int32 of the offset with all that
    is added to the bits of the sum, and as the bits of float32 the ends of the interval and what is added to round.

    Args:
        offset: in 2^-14 output steps, a whole number of quads of channels.
        lowest, highest: between them t + offset counts.
        zero: the zero point of the int8 value.
    """
    low, high = lowest - offset, highest - offset
    middle = (low + high) // 2 // _COARSE * _COARSE
    added = offset + middle + (zero << FRACTION) - _BASE_BITS
    ends = [v.astype(np.float32).view(np.int32) for v in (low, high, _BASE - middle)]
    packed = np.stack([added.astype(np.int32), *ends]).reshape(4, -1, 4)
    return np.ascontiguousarray(packed.transpose(1, 0, 2))
