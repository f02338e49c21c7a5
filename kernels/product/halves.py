"""Products of int16 rows as products of int8 rows: kernels/product/halves_int16.wgsl.

A row of int16 is split into a row of high halves and a row of low halves. Their sums are added before they are rounded.

x = 256 * high + low, with high = x >> 8 in -128..127 and low in 0..255. For the product, 128 is subtracted from low, so
that it is an int8. A zero point is split in the same way: x - zero = 256 * (high - high_zero) + (low - low_zero)
exactly.
"""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, Call
from q8ta_wgpu.ir.kernel import Params


def of(call: Call, operand: int = 0) -> int:
    """The number of int8 rows for a row of a call's operand: 2 for int16, else 1."""
    return 2 if call.inputs[operand].dtype == INT16X4 else 1


def zeros(zero: int) -> tuple[int, int]:
    """The zero points of the high and of the low halves of int16 values with this zero point."""
    return zero // 256, zero % 256 - 128


def params(call: Call) -> Params:
    """The uniform fields of kernels/product/halves_int16.wgsl."""
    if of(call) == 1:
        return {}
    high, low = zeros(call.zeros[0])
    return {"high_zero": np.int32(high), "low_zero": np.int32(low)}


def source(call: Call) -> tuple[str, ...]:
    """The WGSL of a call's rows, and of sums of them."""
    return ("halves_int16" if of(call) == 2 else "halves_int8",)
