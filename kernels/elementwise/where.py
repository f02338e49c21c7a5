"""where: elements of one of two tensors, selected by a condition that is 0 or not. masked_fill is imported as it.

In int8 and int16 each of the two tensors is multiplied to steps of the result. A number is a constant of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, NUMBERS, WIDE_RANGE, Attr, Case, Op, Operand, one_dtype, reads_same_place
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast_shape

NAMES = ("condition", "a", "b")


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = broadcast_shape(*(t.shape for t in types[:3]))
    return shape, one_dtype(types[1:3], attrs) if types[0].dtype == FLOAT32 else FLOAT32


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    steps = [x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True)]
    a, b = (
        arithmetic.scaled_steps(x, call.attrs[f"{name}_multiplier"]) + call.attrs[f"{name}_steps"]
        for name, x in zip("ab", steps[1:], strict=True)
    )
    return arithmetic.stored(call, np.where(steps[0] != 0, a, b))


def _params_int8(call: Call) -> Params:
    zeros = {f"{name}_zero": np.int32(zero) for name, zero in zip(NAMES, call.zeros, strict=True)}
    factors = {name: np.float32(call.attrs[name]) for name in ("a_multiplier", "b_multiplier")}
    steps = {name: np.int32(call.attrs[name]) for name in ("a_steps", "b_steps")}
    return {**arithmetic.stored_fields(call), **zeros, **factors, **steps}


def _number(call: QuantizedCall, position: int) -> Array | None:
    """The number that a constant operand is, also for all elements of a result whose shape the quantized operands give;
    None of other operands."""
    constant = call.constants.get(position)
    if not isinstance(constant, np.ndarray) or not constant.size:
        return None
    number = constant.reshape(-1)[0]
    if constant.size > 1:
        quantized = [t.shape for t, q in zip(call.inputs, call.q, strict=True) if q is not None]
        gives_shape = np.broadcast_shapes(*quantized) == np.broadcast_shapes(*(t.shape for t in call.inputs))
        if not gives_shape or not np.array_equal(constant, np.full_like(constant, number), equal_nan=True):
            return None
    return np.asarray(number)


def _lower(call: QuantizedCall) -> Int8Form:
    _, out = call.quantized(), call.result
    attrs, operands = dict[str, float | int](lo=call.lo, hi=call.hi), []
    for name, position in (("a", 1), ("b", 2)):
        q, steps = call.q[position], 0.0
        factor = 0.0 if q is None else arithmetic.ratio(q, out)
        if q is None:
            if (number := _number(call, position)) is None:
                raise NoInt8Form(f"its operand {position} is a constant of many numbers, which are not quantized")
            steps = float(np.nan_to_num(number.astype(np.float64) / out.scale, nan=0.0))
        if factor is None:
            raise NoInt8Form("the ratio of its scales is not a finite float32")
        limit = arithmetic.STEPS_LIMIT
        attrs |= {f"{name}_multiplier": factor, f"{name}_steps": int(np.rint(np.clip(steps, -limit, limit)))}
        operands.append(0 if q is None else position)  # for a number any operand serves: its multiplier is 0
    return Int8Form("q8ta_where", (0, *operands), attrs)


_SHAPES: tuple[tuple[Shape, ...], ...] = (
    ((1, 5, 3, 7), (1, 5, 3, 7), (1, 5, 3, 7)),
    ((2, 1, 4, 4), (2, 8, 4, 4), (2, 8, 1, 1)),
    ((7, 1), (3, 1, 5), (1,)),
    ((2, 3, 1, 3, 5), (2, 3, 2, 3, 5), (2, 3, 2, 3, 5)),
)

OPS = (
    Op(
        name="where",
        operands=(Operand("condition"), *(Operand(name, dtypes=NUMBERS) for name in NAMES[1:])),
        infer=_infer,
        reference=lambda call, arrays: np.where(arrays[0] != 0, arrays[1], arrays[2]),
        kernels=(Kernel("where", ("where", "map", "compute=selected"), (FLOAT,), FLOAT),),
        int8=Arithmetic(_lower, reads_int16=True, gives_int16=True, by_element=True),
        reads=reads_same_place,
        cases=tuple(map(Case, _SHAPES)),
    ),
    Op(
        name="q8ta_where",
        operands=tuple(Operand(name, dtypes=INTEGERS) for name in NAMES),
        infer=lambda types, attrs: (_infer(types, attrs)[0], INT8X4),
        results=(INT16X4,),
        reference=_reference_int8,
        schema={
            **WIDE_RANGE,
            **dict.fromkeys(("a_multiplier", "b_multiplier"), Attr("float", low=0, high=3.4e38)),
            **dict.fromkeys(("a_steps", "b_steps"), Attr("int", -arithmetic.STEPS_LIMIT, arithmetic.STEPS_LIMIT)),
        },
        reads=reads_same_place,
        kernels=(
            Kernel(
                "q8ta_where",
                ("where", "map", "compute=q8ta_selected"),
                (ANY_INT8,),
                ANY_INT8,
                params=_params_int8,
            ),
        ),
    ),
)
