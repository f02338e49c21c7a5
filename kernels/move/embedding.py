"""embedding: rows of a table at computed indices, int8 with a scale for each row, as float32 numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand
from q8ta_wgpu.kernels.lib import valid
from q8ta_wgpu.kernels.move.gather import rows_at


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    rows, scale, place = (t.shape for t in types)
    if len(rows) != 2 or scale != rows[:1] or len(place) != 2 or place[1] != 1:
        raise GraphError(
            f"embedding needs a table, a scale a row and a column of indices, found {rows}, {scale}, {place}"
        )
    return (place[0], rows[1]), FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    rows, scale, place = arrays
    found = rows_at(place[:, 0], len(rows))
    return rows[found].astype(np.float32) * scale[found, None]


OPS = (
    Op(
        name="embedding",
        operands=(
            Operand("rows", constant=True, dtypes=(INT8,)),
            Operand("scale", constant=True, valid=valid.finite(1)),
            Operand("place", dtypes=(FLOAT32, INT32)),
        ),
        infer=_infer,
        reference=_reference,
        kernels=(
            Kernel(
                "embedding",
                lambda call: ("embedding", "map", f"place_within=place_{call.inputs[2].dtype}"),
                (FLOAT,),
                FLOAT,
                params=lambda call: {
                    "width": np.uint32(call.inputs[0].shape[1]),
                    "last": np.uint32(call.inputs[0].shape[0] - 1),
                },
            ),
        ),
        work=lambda call: call.output.numel,
        cases=(Case(((7, 5), (7,), (4, 1))), Case(((3, 16), (3,), (9, 1))), Case(((1, 1), (1,), (1, 1)))),
    ),
)
