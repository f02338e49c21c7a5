"""Elementwise functions of one tensor in float64: definitions that need more than a row of `functions.ROWS`.

Each takes a float64 array, and the operator's attributes if it has any. It returns an array of the same shape. Those of
integers take an int64 array.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.graph import Array, Attrs
from q8ta_wgpu.ir.op import FLOAT_MAX

Float64 = NDArray[np.float64]


def sigmoid(x: Float64) -> Float64:
    """1 / (1 + e^-x), without an infinity between."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def erf(x: Float64) -> Float64:
    """The error function."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def erfc(x: Float64) -> Float64:
    """1 - erf(x), exact where that is small."""
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), np.float64)


def gelu(x: Float64) -> Float64:
    """x times the share of a normal distribution below x."""
    return np.asarray(0.5 * x * erfc(-x * math.sqrt(0.5)))


def gelu_tanh(x: Float64) -> Float64:
    """gelu by its tanh approximation."""
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def hardsigmoid(x: Float64) -> Float64:
    """relu6(x + 3) / 6."""
    return np.asarray(np.clip(x + 3.0, 0.0, 6.0) / 6.0)


def mish(x: Float64) -> Float64:
    """x * tanh(log(1 + e^x))."""
    return np.asarray(x * np.tanh(np.logaddexp(0.0, x)))


def elu(x: Float64, attrs: Attrs) -> Float64:
    """An exponential below 0, and a line above it."""
    negative = attrs["alpha"] * attrs["scale"] * np.expm1(np.minimum(x, 0.0) * attrs["input_scale"])
    return np.asarray(np.where(x > 0, attrs["scale"] * x, negative))


def softplus(x: Float64, attrs: Attrs) -> Float64:
    """log(1 + e^(beta * x)) / beta, and x itself above the threshold."""
    scaled = x * attrs["beta"]
    smooth = np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(scaled))) / attrs["beta"]
    return np.where(scaled > attrs["threshold"], x, smooth)


def clamp(x: Float64, attrs: Attrs) -> Float64:
    """Clamps to bounds, of which the largest float32 stands for an infinity."""
    low, high = (b if abs(b) < FLOAT_MAX else math.copysign(math.inf, b) for b in (attrs["min"], attrs["max"]))
    return np.asarray(np.clip(x, low, high))


def compared(compare: Callable[[Array, Array], Array]) -> Callable[[Float64, Attrs], Array]:
    """A function that is 1 where the comparison with a number holds in float32, as in torch, else 0."""
    return lambda x, a: compare(x.astype(np.float32), np.asarray(a["number"], np.float32)).astype(np.float64)


def compared_integers(compare: Callable[[Array, int], Array]) -> Callable[[Array, Attrs], Array]:
    """A comparison of integers with a number, which gives bools."""
    return lambda x, a: compare(x, int(a["number"]))


def rounding(function: Callable[[Float64], Float64]) -> Callable[[Float64, Attrs], Array]:
    """A function of float32 numbers whose results are integers."""
    return lambda x, _: function(_as_float32(x))


def divided(function: Callable[[Float64, float], Float64]) -> Callable[[Float64, Attrs], Array]:
    """A function of float32 numbers and a divisor, rounded to float32."""
    return lambda x, a: function(_as_float32(x), float(np.float32(a["divisor"])))


def divided_integers(function: Callable[[Array, int], Array]) -> Callable[[Array, Attrs], Array]:
    """A function of integers and a divisor."""
    return lambda x, a: function(x, int(a["divisor"]))


def _as_float32(x: Float64) -> Float64:
    """Numbers rounded to float32, as torch has them: at a discontinuity the last bit decides."""
    return x.astype(np.float32).astype(np.float64)
