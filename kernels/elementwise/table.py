"""q8ta_table: any elementwise function of one int8 tensor, as 256 entries. Exact by construction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8, INT8X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Kernel, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import Op, Operand, reads_same_place


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if types[1].shape != (256,):
        raise GraphError(f"a table has 256 entries, found shape {types[1].shape}")
    return types[0].shape, INT8X4


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, table = arrays
    return np.asarray(table[x.astype(np.int64) + 128])


OPS = (
    Op(
        name="q8ta_table",
        operands=(Operand("x", dtypes=(INT8X4,)), Operand("table", constant=True, dtypes=(INT8,))),
        infer=_infer,
        reference=_reference,
        reads=reads_same_place,
        kernels=(
            Kernel("q8ta_table", ("q8ta_table", "words"), (ANY_INT8,), ANY_INT8, synced=True, threads=eight_words),
        ),
    ),
)
