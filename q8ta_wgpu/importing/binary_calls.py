"""Importer functions of operators of two tensors, and of where. With a number in place of a tensor, most become an
operator of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.importing.onnx_calls import by_aten
from q8ta_wgpu.ir.graph import FLOAT32, INT32
from q8ta_wgpu.ir.op import (
    FLOAT_MAX,
)


def number_of(b: Builder, operand: Any, other: str) -> float | None:
    """The number that an operand is: a Python number, or a constant of one element that adds no dimensions to the value
    `other`. None for other operands."""
    if not isinstance(operand, str):
        return float(operand)
    array = b.array(operand)
    fits = array is not None and array.size == 1 and array.ndim <= len(b.type(other).shape)
    return float(array.reshape(())) if array is not None and fits else None


def spread(b: Builder, left: str, right: str) -> tuple[str, str]:
    """Two values expanded so that they broadcast in the last three dimensions only, as kernels require."""
    shapes = [b.type(name).shape for name in (left, right)]
    shape = np.broadcast_shapes(*shapes)
    if len(shape) <= 4 or shapes[0][:-3] == shapes[1][:-3]:
        return left, right
    first, second = (
        name if found == shape else b.aten("aten.expand.default", {"self": name, "size": shape})
        for name, found in zip((left, right), shapes, strict=True)
    )
    return first, second


def onnx_rule(aten: str, **arguments: Any) -> Import:
    """The importer of an ONNX operator of one or more operands, as the aten operator of two, applied from the left."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        first, *others = map(str, args["inputs"])
        for other in others:
            first = b.aten(aten, {"self": first, "other": other, **arguments})
        return first

    return rule


def divide(b: Builder, args: Mapping[str, Any]) -> str:
    """A division with a rounding mode: down, towards zero or none."""
    number = number_of(b, args["other"], args["self"])
    if number is not None:
        return b.aten("aten.div.Scalar_mode", {**args, "other": number})
    match args["rounding_mode"]:
        case "floor":
            return b.emit("floor_divide_tensors", spread(b, args["self"], args["other"]))
        case "trunc":
            return b.emit("trunc", (b.emit("div", spread(b, args["self"], args["other"])),))
    return b.aten("aten.div.Tensor", args)


def extreme(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of maximum or minimum. With a number it is a clamp."""
    bound = "min" if op == "maximum" else "max"

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        for x, other in ((args["self"], args["other"]), (args["other"], args["self"])):
            if not b.is_constant(x) and (number := number_of(b, other, x)) is not None:
                return b.aten("aten.clamp.default", {"self": x, "min": None, "max": None, bound: number})
        return b.emit(op, spread(b, args["self"], args["other"]))

    return rule


def pair(op: str, of_number: str = "", name: str = "other") -> Import:
    """The importer of a call that is `op` of its two operands, the second one by `name`; of a number the aten call
    `of_number`."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        number = number_of(b, args[name], args["self"]) if of_number else None
        if number is not None:
            return b.aten(of_number, {**args, name: number})
        return b.emit(op, spread(b, args["self"], args[name]))

    return rule


_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}


def compare(name: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of a comparison. a < b is imported as b > a. With a number it is an operator of one tensor."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        left, right = args["self"], args["other"]
        for x, other, op in ((left, right, name), (right, left, _MIRRORED[name])):
            if not b.is_constant(x) and (number := number_of(b, other, x)) is not None:
                return b.aten(f"aten.{op}.Scalar", {"self": x, "other": number})
        if name in ("lt", "le"):
            left, right = right, left
        return b.emit(_MIRRORED[name] if name in ("lt", "le") else name, spread(b, left, right))

    return rule


def logical(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of a logical operator. Numbers that are not 0 are true."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        sides = (b.emit("ne_scalar", (args[name],), {"number": 0.0}) for name in ("self", "other"))
        first, second = map(b.truth, sides)
        return b.emit(op, spread(b, first, second))

    return rule


def bits(op: str, of_bools: Import | None) -> Import:
    """The importer of `op`, an operator on the bits of int32. Either operand may be a number. `of_bools` imports the
    same call of bools; None refuses it."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        operands = args["self"], args["other"]
        if not any(isinstance(x, str) and b.array(x) is None and b.type(x).dtype == INT32 for x in operands):
            if of_bools is None:
                raise b.refuse("it computes with the bits of integers: of int32 it is supported")
            return str(of_bools(b, args))
        left, right = (x if isinstance(x, str) else b.constant(np.asarray(int(x), np.int32)) for x in operands)
        return b.emit(op, spread(b, left, right))

    return rule


def overloads(name: str) -> tuple[str, ...]:
    """The overloads of an aten operator on bits, whose operands may be numbers."""
    return tuple(f"aten.bitwise_{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar"))


def _onnx_mod(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Mod. With `fmod` the result has the sign of the first operand, else of the second."""
    left, right = args["inputs"]
    if not args["fmod"]:
        return b.aten("aten.remainder.Tensor", {"self": left, "other": right})
    if (divisor := number_of(b, right, left)) is not None:
        return b.aten("aten.fmod.Scalar", {"self": left, "other": divisor})
    quotient = b.emit("trunc", (b.emit("div", spread(b, left, right)),))
    return b.emit("add", spread(b, left, b.emit("mul", spread(b, quotient, right))), {"alpha": -1.0})


def _import_sum_or_product(op: str, sign: float = 1.0) -> Import:
    """The importer of aten's add, sub or mul. The second operand may be a number, and shapes may broadcast. `sign` is
    the sign of the second operand in a sum."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        alpha = sign * float(args.get("alpha", 1))
        left, right = args["self"], args["other"]
        first = number_of(b, left, right) if isinstance(right, str) else None
        if first is not None and not b.is_constant(right):
            factor, term = (first, 0.0) if op == "mul" else (alpha, first)
            return b.emit("affine", (right,), {"factor": factor, "term": term})
        second = number_of(b, right, left)
        if second is not None:
            factor, term = (second, 0.0) if op == "mul" else (1.0, alpha * second)
            return b.emit("affine", (left,), {"factor": factor, "term": term})
        return b.emit(op, spread(b, left, right), {} if op == "mul" else {"alpha": alpha})

    return rule


def _onnx_mean(b: Builder, args: Mapping[str, Any]) -> str:
    total = b.onnx("Sum", args["inputs"])
    return b.emit("divide", (total,), {"divisor": float(len(args["inputs"]))})


_ONNX: Mapping[str, Mapping[str, Import]] = {
    "add": {
        "Add": onnx_rule("aten.add.Tensor"),
        "Sub": onnx_rule("aten.sub.Tensor"),
        "Sum": onnx_rule("aten.add.Tensor"),
        "Mean": _onnx_mean,
    },
    "mul": {"Mul": onnx_rule("aten.mul.Tensor")},
}


def _import_prelu(b: Builder, args: Mapping[str, Any]) -> str:
    slope = b.array(args["weight"])
    if slope is None:
        raise b.refuse("its slopes must be a parameter, found a value computed by the program")
    if slope.size == 1:
        return b.emit("leaky_relu", (args["self"],), {"slope": float(slope.reshape(()))})
    return b.emit("prelu", (args["self"], args["weight"]))


def _onnx_prelu(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's PRelu. Its slopes broadcast from the last dimension: one for each channel is (channels, 1, ...)."""
    x, slope = args["inputs"]
    slopes, shape = b.array(slope), b.type(x).shape
    if slopes is not None and slopes.size == 1:
        return b.aten("aten.prelu.default", {"self": x, "weight": slope})
    lead = () if slopes is None else (1,) * (len(shape) - slopes.ndim) + slopes.shape
    if slopes is not None and len(shape) > 1 and lead == (1, shape[1], *[1] * (len(shape) - 2)):
        return b.emit("prelu", (x, b.constant(slopes.reshape(-1), "slope")))
    negative = b.emit("clamp", (x,), {"min": -FLOAT_MAX, "max": 0.0})
    scaled = b.aten("aten.mul.Tensor", {"self": negative, "other": slope})
    return b.aten("aten.add.Tensor", {"self": b.emit("relu", (x,)), "other": scaled})


def _import_where(b: Builder, args: Mapping[str, Any]) -> str:
    dtype = _dtype(b, args["self"], args["other"])
    names = [args["condition"], *(_value(b, args[name], dtype) for name in ("self", "other"))]
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


def _dtype(b: Builder, *values: Any) -> str:
    """INT32 where all computed values are int32 and all numbers and constants are integers that int32 holds; else
    FLOAT32."""
    computed = {b.type(v).dtype for v in values if isinstance(v, str) and b.array(v) is None}
    arrays = [b.array(v) if isinstance(v, str) else np.array(v) for v in values]
    numbers = [x for x in arrays if x is not None]
    fits = all(x.dtype.kind in "biu" and (x.astype(np.int32) == x).all() for x in numbers)
    return INT32 if computed == {INT32} and fits else FLOAT32


def _value(b: Builder, value: Any, dtype: str) -> str:
    """The name of an operand. Numbers and constants become constants of `dtype`."""
    array = b.array(value) if isinstance(value, str) else np.array(value)
    return str(value) if array is None else b.constant(np.asarray(array, dtype))


def _onnx_thresholded(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's ThresholdedRelu: an element that is not above alpha becomes 0."""
    above = b.emit("gt_scalar", (args["inputs"][0],), {"number": float(args["alpha"])})
    return _import_where(b, {"condition": b.truth(above), "self": args["inputs"][0], "other": 0.0})


def _import_masked_fill(b: Builder, args: Mapping[str, Any]) -> str:
    return _import_where(b, {"condition": args["mask"], "self": args["value"], "other": args["self"]})


_PAIR = ("self", "other")

ATEN: Rules = {
    **{
        op: {
            f"aten.{name}{mark}.{overload}": _import_sum_or_product(op, sign)
            for name, sign in names.items()
            for mark in ("", "_")
            for overload in ("Tensor", "Scalar")
        }
        for op, names in (("add", {"add": 1.0, "sub": -1.0}), ("mul", {"mul": 1.0}))
    },
    "div": dict.fromkeys(("aten.div.Tensor", "aten.div_.Tensor"), pair("div", "aten.div.Scalar")),
    "floor_divide_tensors": {"aten.div.Tensor_mode": divide},
    "remainder_tensors": {"aten.remainder.Tensor": pair("remainder_tensors", "aten.remainder.Scalar")},
    "pow_tensors": {"aten.pow.Tensor_Tensor": pair("pow_tensors", "aten.pow.Tensor_Scalar", "exponent")},
    "hypot": {"aten.hypot.default": pair("hypot")},
    "atan2_tensors": {"aten.atan2.default": pair("atan2_tensors")},
    "maximum": {
        **{f"aten.{name}": extreme("maximum") for name in ("maximum.default", "max.other")},
        "aten.logical_or.default": logical("maximum"),
    },
    "minimum": {
        **{f"aten.{name}": extreme("minimum") for name in ("minimum.default", "min.other")},
        "aten.logical_and.default": logical("minimum"),
    },
    "gt": {f"aten.{name}.Tensor": compare(name) for name in ("gt", "lt")},
    "ge": {f"aten.{name}.Tensor": compare(name) for name in ("ge", "le")},
    "eq": {"aten.eq.Tensor": compare("eq")},
    "ne": {"aten.ne.Tensor": compare("ne"), "aten.logical_xor.default": logical("ne")},
    **{
        op: dict.fromkeys((*overloads(name), *names), bits(op, of_bools))
        for op, of_bools, name, names in (
            ("bitwise_and", extreme("minimum"), "and", ()),
            ("bitwise_or", extreme("maximum"), "or", ()),
            ("bitwise_xor", compare("ne"), "xor", ()),
            ("shift_left", None, "left_shift", ("aten.__lshift__.Tensor", "aten.__lshift__.Scalar")),
            ("shift_right", None, "right_shift", ("aten.__rshift__.Tensor", "aten.__rshift__.Scalar")),
        )
    },
    "prelu": {"aten.prelu.default": _import_prelu},
    "where": {
        **{f"aten.where.{name}": _import_where for name in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
        "aten.masked_fill.Scalar": _import_masked_fill,
        "aten.masked_fill.Tensor": _import_masked_fill,
    },
}
ONNX: Rules = {
    **_ONNX,
    "div": {"Div": onnx_rule("aten.div.Tensor")},
    "remainder_tensors": {"Mod": _onnx_mod},
    "pow_tensors": {"Pow": by_aten("aten.pow.Tensor_Tensor", "self", "exponent")},
    "maximum": {"Max": onnx_rule("aten.maximum.default"), "Or": by_aten("aten.logical_or.default", *_PAIR)},
    "minimum": {"Min": onnx_rule("aten.minimum.default"), "And": by_aten("aten.logical_and.default", *_PAIR)},
    "gt": {"Greater": by_aten("aten.gt.Tensor", *_PAIR), "Less": by_aten("aten.lt.Tensor", *_PAIR)},
    "ge": {"GreaterOrEqual": by_aten("aten.ge.Tensor", *_PAIR), "LessOrEqual": by_aten("aten.le.Tensor", *_PAIR)},
    "eq": {"Equal": by_aten("aten.eq.Tensor", *_PAIR)},
    "ne": {"Xor": by_aten("aten.logical_xor.default", *_PAIR)},
    "prelu": {"PRelu": _onnx_prelu},
    "where": {"Where": by_aten("aten.where.self", "condition", "self", "other"), "ThresholdedRelu": _onnx_thresholded},
}
