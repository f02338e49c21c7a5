"""embedding: rows of a table of int8, int16, or of 4 bits, at computed indices. Each row has a scale; the result is
float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import bits
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT16, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Case, Op, Operand
from q8ta_wgpu.kernels.lib import valid
from q8ta_wgpu.kernels.move.gather import from_end, rows_at


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    rows, scale, indices = (t.shape for t in types)
    if len(rows) == 3:
        rows = bits.check(rows, rows[1] * bits.group_of(rows))
    if len(rows) != 2 or scale != rows[:1] or len(indices) != 2 or indices[1] != 1:
        raise GraphError(
            f"embedding needs a table, a scale for each row and a column of indices, found {rows}, {scale}, {indices}"
        )
    return (indices[0], rows[1]), FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    rows, scale, indices = arrays
    rows = bits.values(rows, call.output.shape[1]) if rows.ndim == 3 else rows
    found = rows_at(indices[:, 0], len(rows), call.attrs["from_end"])
    return rows[found].astype(np.float32) * scale[found, None]


def _source(call: Call) -> tuple[str, ...]:
    rows = call.inputs[0]
    stored = "bits" if len(rows.shape) == 3 else "int16" if rows.dtype == INT16 else ""
    element = (f"element_of=element_of_{stored}",) if stored else ()
    return "embedding", "map", f"index_within=index_{call.inputs[2].dtype}", *element


def _params(call: Call) -> Params:
    count, *groups = call.inputs[0].shape
    sizes = {"width": call.output.shape[1], "last": count - 1, "groups": groups[0], "group_bytes": groups[-1]}
    return {**{name: np.uint32(size) for name, size in sizes.items()}, "from_end": from_end(call, count)}


OPS = (
    Op(
        name="embedding",
        operands=(
            Operand("rows", constant=True, dtypes=(INT8, INT16)),
            Operand("scale", constant=True, valid=valid.finite(1)),
            Operand("indices", dtypes=(INT32, FLOAT32)),
        ),
        infer=_infer,
        reference=_reference,
        schema={"from_end": Attr("bool")},
        kernels=(
            Kernel(
                "embedding",
                _source,
                (FLOAT,),
                FLOAT,
                params=_params,
            ),
        ),
        rows=lambda call: call.inputs[0].shape[0],
        work=lambda call: call.output.numel,
        cases=(
            Case(((7, 5), (7,), (4, 1)), {"from_end": True}),
            Case(((3, 16), (3,), (9, 1)), {"from_end": False}),
            Case(((1, 1), (1,), (1, 1)), {"from_end": False}),
            Case(((7, 3, 17), (7,), (5, 1)), {"from_end": True}),
            Case(((7, 5), (7,), (4, 1)), {"from_end": False}, "int16"),
        ),
    ),
)
