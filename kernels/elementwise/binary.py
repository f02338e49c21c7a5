"""add and mul with broadcasting, of floats and integers. A subtraction adds -alpha times its second operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call
from q8ta_wgpu.ir.int8 import Arithmetic, ToInt8
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Attr, Case, Op, Operand, number, reads_same_place
from q8ta_wgpu.kernels.elementwise import flat
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast_numbers
from q8ta_wgpu.kernels.elementwise.sums_and_products import lower_product, lower_sum


def _float_params(call: Call) -> Params:
    return {"alpha": number(call.attrs["alpha"], call.output.dtype)} if "alpha" in call.attrs else {}


def _float_reference(function: Callable[[Array, Array, Any], Array]) -> Callable[[Call, Sequence[Array]], Array]:
    """The reference of a sum or product. int32 wraps as in two's complement."""

    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        alpha = call.attrs.get("alpha", 1.0)
        if call.output.dtype == INT32:
            a, b = (x.astype(np.int64) for x in arrays)
            return function(a, b, int(alpha)).astype(np.int32)
        return function(arrays[0], arrays[1], np.float32(alpha)).astype(np.float32)

    return reference


_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 5, 3, 7), (1, 5, 3, 7)),
    ((2, 8, 4, 4), (2, 8, 1, 1)),
    ((2, 6, 3, 5), (1, 6, 1, 1)),
    ((3, 1, 5), (7, 1)),
    ((13,), (13,)),
    ((4, 9), (1,)),
    ((2, 3, 2, 3, 5), (2, 3, 1, 3, 5)),
)


def _cases(attrs: Sequence[Attrs]) -> tuple[Case, ...]:
    found = [Case(shapes, attrs[i % len(attrs)]) for i, shapes in enumerate(_SHAPES)]
    return (*found, Case(_SHAPES[0], attrs[0], "saturate"), Case(_SHAPES[1], attrs[0], "ties"))


_LINES = (
    ((2, 3, 10), (10,)),
    ((1, 1, 8), (3, 7, 8)),
    ((3, 7, 8), (8,)),
    ((8, 1, 1), (2, 8, 4, 5)),
    ((7,), (3, 7)),
)
"""Shapes where one operand is contiguous data that repeats."""


def _float_op(name: str, function: Callable[[Array, Array, Any], Array], int8: ToInt8) -> Op:
    summed = name != "mul"
    return Op(
        name=name,
        operands=(Operand("a", dtypes=NUMBERS), Operand("b", dtypes=NUMBERS)),
        infer=broadcast_numbers,
        reference=_float_reference(function),
        schema={"alpha": Attr("float", low=-1e30, high=1e30)} if summed else {},
        kernels=(flat.kernel(name, ("binary", f"apply={name}"), ("a", "b"), _float_params),),
        int8=Arithmetic(
            int8,
            ("norm", "activation") if summed else ("norm", "addend", "activation"),
            reads_int16=True,
            gives_int16=True,
            by_element=True,
        ),
        reads=reads_same_place,
        cases=(
            (*_cases(({"alpha": 1.0}, {"alpha": 2.0}, {"alpha": -0.5})), *(Case(s, {"alpha": 0.5}) for s in _LINES))
            if summed
            else _cases(({},))
        ),
        tolerance=1e-6,
    )


add = _float_op("add", lambda a, b, alpha: a + alpha * b, lower_sum)

mul = _float_op("mul", lambda a, b, _: a * b, lower_product)
