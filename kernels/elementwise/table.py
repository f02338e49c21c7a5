"""q8ta_table: any elementwise function of one int8 or int16 tensor, as a table with an entry for each value (256 or
65,536). Entries are int8 or int16, computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8, INT8X4, INT16, INT16X4, RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Kernel, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, Op, Operand, reads_same_place


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, table = types
    low, high = RANGES[x.dtype]
    if table.shape != (high - low + 1,):
        raise GraphError(f"a table of {x.dtype} has {high - low + 1} entries, found shape {table.shape}")
    return x.shape, INT16X4 if table.dtype == INT16 else INT8X4


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, table = arrays
    return np.asarray(table[x.astype(np.int64) - np.iinfo(x.dtype).min])


def _source(call: Call) -> tuple[str, ...]:
    if INT16X4 not in (call.inputs[0].dtype, call.output.dtype):
        return "q8ta_table", "words"
    return "wide_table", "words"


def entry_bits(call: Call) -> dict[str, int]:
    """The WGSL constant with the bits of a table's entry: those of the result's dtype."""
    return {"ENTRY_BITS": 16 if call.output.dtype == INT16X4 else 8}


def _constants(call: Call) -> dict[str, int]:
    return {"SMALLEST": RANGES[call.inputs[0].dtype][0], **entry_bits(call)}


OPS = (
    Op(
        name="q8ta_table",
        operands=(Operand("x", dtypes=INTEGERS), Operand("table", constant=True, dtypes=(INT8, INT16))),
        infer=_infer,
        reference=_reference,
        reads=reads_same_place,
        kernels=(
            Kernel(
                "q8ta_table",
                _source,
                (ANY_INT8,),
                ANY_INT8,
                synced=True,
                threads=eight_words,
                constants=_constants,
            ),
        ),
    ),
)
