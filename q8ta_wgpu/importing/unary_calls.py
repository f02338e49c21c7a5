"""Importer functions of operators of one tensor, the rows of `functions.py`.

A row without attributes is imported from aten's overload of its own name (`relu.default`); other calls stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.graph import INT32, Attrs
from q8ta_wgpu.ir.op import FLOAT_MAX
from q8ta_wgpu.kernels.elementwise.functions import ROWS, Row

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def bounds(low: Any, high: Any) -> Attrs:
    """Attributes of `clamp`. Bounds may be None or infinite. Where low > high, both are `high`, as in torch."""
    high = FLOAT_MAX if high is None else min(max(float(high), -FLOAT_MAX), FLOAT_MAX)
    low = -FLOAT_MAX if low is None else min(max(float(low), -FLOAT_MAX), FLOAT_MAX)
    return {"min": min(low, high), "max": high}


def gelu(b: Builder, args: Mapping[str, Any]) -> str:
    """gelu, exact or by its tanh approximation."""
    return b.emit("gelu_tanh" if args["approximate"] == "tanh" else "gelu", (args["self"],))


def power(b: Builder, args: Mapping[str, Any]) -> str:
    """A tensor to the power of a number; without one, its square."""
    exponent = float(args.get("exponent", 2))
    named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if exponent == 1.0:
        return str(args["self"])
    if exponent in named:
        return b.emit(named[exponent], (args["self"],))
    return b.emit("pow", (args["self"],), {"exponent": exponent})


def divisor(b: Builder, number: Any) -> float:
    """The divisor as a float. Refuses one that is zero in float32."""
    if np.float32(number) == 0:
        raise b.refuse(f"it divides by zero, found the divisor {number}: divide by a number that float32 tells from 0")
    return float(number)


def divide(b: Builder, args: Mapping[str, Any]) -> str:
    """A division by a number, with aten's rounding_mode 'floor', 'trunc' or None."""
    rounded = {"floor": "floor_divide", "trunc": "trunc_divide"}.get(args.get("rounding_mode") or "", "divide")
    return b.emit(rounded, (args["self"],), {"divisor": divisor(b, args["other"])})


def remainder(op: str) -> Import:
    """The importer of `op`, the remainder of a division by a number. `remainder` has the divisor's sign, `fmod` the
    tensor's."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        return b.emit(op, (args["self"],), {"divisor": divisor(b, args["other"])})

    return rule


def power_of(b: Builder, args: Mapping[str, Any]) -> str:
    """A number to the power of a tensor, as exp(log(number) * tensor). Refuses numbers that are not positive."""
    base = float(args["self"])
    if base <= 0:
        raise b.refuse(f"it takes {base:g} to a power: a positive number is supported")
    powers = b.emit("affine", (args["exponent"],), {"factor": math.log(base), "term": 0.0})
    return b.emit("exp", (powers,))


def logarithm(base: float) -> Import:
    """The importer of the logarithm to a base."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        natural = b.emit("log", (args["self"],))
        return b.emit("affine", (natural,), {"factor": 1.0 / math.log(base), "term": 0.0})

    return rule


def compare(name: str) -> Import:
    """The importer of a comparison with a number. For equality with an infinity, elements are compared with the largest
    float32: only the infinity exceeds it. Refuses other comparisons with an infinity."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        number = float(args["other"])
        if not math.isinf(number):
            return b.emit(f"{name}_scalar", (args["self"],), {"number": number})
        if name not in ("eq", "ne"):
            raise b.refuse(f"it compares with {number}: torch.isinf tells infinities")
        found = b.emit(
            "gt_scalar" if number > 0 else "lt_scalar", (args["self"],), {"number": math.copysign(FLOAT_MAX, number)}
        )
        return found if name == "eq" else b.emit("eq_scalar", (b.truth(found),), {"number": 0.0})

    return rule


def logical_not(b: Builder, args: Mapping[str, Any]) -> str:
    """True where an element is 0."""
    return b.emit("eq_scalar", (args["self"],), {"number": 0.0})


def bitwise_not(b: Builder, args: Mapping[str, Any]) -> str:
    """The inverted bits of integers; of bools their negation."""
    if b.type(args["self"]).dtype == INT32:
        return b.emit("affine", (args["self"],), {"factor": -1.0, "term": -1.0})
    return logical_not(b, args)


def onnx_clip(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Clip. Without bounds the result is its operand."""
    x, *ends = (*args["inputs"], None, None)[:3]
    if any(end is not None and b.array(end) is None for end in ends):
        for name, end in zip(("maximum", "minimum"), ends, strict=True):
            x = x if end is None else b.aten(f"aten.{name}.default", {"self": x, "other": end})
        return str(x)
    low, high = (
        args[name] if name in args else onnx_calls.number(b, end, name)
        for name, end in zip(("min", "max"), ends, strict=True)
    )
    if low is None and high is None:
        return str(x)
    return b.emit("clamp", (x,), bounds(low, high))


def _onnx_gelu(approximate: str | None) -> Import:
    return lambda b, args: gelu(b, {"self": args["inputs"][0], "approximate": approximate or args["approximate"]})


ONNX_GELU: Mapping[str, Import] = {
    "Gelu": _onnx_gelu(None),
    "com.microsoft.Gelu": _onnx_gelu("none"),
}


def onnx_isinf(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's IsInf, of one sign or both."""
    (x,) = args["inputs"]
    if args["detect_negative"] and args["detect_positive"]:
        return b.emit("isinf", (x,))
    return b.aten("aten.eq.Scalar", {"self": x, "other": -math.inf if args["detect_negative"] else math.inf})


def onnx_hardsigmoid(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's HardSigmoid: min(max(alpha * x + beta, 0), 1)."""
    (x,), alpha, beta = args["inputs"], float(args["alpha"]), float(args["beta"])
    if np.float32(alpha) == np.float32(1 / 6) and beta == 0.5:
        return b.emit("hardsigmoid", (x,))
    line = b.emit("affine", (x,), {"factor": alpha, "term": beta})
    return b.emit("clamp", (line,), bounds(0, 1))


def onnx_swish(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Swish: x * sigmoid(alpha * x)."""
    (x,), alpha = args["inputs"], float(args["alpha"])
    if alpha == 1:
        return b.emit("silu", (x,))
    scaled = b.emit("affine", (x,), {"factor": alpha, "term": 0.0})
    return b.emit("mul", (x, b.emit("sigmoid", (scaled,))))


_NO_CALL = ("gelu_tanh", "quick_gelu", "softsign")
"""Functions without attributes that aten has no call for: passes/plan/spellings.py finds them among other operators."""

_ATTRS: Mapping[str, Callable[[Mapping[str, Any]], Attrs]] = {
    "clamp_max.default": lambda a: bounds(None, a["max"]),
    "clamp_min.default": lambda a: bounds(a["min"], None),
    **dict.fromkeys(("clamp.default", "clip.default"), lambda a: bounds(a["min"], a["max"])),
    "hardtanh.default": lambda a: bounds(a["min_val"], a["max_val"]),
    "relu6.default": lambda _: bounds(0, 6),
    "leaky_relu.default": lambda a: {"slope": float(a["negative_slope"])},
    "elu.default": lambda a: {k: float(a[k]) for k in ("alpha", "scale", "input_scale")},
    "celu.default": lambda a: {"alpha": float(a["alpha"]), "scale": 1.0, "input_scale": 1.0 / a["alpha"]},
    "selu.default": lambda _: {"alpha": SELU_ALPHA, "scale": SELU_SCALE, "input_scale": 1.0},
    "softplus.default": lambda a: {k: float(a[k]) for k in ("beta", "threshold")},
    "neg.default": lambda _: {"factor": -1.0, "term": 0.0},
}
"""From the arguments of an aten call to the attributes, by overload name."""

_ALSO = {
    "clamp": ("relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max"),
    "leaky_relu": ("leaky_relu",),
    "elu": ("elu", "celu", "selu"),
    "softplus": ("softplus",),
    "affine": ("neg",),
    "trunc": ("trunc", "fix"),
    "erfc": ("erfc", "special_erfc"),
}
"""The aten names of rows that have attributes, or several names."""

_ONNX_ATTRS: Mapping[str, Callable[[Mapping[str, Any]], Attrs]] = {
    "LeakyRelu": lambda a: {"slope": float(a["alpha"])},
    "Elu": lambda a: {"alpha": float(a["alpha"]), "scale": 1.0, "input_scale": 1.0},
    "Celu": lambda a: {"alpha": float(a["alpha"]), "scale": 1.0, "input_scale": 1.0},
    "Selu": lambda a: {"alpha": float(a["alpha"]), "scale": float(a["gamma"]), "input_scale": 1.0},
    "Softplus": lambda _: {"beta": 1.0, "threshold": FLOAT_MAX},
    "Neg": lambda _: {"factor": -1.0, "term": 0.0},
}
_ONNX_NAMES: Mapping[str, tuple[str, ...]] = {
    "leaky_relu": ("LeakyRelu",),
    "elu": ("Elu", "Celu", "Selu"),
    "softplus": ("Softplus",),
    "affine": ("Neg",),
    **{
        name.lower(): (name,)
        for name in (
            *("Relu", "Sigmoid", "Tanh", "HardSwish", "Mish", "Softsign", "Exp", "Log", "Sqrt", "Reciprocal", "Abs"),
            *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf"),
            *("Ceil", "Floor", "Round", "Sign", "IsNaN"),
        )
    },
}
"""ONNX's operators by the row that each becomes."""


def _rule(op: str, operand: Callable[[Mapping[str, Any]], Any], attrs: Callable[[Mapping[str, Any]], Attrs]) -> Import:
    return lambda b, args: b.emit(op, (operand(args),), attrs(args))


def _aten(row: Row) -> dict[str, Import]:
    """Importer functions of a row by aten name. In-place names (`relu_.default`) are included: graphs of QAT have
    them."""
    plain = () if row.schema or row.name in _NO_CALL or row.name in _RULES else (row.name,)
    names = [f"{name}.default" for name in _ALSO.get(row.name, plain)]
    own = {name: _rule(row.name, lambda a: a["self"], _ATTRS.get(name, lambda _: {})) for name in names}
    rules = {**_RULES.get(row.name, {}), **own}
    in_place = {name.replace(".", "_.", 1): rule for name, rule in rules.items()}
    return {f"aten.{name}": rule for name, rule in {**rules, **in_place}.items()}


def _onnx(row: Row) -> dict[str, Import]:
    """Importer functions of a row by ONNX operator."""
    names = _ONNX_NAMES.get(row.name, ())
    own = {name: _rule(row.name, lambda a: a["inputs"][0], _ONNX_ATTRS.get(name, lambda _: {})) for name in names}
    return {**_ONNX.get(row.name, {}), **own}


_RULES: Rules = {
    "gelu": {"gelu.default": gelu},
    "pow": {"pow.Tensor_Scalar": power, "square.default": power},
    "remainder": {"remainder.Scalar": remainder("remainder")},
    "fmod": {"fmod.Scalar": remainder("fmod")},
    "divide": dict.fromkeys(("div.Scalar", "div.Scalar_mode"), divide),
    **{f"{name}_scalar": {f"{name}.Scalar": compare(name)} for name in ("gt", "ge", "lt", "le", "ne")},
    "eq_scalar": {
        "eq.Scalar": compare("eq"),
        "logical_not.default": logical_not,
        "bitwise_not.default": bitwise_not,
    },
    "affine": {
        "pow.Scalar": power_of,
        "exp2.default": lambda b, a: power_of(b, {"self": 2.0, "exponent": a["self"]}),
        "log2.default": logarithm(2.0),
        "log10.default": logarithm(10.0),
    },
}
_ONNX: Rules = {
    "clamp": {"Clip": onnx_clip},
    "silu": {"Swish": onnx_swish},
    "gelu": ONNX_GELU,
    "hardsigmoid": {"HardSigmoid": onnx_hardsigmoid},
    "isinf": {"IsInf": onnx_isinf},
    "eq_scalar": {"Not": onnx_calls.by_aten("aten.logical_not.default", "self")},
}
ATEN: Rules = {row.name: _aten(row) for row in ROWS}
ONNX: Rules = {row.name: _onnx(row) for row in ROWS}
