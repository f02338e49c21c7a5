"""q8ta_requantize: int8 or int16 values at another scale, zero point or dtype. From int8 to int8, q8ta_table is used
instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Array, Call
from q8ta_wgpu.ir.kernel import Kernel, Params, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Op, Operand, quantized_as_first, reads_same_place


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    steps = arithmetic.scaled_term(arrays[0].astype(np.int64) - call.zeros[0], call.attrs["multiplier"])
    return arithmetic.stored(call, steps)


def _params(call: Call) -> Params:
    numbers: Params = {"x_zero": np.int32(call.zeros[0]), "multiplier": np.float32(call.attrs["multiplier"])}
    return {**arithmetic.stored_fields(call), **numbers}


OPS = (
    Op(
        name="q8ta_requantize",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=quantized_as_first,
        results=(INT16X4,),
        reference=_reference,
        reads=reads_same_place,
        schema={**WIDE_RANGE, "multiplier": Attr("float", low=0, high=3.4e38)},
        kernels=(
            Kernel(
                "q8ta_requantize",
                ("requantize", "words"),
                (ANY_INT8,),
                ANY_INT8,
                synced=True,
                threads=eight_words,
                params=_params,
            ),
        ),
    ),
)
