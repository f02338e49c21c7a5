"""Products of int16 rows: kernels/product/halves.wgsl. Each is two rows of int8, of high and of low halves, which meet
the same weights; their sums are joined before they are rounded."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.kernels.product.half import HIGH, LOW, half_zero

_INT16 = (
    "RowVector=RowVectorInt16",
    "vector_at=int16_vector_at",
    "vector_of=int16_vector_of",
    "zero_word=int16_zero_word",
    "zero_vector=int16_zero_vector",
    "zeros_where=int16_zeros_where",
    "half_vector=half_of_int16",
    "Acc=Halves",
    "acc_of=halves_of",
    "real_acc=real_halves",
    "merge=merge_halves",
    "start_half=start_of_int16",
    "start_acc=start_of_halves",
    "add_words=add_halves",
)

IN_ONE = ("start_quad=start_in_one", "zero_word=int16_zero_word")
"""What is linked where one accumulator has room for sums of int16."""


def of(call: Call) -> int:
    """Rows of int8 that a row of a call's operand is."""
    return 2 if call.inputs[0].dtype == INT16X4 else 1


def params(call: Call) -> Params:
    """The uniform fields of kernels/product/halves.wgsl."""
    if of(call) == 1:
        return {}
    return {f"{part}_zero": np.int32(half_zero(call.zeros[0], part)) for part in (HIGH, LOW)}


def source(call: Call) -> tuple[str, ...]:
    """What is linked to read int16 rows: nothing for int8."""
    return _INT16 if of(call) == 2 else ()
