"""Rounding accumulators to int8 by adding magic numbers. It is faster than rounding, and most epilogues can use it.

t = rint(acc * multiplier) matters only where it does not saturate: in an interval of about 2^22 steps around a middle
that depends on the channel's bias.

1. The product is clamped to that interval, and 1.5 * 2^23 minus the middle is added. The sum is a float between 2^23
   and 2^24, where neighbouring floats are 1 apart, so the addition rounds half to even. The bits of the float are the
   integer plus a constant.
2. Offset and middle are added to the bits as integers. The bits are now those of the float 1.5 * 2^23 + steps. The
   steps of a residual are added and clamped likewise.
3. 1.5 * 2^37 is added. There neighbouring floats are 2^14 apart, one int8 step, so the addition rounds half to even
   again. The last byte of the bits is the int8 value minus its zero point, plus a constant.

A compiler cannot merge the two float additions, since integers are added between them. It cannot contract the product
and the first addition, since the clamp lies between them.

Before a curve, sums are in fractions of its segments and the interval is the curve's. The bits of a position on it are
clamped as floats, since positive floats have the order of their bits, and the curve's value is rounded as in 3.

Shifts, masks, integer conversions and integer clamps, which many GPUs do at half the speed, become float additions. On
an NVIDIA H200, products of small depth and depthwise convolutions take 7 to 12 % less time than with integers. The
bytes are those of q8ta_wgpu/ir/arithmetic.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BASE = 3 << 22
"""1.5 * 2^23, in the middle of the floats that are integers 1 apart."""

_COARSE = 128
"""Middles are multiples of it: even, so that ties stay ties to even, and exact as float32 up to 2^31."""

WIDEST = 2 * (1 << 22) - 1024
"""The widest interval whose floats all lie between 2^23 and 2^24 after its ends and its middle are rounded."""


def pack(offset: NDArray[np.int64], lowest: int, highest: int) -> NDArray[np.int32]:
    """The offsets of channels, with the numbers that round, as `magic_channels` of kernels/epilogue/stages.wgsl reads
    them.

    Args:
        offset: int64 (channels,), in the fractions that t counts; the number of channels is a multiple of 4.
        lowest, highest: the interval of t + offset outside of which the result is constant.

    Returns:
        int32 (channels / 4, 4, 4). For each group of four channels: offset + middle, and as the bits of float32 the
        ends of the interval and the magic number.
    """
    low, high = lowest - offset, highest - offset
    middle = (low + high) // 2 // _COARSE * _COARSE
    ends = [v.astype(np.float32).view(np.int32) for v in (low, high, _BASE - middle)]
    packed = np.stack([(offset + middle).astype(np.int32), *ends]).reshape(4, -1, 4)
    return np.ascontiguousarray(packed.transpose(1, 0, 2))
