"""The table of elementwise functions of one tensor: the definition of each.

`unary.py` makes an operator of each row. NaN, infinities and zeros give what torch gives. Definitions that need more
than an expression are in `float64.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs
from q8ta_wgpu.ir.op import FLOAT_MAX, Attr, number
from q8ta_wgpu.kernels.elementwise import float64

NUMBER = Attr("float", low=-FLOAT_MAX, high=FLOAT_MAX)
POSITIVE = Attr("float", low=1e-30, high=1e30)


@dataclass(frozen=True)
class Row:
    """One elementwise function of one tensor.

    Attributes:
        name: of the operator.
        function: its definition, (float64 array, attrs) -> array of the same shape.
        schema: its attributes, at most three.
        clamp: for a function that clamps: attrs -> (low, high).
        as_curve: whether an epilogue can compute it as a piecewise linear curve.
        whole: whether its results are integers.
        jumps: whether it jumps, so that no curve is like it. One that rounds is left to a curve, whose knots are near.
        of_integers: its definition for int32, (int64 array, attrs) -> array: bools where it `compares`, else integers
            modulo 2^32. None where it takes float32 only.
        compares: whether it is a comparison, whose result is 0 or 1 in float32 of int32 too.
        attrs: attributes of the tested calls.
        tolerance: as for Op.
    """

    name: str
    function: Callable[[Array, Attrs], Array]
    schema: Mapping[str, Attr] = field(default_factory=dict)
    clamp: Callable[[Attrs], tuple[float, float]] | None = None
    as_curve: bool = False
    whole: bool = False
    jumps: bool = False
    of_integers: Callable[[Array, Attrs], Array] | None = None
    compares: bool = False
    attrs: tuple[Attrs, ...] = ({},)
    tolerance: float = 1e-5


ROWS = (
    Row("relu", lambda x, _: np.maximum(x, 0.0), clamp=lambda _: (0.0, FLOAT_MAX), tolerance=0),
    Row(
        "clamp",
        float64.clamp,
        schema={"min": NUMBER, "max": NUMBER},
        clamp=lambda a: (a["min"], a["max"]),
        of_integers=lambda x, a: np.clip(x, int(number(a["min"], INT32)), int(number(a["max"], INT32))),
        attrs=({"min": 0.0, "max": 6.0}, {"min": -1.0, "max": 1.0}, {"min": -FLOAT_MAX, "max": 2.5}),
        tolerance=1e-7,  # bounds are rounded to float32 for the device
    ),
    Row("sigmoid", lambda x, _: float64.sigmoid(x), as_curve=True),
    Row("tanh", lambda x, _: np.tanh(x), as_curve=True),
    Row("silu", lambda x, _: x * float64.sigmoid(x), as_curve=True),
    Row("gelu", lambda x, _: float64.gelu(x), as_curve=True),
    Row("gelu_tanh", lambda x, _: float64.gelu_tanh(x), as_curve=True),
    Row("hardswish", lambda x, _: x * float64.hardsigmoid(x), as_curve=True),
    Row("hardsigmoid", lambda x, _: float64.hardsigmoid(x), as_curve=True),
    Row(
        "leaky_relu",
        lambda x, a: np.where(x >= 0, x, x * a["slope"]),
        schema={"slope": NUMBER},
        as_curve=True,
        attrs=({"slope": 0.1}, {"slope": -0.25}),
    ),
    Row(
        "elu",
        float64.elu,
        schema={"alpha": NUMBER, "scale": NUMBER, "input_scale": NUMBER},
        as_curve=True,
        attrs=({"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}, {"alpha": 1.67, "scale": 1.05, "input_scale": 0.5}),
    ),
    Row(
        "softplus",
        float64.softplus,
        schema={"beta": POSITIVE, "threshold": NUMBER},
        as_curve=True,
        attrs=({"beta": 1.0, "threshold": 20.0}, {"beta": 2.0, "threshold": 3.0}),
    ),
    Row("mish", lambda x, _: float64.mish(x), as_curve=True),
    Row("exp", lambda x, _: np.exp(x)),
    Row("log", lambda x, _: np.log(x)),
    Row("sqrt", lambda x, _: np.sqrt(x)),
    Row("rsqrt", lambda x, _: 1.0 / np.sqrt(x)),
    Row("reciprocal", lambda x, _: 1.0 / x),
    Row("abs", lambda x, _: np.abs(x), of_integers=lambda x, _: np.abs(x), tolerance=0),
    Row(
        "pow",
        lambda x, a: np.power(x, a["exponent"]),
        schema={"exponent": NUMBER},
        attrs=({"exponent": 2.0}, {"exponent": 3.0}),
    ),
    Row("sin", lambda x, _: np.sin(x)),
    Row("cos", lambda x, _: np.cos(x)),
    Row("erf", lambda x, _: float64.erf(x)),
    Row("log1p", lambda x, _: np.log1p(x)),
    Row("expm1", lambda x, _: np.expm1(x)),
    Row("tan", lambda x, _: np.tan(x)),
    Row("atan", lambda x, _: np.arctan(x)),
    Row("asin", lambda x, _: np.arcsin(x)),
    Row("acos", lambda x, _: np.arccos(x)),
    Row("sinh", lambda x, _: np.sinh(x)),
    Row("cosh", lambda x, _: np.cosh(x)),
    Row("asinh", lambda x, _: np.arcsinh(x)),
    Row("acosh", lambda x, _: np.arccosh(x)),
    Row("atanh", lambda x, _: np.arctanh(x)),
    Row("erfc", lambda x, _: float64.erfc(x)),
    *(
        Row(name, float64.rounding(function), whole=True, tolerance=0)
        for name, function in (("ceil", np.ceil), ("trunc", np.trunc), ("floor", np.floor), ("round", np.rint))
    ),
    *(
        Row(
            name,
            float64.divided(function),
            schema={"divisor": NUMBER},
            whole=whole,
            jumps=not whole,
            of_integers=float64.divided_integers(integers),
            attrs=({"divisor": 0.75}, {"divisor": -3.0}),
        )
        for name, whole, function, integers in (
            ("floor_divide", True, np.floor_divide, np.floor_divide),
            ("trunc_divide", True, lambda x, divisor: np.trunc(x / divisor), lambda x, d: (x - np.fmod(x, d)) // d),
            ("remainder", False, np.remainder, np.remainder),
            ("fmod", False, np.fmod, np.fmod),
        )
    ),
    Row(
        "divide",
        float64.divided(np.divide),
        schema={"divisor": NUMBER},
        attrs=({"divisor": 49.0}, {"divisor": -0.1}, {"divisor": 3e-5}),
        tolerance=0,
    ),
    Row("isnan", lambda x, _: np.isnan(x).astype(np.float64), jumps=True, tolerance=0),
    Row("isinf", lambda x, _: np.isinf(x).astype(np.float64), jumps=True, tolerance=0),
    Row(
        "sign",
        lambda x, _: np.sign(np.nan_to_num(x, nan=0.0)),
        jumps=True,
        of_integers=lambda x, _: np.sign(x),
        tolerance=0,
    ),
    *(
        Row(
            f"{name}_scalar",
            float64.compared(compare),
            schema={"number": NUMBER},
            jumps=True,
            of_integers=float64.compared_integers(compare),
            compares=True,
            attrs=({"number": 0.75}, {"number": -1.0}),
            tolerance=0,
        )
        for name, compare in (
            ("gt", np.greater),
            ("ge", np.greater_equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("eq", np.equal),
            ("ne", np.not_equal),
        )
    ),
    Row(
        "affine",
        lambda x, a: float(np.float32(a["factor"])) * x + float(np.float32(a["term"])),
        schema={"factor": NUMBER, "term": NUMBER},
        of_integers=lambda x, a: x * int(a["factor"]) + int(a["term"]),
        attrs=({"factor": -0.75, "term": 1.5}, {"factor": 1.0, "term": -3.0}),
    ),
    # torch has no call for these two: passes/plan/spellings.py finds them among other operators.
    Row("softsign", lambda x, _: x / (1 + np.abs(x)), as_curve=True),
    Row("quick_gelu", lambda x, _: x * float64.sigmoid(1.702 * x), as_curve=True),
)
"""All functions. `NAME_of` in unary.wgsl computes them in float32, `NAME_int32` in unary_int32.wgsl in int32."""
