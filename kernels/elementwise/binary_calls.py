"""How calls of aten and ONNX become operators of two tensors. With a number in place of a tensor, most become an
operator of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT32
from q8ta_wgpu.ir.op import Builder, Import
from q8ta_wgpu.kernels.elementwise.broadcasting import number_of, onnx_rule, spread
from q8ta_wgpu.kernels.lib.onnx_calls import by_aten


def div(b: Builder, args: Mapping[str, Any]) -> str:
    """A division."""
    number = number_of(b, args["other"], args["self"])
    if number is None:
        return b.emit("div", spread(b, args["self"], args["other"]))
    return b.aten("aten.div.Scalar", {**args, "other": number})


def power(b: Builder, args: Mapping[str, Any]) -> str:
    """A power whose exponent is a tensor."""
    number = number_of(b, args["exponent"], args["self"])
    if number is None:
        return b.emit("pow_tensors", spread(b, args["self"], args["exponent"]))
    return b.aten("aten.pow.Tensor_Scalar", {"self": args["self"], "exponent": number})


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
    return div(b, args)


def remainder(b: Builder, args: Mapping[str, Any]) -> str:
    """A remainder with the sign of the divisor."""
    number = number_of(b, args["other"], args["self"])
    if number is not None:
        return b.aten("aten.remainder.Scalar", {**args, "other": number})
    return b.emit("remainder_tensors", spread(b, args["self"], args["other"]))


def extreme(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of maximum or minimum. With a number it is a clamp."""
    bound = "min" if op == "maximum" else "max"

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        for x, other in ((args["self"], args["other"]), (args["other"], args["self"])):
            if not b.is_constant(x) and (number := number_of(b, other, x)) is not None:
                return b.aten("aten.clamp.default", {"self": x, "min": None, "max": None, bound: number})
        return b.emit(op, spread(b, args["self"], args["other"]))

    return rule


def pair(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of a call that is `op` of its two operands."""
    return lambda b, args: b.emit(op, spread(b, args["self"], args["other"]))


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


def bitwise(name: str) -> tuple[tuple[str, str], ...]:
    """The names and overloads of an aten operator on bits."""
    return tuple((f"bitwise_{name}", overload) for overload in ("Tensor", "Scalar", "Scalar_Tensor"))


def shifts(name: str, short: str) -> tuple[tuple[str, str], ...]:
    """The names and overloads of an aten shift. `short` is its name in Python."""
    overloads = tuple((f"bitwise_{name}", overload) for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"))
    return *overloads, (f"__{short}__", "Tensor"), (f"__{short}__", "Scalar")


def _onnx_mod(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Mod. With `fmod` the result has the sign of the first operand, else of the second."""
    left, right = args["inputs"]
    if not args["fmod"]:
        return b.aten("aten.remainder.Tensor", {"self": left, "other": right})
    if (divisor := number_of(b, right, left)) is not None:
        return b.aten("aten.fmod.Scalar", {"self": left, "other": divisor})
    quotient = b.emit("trunc", (b.emit("div", spread(b, left, right)),))
    return b.emit("add", spread(b, left, b.emit("mul", spread(b, quotient, right))), {"alpha": -1.0})


_PAIR = ("self", "other")

ONNX: Mapping[str, Mapping[str, Any]] = {
    "div": {"Div": onnx_rule("aten.div.Tensor")},
    "remainder_tensors": {"Mod": _onnx_mod},
    "pow_tensors": {"Pow": by_aten("aten.pow.Tensor_Tensor", "self", "exponent")},
    "maximum": {"Max": onnx_rule("aten.maximum.default"), "Or": by_aten("aten.logical_or.default", *_PAIR)},
    "minimum": {"Min": onnx_rule("aten.minimum.default"), "And": by_aten("aten.logical_and.default", *_PAIR)},
    "gt": {"Greater": by_aten("aten.gt.Tensor", *_PAIR), "Less": by_aten("aten.lt.Tensor", *_PAIR)},
    "ge": {"GreaterOrEqual": by_aten("aten.ge.Tensor", *_PAIR), "LessOrEqual": by_aten("aten.le.Tensor", *_PAIR)},
    "eq": {"Equal": by_aten("aten.eq.Tensor", *_PAIR)},
    "ne": {"Xor": by_aten("aten.logical_xor.default", *_PAIR)},
}
"""Importer functions of ONNX's operators, by the operator of two tensors."""
