"""What an operator is in int8: the kind that each float `Op` states once, for the passes, `verify` and the quantizer.

| kind            | in int8                                              | the quantizer observes            |
|-----------------|------------------------------------------------------|-----------------------------------|
| `WeightedSum`   | an operator of its own, what follows it joins it     | the activation, weight and result |
| `Normalization` | an operator of its own, or part of the sum before it | the activation and the result     |
| `PRelu`         | an operator of its own, or part of the sum before it | the activation and the result     |
| `Rowwise`       | an operator of its own                               | the activation and the result     |
| `Arithmetic`    | an operator of its own, what follows it joins it     | every operand and the result      |
| `Product`       | an operator of its own, what follows it joins it     | both operands and the result      |
| `Recurrent`     | an operator of its own                               | the activation, weights and result|
| `Elementwise`   | a table of results; a clamp is a range before it     | the operand and the result        |
| `Moves`         | itself: scale and zero point stay                    | operands and result as one        |
| `Monotonic`     | itself: scale and zero point stay                    | operands and result as one        |

An operator without a kind stays in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, QParams, TensorType


class NoInt8Form(Exception):  # noqa: N818
    """A quantized call has no int8 form. The message says why, as a report ends a sentence with it."""


@dataclass(frozen=True)
class Weight:
    """A quantized constant: real = scale[c] * (values - zero[c]) along `axis`. float64 scales, int64 zeros."""

    values: Array
    scale: Array
    zero: Array
    axis: int


@dataclass(frozen=True)
class QuantizedCall:
    """A call of a float operator between dequantizes and a quantize.

    Attributes:
        attrs, inputs: the float call's attributes and the types of its operands.
        q: quantization of each operand, None for constants.
        constants: constant operands by position: a `Weight`, or a float32 array.
        out: quantization of the result, None for a float32 result.
        lo, hi: range of the result: the quantize node's own, narrowed by fused activations.
        residual: quantization of an addend that joins before rounding, if any.
        affine: factor and term of each channel, float64 (channels,), applied before rounding, if any.
        activation: float64 function applied before rounding, if any (not a clamp).
        slopes: of a PReLU applied before rounding, float32 (channels,), if any.
        masked: whether bools say which elements take part.
        even: whether a row of which none takes part has equal shares; otherwise it is zeros.
        rows: the largest scale that a row of the first operand may have, in its steps, where each has one; else 0.
    """

    attrs: Attrs
    inputs: tuple[TensorType, ...]
    q: tuple[QParams | None, ...]
    constants: Mapping[int, Weight | Array]
    out: QParams | None
    lo: int = -128
    hi: int = 127
    residual: QParams | None = None
    affine: tuple[Array, Array] | None = None
    activation: Callable[[Array], Array] | None = None
    slopes: Array | None = None
    masked: bool = False
    even: bool = False
    rows: float = 0.0

    def quantized(self, position: int = 0) -> QParams:
        """The quantization of an operand. Raises NoInt8Form for a constant."""
        if (found := self.q[position]) is None:
            raise NoInt8Form(f"its operand {position} is a constant, which is not quantized")
        return found

    @property
    def result(self) -> QParams:
        """The quantization of the result. Raises NoInt8Form where it is float32."""
        if self.out is None:
            raise NoInt8Form("its result is not quantized")
        return self.out

    @property
    def fused(self) -> bool:
        """Whether anything but clamps joins the operator before rounding."""
        return any(part is not None for part in (self.affine, self.residual, self.activation, self.slopes))


MASKED = float(np.float32(-3e38))
"""Stands for -inf in a mask. Its exponential is also 0, and no sum with a score leaves the range of float32."""

LOWEST = float(np.float32(-2.9e38))
"""Stands for finite numbers below it in a mask, since those do not leave float32, either."""

MASKS_FROM = -50.0
"""Numbers as low as this, beside 0, mask what they are added to: e^-50 is no weight."""


def is_mask(term: Any) -> bool:
    """Whether numbers that are added, an array or a tensor, mask some elements and leave others as they are."""
    return bool((term == 0).any() and (term <= MASKS_FROM).any())


RESIDUAL, MASK, ROWS = -1, -2, -3
"""In `Int8Form.operands`: the addend that joins before rounding, bools that say which elements take part, and the
scales of the first operand's rows."""


@dataclass(frozen=True)
class Int8Form:
    """The int8 node of a quantized call.

    Attributes:
        op, attrs: the operator and its attributes.
        operands: each a position in the float call, RESIDUAL, MASK, ROWS, a new constant, or the form of another new
            node.
        q: quantization of the result of a form that is an operand; None where that is float32.
    """

    op: str
    operands: tuple[int | Array | Int8Form, ...]
    attrs: Attrs
    q: QParams | None = None


ToInt8 = Callable[[QuantizedCall], Int8Form]
"""Makes the int8 form of a quantized call. Raises NoInt8Form where there is none."""


Fusible = Literal["norm", "addend", "activation"]
"""What may join an operator before rounding besides clamps: a batch norm, an addend, an activation."""


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Which of an operator's values may be int16, or float32, where its int8 form has int8.

    Attributes:
        reads_int16: its activations, each of them or all.
        gives_int16: its result.
        reads_float32: its first activation may be float32, which nothing rounded; the result is exact for it, too.
    """

    reads_int16: bool = False
    gives_int16: bool = False
    reads_float32: bool = False


@dataclass(frozen=True)
class WeightedSum(Widths):
    """Products of an activation with a quantized weight, summed: a convolution or linear. A batch norm, an addend, an
    activation and clamps that only it feeds join it before rounding.

    Attributes:
        reads_rows: whether each row of its activation may have a scale of its own (kernels/border/by_row.py).
    """

    lower: ToInt8
    fusible: tuple[Fusible, ...] = ("addend", "activation")
    reads_rows: bool = False


@dataclass(frozen=True)
class Normalization(Widths):
    """A factor and a term for each channel, constants in float32 (batch norm).

    Attributes:
        affine: (parameters, attrs) -> factor and term, float64 (channels,).
    """

    lower: ToInt8
    affine: Callable[[Sequence[Array], Attrs], tuple[Array, Array]]
    fusible: tuple[Fusible, ...] = ("activation",)


@dataclass(frozen=True)
class PRelu(Widths):
    """The identity above zero, below it a slope for each channel, constants in float32 (prelu). A sum before it takes
    it in before rounding."""

    lower: ToInt8
    fusible: tuple[Fusible, ...] = ()


@dataclass(frozen=True)
class Rowwise(Widths):
    """An operator that computes each element from itself and its whole row (softmax, layer_norm). Parameters are
    constants in float32.

    Attributes:
        result: a quantization that holds every possible result, where the operator has one; a finer scale may suit
            certain data.
        masked: whether a large negative number added to an element leaves it out.
    """

    lower: ToInt8
    result: QParams | None = None
    masked: bool = False


@dataclass(frozen=True)
class Product(Widths):
    """Products of two activations, summed along the last dimension of both: `lower` gives a form that reads the second
    operand transposed. A positive factor that only it feeds joins its rounding."""

    lower: ToInt8


@dataclass(frozen=True)
class Recurrent(Widths):
    """The steps of a recurrent layer after its projected input, which is int16. States come in and go out in float32,
    and nothing is rounded to int8 between steps. A result that nothing rounds is float32, and exact.

    Attributes:
        projected: quantization of the projected input.
    """

    lower: ToInt8
    projected: QParams


@dataclass(frozen=True)
class Arithmetic(Widths):
    """Integer arithmetic on operands that are all activations (add, mul, averages). Clamps after it join it.

    Attributes:
        fusible: what else joins before rounding where only this operator feeds it, in this order.
        fine: positions of operands that are read in 16 bits: few numbers, by which many are multiplied.
        by_element: whether an element of the result is computed from one element of each operand, those at its place.
    """

    lower: ToInt8
    fusible: tuple[Fusible, ...] = ()
    fine: tuple[int, ...] = ()
    by_element: bool = False


@dataclass(frozen=True)
class Elementwise(Widths):
    """A function of one tensor, element by element.

    Attributes:
        function: (float64 array, attrs) -> float64 array.
        clamp: attrs -> (low, high) if the function is a clamp, which then joins the operator before it.
        as_curve: whether it can join a sum before rounding, as a piecewise linear curve: its slope is bounded, and its
            ends are asymptotes.
        whole: whether it gives whole numbers.
        jumps: whether it jumps where a curve does not show it: a comparison, or what jumps again and again.
    """

    function: Callable[[Array, Attrs], Array]
    clamp: Callable[[Attrs], tuple[float, float]] | None = None
    as_curve: bool = False
    whole: bool = False
    jumps: bool = False


@dataclass(frozen=True, kw_only=True)
class _AnyWidth(Widths):
    """Works on int16 as on int8."""

    reads_int16: bool = True
    gives_int16: bool = True


@dataclass(frozen=True)
class Moves(_AnyWidth):
    """Results are copies of input elements (view, cat, pixel_shuffle).

    Attributes:
        fill: attrs -> the real value written where no element is copied (pad), if there is one.
    """

    fill: Callable[[Attrs], float] | None = None


@dataclass(frozen=True)
class Monotonic(_AnyWidth):
    """q(op(x)) == op(q(x)) at one scale and zero point, since results are the largest or smallest of inputs."""


Int8 = (
    WeightedSum | Normalization | PRelu | Rowwise | Arithmetic | Product | Recurrent | Elementwise | Moves | Monotonic
)


def works_by_element(kind: Int8 | None) -> bool:
    """Whether an operator computes each element from those of its operands at the same place, broadcast."""
    return isinstance(kind, Elementwise) or (isinstance(kind, Arithmetic) and kind.by_element)
