"""What an operator is in int8: the kind that each float `Op` states once, for the passes, `verify` and the quantizer.

| kind            | in int8                                              | the quantizer observes            |
|-----------------|------------------------------------------------------|-----------------------------------|
| `WeightedSum`   | an operator of its own, what follows it joins it     | the activation, weight and result |
| `Normalization` | an operator of its own, or part of the sum before it | the activation and the result     |
| `Sloped`        | an operator of its own, or part of the sum before it | the activation and the result     |
| `Rowwise`       | an operator of its own                               | the activation and the result     |
| `Arithmetic`    | an operator of its own, what follows it joins it     | every operand and the result      |
| `Product`       | an operator of its own, what follows it joins it     | both operands and the result      |
| `Recurrent`     | an operator of its own                               | the activation, weights and result|
| `Elementwise`   | a 256-entry table; a clamp is a range before it      | the operand and the result        |
| `Moves`         | itself: scale and zero point stay                    | operands and result as one        |
| `Monotonic`     | itself: scale and zero point stay                    | operands and result as one        |

An operator without a kind stays in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, QParams, TensorType


@dataclass(frozen=True)
class Weight:
    """A quantized constant: real = scale[c] * (values - zero[c]) along `axis`; float64 scales, int64 zeros."""

    values: Array
    scale: Array
    zero: Array
    axis: int


@dataclass(frozen=True)
class QuantizedCall:
    """A call of a float operator whose operands come out of dequantizes and whose result goes into a quantize.

    Attributes:
        attrs, inputs: the float call's attributes and the types of its operands.
        q: quantization of each operand, None for constants.
        constants: constant operands by position: a `Weight`, or a float32 array.
        out: quantization of the result, None for a float32 result.
        lo, hi: range of the result, with fused activations and the quantize node's own range.
        residual: quantization of an addend joined before rounding, if any.
        affine: factor and term of each channel, float64 (channels,), applied before rounding, if any.
        activation: float64 function applied before rounding, if any (not a clamp).
        slopes: of a prelu applied before rounding, float32 (channels,), if any.
        masked: whether bools say which elements take part.
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

    @property
    def joined(self) -> bool:
        """Whether anything but clamps joins the operator before rounding."""
        return any(part is not None for part in (self.affine, self.residual, self.activation, self.slopes))


MASKED = float(np.float32(-3e38))
"""What stands for -inf in a mask: its exponential is 0 as well, and no sum with a score leaves the range of float32."""

MASKS_FROM = -50.0
"""Numbers as low as this, beside 0, are there to mask what they are added to: e^-50 is no weight."""

RESIDUAL, MASK = -1, -2
"""In `Int8Form.operands`: the addend joined before rounding, and bools that say which elements take part."""


@dataclass(frozen=True)
class Int8Form:
    """The int8 node for a quantized call: operator, operands (a position in the float call, RESIDUAL, MASK, or a new
    constant) and attributes."""

    op: str
    operands: tuple[int | Array, ...]
    attrs: Attrs


ToInt8 = Callable[[QuantizedCall], "Int8Form | str"]
"""Makes the int8 form of a quantized call, or says why there is none."""


Joined = Literal["norm", "addend", "activation"]
"""What the rounding of an operator can take in beside clamps: a batch norm, another term, an activation."""


@dataclass(frozen=True)
class WeightedSum:
    """Products of an activation with a quantized weight, summed: a convolution or linear. Its rounding takes in what
    only it feeds: a batch norm, an addend, an activation, clamps."""

    lower: ToInt8
    joined: tuple[Joined, ...] = ("addend", "activation")


@dataclass(frozen=True)
class Normalization:
    """A factor and a term for each channel, constants in float32 (batch norm).

    Attributes:
        affine: (parameters, attrs) -> factor and term, float64 (channels,).
    """

    lower: ToInt8
    affine: Callable[[Sequence[Array], Attrs], tuple[Array, Array]]
    joined: tuple[Joined, ...] = ("activation",)


@dataclass(frozen=True)
class Sloped:
    """The identity above zero, below it a slope for each channel, constants in float32 (prelu). A sum before it takes
    it in before rounding."""

    lower: ToInt8
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True)
class Rowwise:
    """A number of each element and of its whole row (softmax, layer_norm); parameters are constants in float32.

    Attributes:
        result: the quantization that holds any result there is, where the operator says it; a finer scale may hold
            those of some data.
        masked: whether elements can be told to take no part, by a large negative number added to them.
    """

    lower: ToInt8
    result: QParams | None = None
    masked: bool = False


@dataclass(frozen=True)
class Product:
    """Products of two activations, summed along the last dimension of both: `lower` gives a form that reads the second
    operand turned. Its rounding takes in a positive factor that only it feeds."""

    lower: ToInt8


@dataclass(frozen=True)
class Recurrent:
    """The steps of a recurrent layer behind its projected input, which comes in int16; states come in and go out in
    float32, and what goes from step to step is not rounded to int8.

    Attributes:
        projected: how the projected input is stored.
    """

    lower: ToInt8
    projected: QParams


@dataclass(frozen=True)
class Arithmetic:
    """Integer arithmetic on operands that are all activations (add, mul, averages); clamps behind it join it.

    Attributes:
        joined: what else its rounding takes in where only it feeds that, in this order.
    """

    lower: ToInt8
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True)
class Elementwise:
    """A function of one tensor, element by element.

    Attributes:
        function: (float64 array, attrs) -> float64 array.
        clamp: attrs -> (low, high) if the function is a clamp, so that the operator before it can take it in.
        joins: whether a sum before it can take it in before rounding, as a curve: its slope is bounded, its ends are
            asymptotes.
        whole: whether its results are whole numbers.
    """

    function: Callable[[Array, Attrs], Array]
    clamp: Callable[[Attrs], tuple[float, float]] | None = None
    joins: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Moves:
    """Results are copies of input elements (view, cat, pixel_shuffle).

    Attributes:
        fill: attrs -> the real value written where no element is copied (pad), if there is such a value.
    """

    fill: Callable[[Attrs], float] | None = None


@dataclass(frozen=True)
class Monotonic:
    """q(op(x)) == op(q(x)) at one scale and zero point, since results are the largest or smallest of inputs."""


Int8 = (
    WeightedSum | Normalization | Sloped | Rowwise | Arithmetic | Product | Recurrent | Elementwise | Moves | Monotonic
)
