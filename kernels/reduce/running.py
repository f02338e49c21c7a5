"""cumsum and cumprod: running results along a dimension. A team of threads computes a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Attr, Case, Op, Operand, number, reads_beside_dim
from q8ta_wgpu.kernels.lib import rows

TURNS = 12
"""The most loop turns of a thread for each item of a row: one for each doubling up to 256 threads, and some more."""


def _rows(call: Call) -> rows.Rows:
    return replace(rows.along(call), vectors=1)


def _op(name: str, function: Callable[..., Array], wgsl: str, neutral: float, *more: Shape) -> Op:
    def params(call: Call, item: int) -> Params:
        return {"inner": np.uint32(_rows(call).inner), "neutral": number(neutral, call.output.dtype)}

    def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        return rows.infer(types, attrs)[0], types[0].dtype

    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if call.output.dtype == INT32:
            return function(arrays[0].astype(np.int64), call.attrs["dim"]).astype(np.int32)
        with np.errstate(all="ignore"):
            return function(arrays[0].astype(np.float64), call.attrs["dim"]).astype(np.float32)

    source = ("running", f"accumulated={wgsl}")
    return Op(
        name=name,
        operands=(Operand("x", dtypes=NUMBERS),),
        infer=infer,
        reference=reference,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, source, (), _rows, params, TURNS),),
        cases=(
            Case(((2, 21, 5, 7),), {"dim": 1}),
            Case(((13,),), {"dim": 0}),
            *(Case((shape,), {"dim": 1}) for shape in more),
        ),
        tolerance=1e-5,
        reads=reads_beside_dim,
        work=lambda call: TURNS * call.output.numel,
    )


OPS = (
    _op("cumsum", np.cumsum, "total", 0.0, (3, 1100), (2, 2, 3, 2, 9)),
    _op("cumprod", np.cumprod, "product", 1.0),
)
