"""where: elements of one tensor or another, selected by a third that is 0 or not. masked_fill is imported as it.

In int8 each of the two has an exact table from its steps to the result's. The table of a number has that number only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import Builder, Case, Op, Operand, reads_same_place

NAMES = ("condition", "a", "b")


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shapes = [t.shape for t in types[:3]]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise GraphError(f"where of shapes {shapes}: they do not broadcast") from None
    lead = shape[: max(len(shape) - 3, 0)]
    if len(shape) > 4 and any(np.prod(s) > 1 and s[: len(s) - 3] != lead for s in shapes):
        raise GraphError(f"where of shapes {shapes} broadcasts in a dimension left of the last three; expand first")
    return tuple(shape), FLOAT32


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if types[3].shape != (2, 256):
        raise GraphError(f"a choice has 2 tables of 256 entries, found shape {types[3].shape}")
    return _infer(types, attrs)[0], INT8X4


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    condition, a, b, table = arrays
    first, second = (tab[x.astype(np.int64) + 128] for tab, x in zip(table, (a, b), strict=True))
    return np.asarray(np.where(condition != call.zeros[0], first, second))


def _lower(call: QuantizedCall) -> Int8Form | str:
    if call.q[0] is None or call.out is None:
        return "it needs a quantized condition and a quantized result"
    if INT16X4 in (q.dtype for q in (*call.q, call.out) if q is not None):
        return "it has no int16 form"
    tables, operands = [], []
    for position in (1, 2):
        q, constant = call.q[position], call.constants.get(position)
        if q is not None:
            values = arithmetic.levels(q)
        elif isinstance(constant, np.ndarray) and constant.size == 1:
            values = np.full(256, constant.reshape(()), np.float64)
        else:
            return "an input is not quantized"
        tables.append(arithmetic.table(values, call.out, call.lo, call.hi))
        operands.append(0 if q is None else position)  # a number has one entry: any index finds it
    return Int8Form("q8ta_where", (0, *operands, np.stack(tables)), {})


def _import(b: Builder, args: Mapping[str, Any]) -> str:
    names = [args["condition"], *(_value(b, args[name]) for name in ("self", "other"))]
    shapes = [b.type(name).shape for name in names]
    shape = np.broadcast_shapes(*shapes)
    if len(shape) > 4:
        names = [
            name
            if found == shape or np.prod(found) == 1
            else b.aten("aten.expand.default", {"self": name, "size": shape})
            for name, found in zip(names, shapes, strict=True)
        ]
    return b.emit("where", names)


def _value(b: Builder, value: Any) -> str:
    """An operand; a number, or a constant of one element, becomes a float constant."""
    array = b.array(value) if isinstance(value, str) else np.array(value)
    return str(value) if array is None else b.constant(np.asarray(array, np.float32))


def _import_masked_fill(b: Builder, args: Mapping[str, Any]) -> str:
    return _import(b, {"condition": args["mask"], "self": args["value"], "other": args["self"]})


_SHAPES: tuple[tuple[Shape, ...], ...] = (
    ((1, 5, 3, 7), (1, 5, 3, 7), (1, 5, 3, 7)),
    ((2, 1, 4, 4), (2, 8, 4, 4), (2, 8, 1, 1)),
    ((7, 1), (3, 1, 5), (1,)),
    ((2, 3, 1, 3, 5), (2, 3, 2, 3, 5), (2, 3, 2, 3, 5)),
)

OPS = (
    Op(
        name="where",
        operands=tuple(map(Operand, NAMES)),
        infer=_infer,
        reference=lambda call, arrays: np.where(arrays[0] != 0, arrays[1], arrays[2]).astype(np.float32),
        kernels=(Kernel("where", ("where", "map", "compute=chosen"), (FLOAT,), FLOAT),),
        aten={
            **{f"aten.where.{name}": _import for name in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
            "aten.masked_fill.Scalar": _import_masked_fill,
            "aten.masked_fill.Tensor": _import_masked_fill,
        },
        int8=Arithmetic(_lower),
        reads=reads_same_place,
        cases=tuple(map(Case, _SHAPES)),
    ),
    Op(
        name="q8ta_where",
        operands=(
            *(Operand(name, dtypes=(INT8X4,)) for name in NAMES),
            Operand("table", constant=True, dtypes=(INT8,)),
        ),
        infer=_infer_int8,
        reference=_reference_int8,
        reads=reads_same_place,
        kernels=(
            Kernel(
                "q8ta_where",
                ("where", "map", "compute=q8ta_chosen"),
                (ANY_INT8,),
                ANY_INT8,
                params=lambda call: {"condition_zero": np.int32(call.zeros[0])},
            ),
        ),
    ),
)
