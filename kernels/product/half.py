"""q16ta_half: the high or the low byte of int16 values, as int8 that products multiply.

x = 256 * high + low with high = x >> 8 in -128..127 and low in 0..255, stored 128 less. A zero point is split the same
way, so x - zero = 256 * (high - its zero) + (low - its zero), exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, Array, Call, QParams
from q8ta_wgpu.ir.int8 import Int8Form
from q8ta_wgpu.ir.kernel import Kernel, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import Attr, Op, Operand, quantized_as_first, reads_same_place

HIGH, LOW = "high", "low"
PART = Attr("enum", choices=(HIGH, LOW))


def half_of(x: QParams, part: str) -> QParams:
    """The quantization of a half of int16 values: x - zero is the sum of both halves, each at its scale."""
    return QParams(x.scale * 256 if part == HIGH else x.scale, half_zero(x.zero, part))


def half_zero(zero: int, part: str) -> int:
    """The zero point of a half."""
    return zero // 256 if part == HIGH else zero % 256 - 128


def half(operand: int, x: QParams, part: str) -> Int8Form:
    """The node that takes a half of an operand quantized as `x`."""
    return Int8Form("q16ta_half", (operand,), {"part": part}, half_of(x, part))


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    high, low = np.divmod(arrays[0].astype(np.int32), 256)
    return np.asarray(high if call.attrs["part"] == HIGH else low - 128, np.int8)


OPS = (
    Op(
        name="q16ta_half",
        operands=(Operand("x", dtypes=(INT16X4,)),),
        infer=quantized_as_first,
        reference=_reference,
        reads=reads_same_place,
        schema={"part": PART},
        kernels=(
            Kernel(
                "q16ta_half",
                lambda call: ("half", "words", f"half_of={call.attrs['part']}_half"),
                (ANY_INT8,),
                ANY_INT8,
                synced=True,
                threads=eight_words,
            ),
        ),
    ),
)
