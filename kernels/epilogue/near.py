"""Rounding accumulators by additions: a fast way to int8 that most epilogues can take.

t = rint(acc * multiplier) matters only where it does not saturate: in an interval of some 2^22 steps around a middle
that depends on the channel's bias. First the product is clamped to that interval. Then 1.5 * 2^23 minus the middle is
added. The result is a float between 2^23 and 2^24, where neighbours are 1 apart, so the addition rounds half to even,
and the bits of the float are the integer plus a constant. Offset and middle are added to the bits, which then are those
of the float 1.5 * 2^23 + steps. The steps of a residual are added and clamped likewise. Adding 1.5 * 2^37 moves the
value between floats that are 2^14 apart, one int8 step: the addition rounds half to even again, and the last byte of
the bits is the int8 value minus its zero point, plus a constant. Compilers cannot join the two additions, since
integers are added in between, nor the product and the first addition, since the clamp is in between.

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
    """What `near_quad` of kernels/epilogue/stages.wgsl reads for four channels: four int32 of offset and middle, which
    are added to the bits of the sum; and as float32 bits the ends of the interval and the number that rounds.

    Args:
        offset: in 2^-14 output steps, a whole number of groups of four channels.
        lowest, highest: t + offset matters between them.
    """
    low, high = lowest - offset, highest - offset
    middle = (low + high) // 2 // _COARSE * _COARSE
    ends = [v.astype(np.float32).view(np.int32) for v in (low, high, _BASE - middle)]
    packed = np.stack([(offset + middle).astype(np.int32), *ends]).reshape(4, -1, 4)
    return np.ascontiguousarray(packed.transpose(1, 0, 2))
