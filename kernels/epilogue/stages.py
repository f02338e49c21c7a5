"""The stages of an epilogue, each with its operand, its numbers, its definition and its WGSL.

A stage reads the result of the one before it. The first one reads the sum in 2^-14 of the int8 result's steps (for a
curve, of its segments). `Scale` reads the accumulator itself. `Rows` comes before the first one and changes the numbers
that this reads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import (
    FLOAT32,
    INT8,
    INT8X4,
    INT16X4,
    INT32,
    RANGES,
    SMALLEST_SCALE,
    Array,
    Call,
    QParams,
    TensorType,
)
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INT8_RANGE, INT16_RANGE, INTEGERS, Attr, Operand
from q8ta_wgpu.kernels.epilogue import curve as curves

LARGEST_RESIDUAL = (
    int(arithmetic.INT32_MAX - arithmetic.T_LIMIT - arithmetic.OFFSET_LIMIT - 2 ** (arithmetic.FRACTION - 1)) // 255
)
Int8 = Annotated[int, INT8_RANGE]
Int16 = Annotated[int, INT16_RANGE]
Multiplier = Annotated[int, Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX)]


@dataclass(frozen=True)
class Around:
    """The surroundings of a stage in a call: the zero point of its int8 result or, for stages before rounding, of the
    next int8 value; the type of its operand; and when it is applied, the operand's values."""

    zero: int
    operand: TensorType | None = None
    array: Array | None = None

    @property
    def operand_zero(self) -> int:
        """The zero point of the operand (0 without one)."""
        return self.operand.q.zero if self.operand and self.operand.q else 0

    @property
    def values(self) -> Array:
        """The values of the operand."""
        assert self.array is not None
        return self.array


@dataclass(frozen=True)
class Stage:
    """One stage. Raises GraphError where a number is invalid or out of its range.

    Attributes:
        name: its name in reports and model files.
        operand: what it reads besides the value before it.
        dtype: of the result, where it is the last stage.
        hooks: the hooks of Epilogue.source that it fills, as hook=function of stages.wgsl.
        numbers: the allowed values of its numbers, from their annotated types.
    """

    name: ClassVar[str]
    operand: ClassVar[Operand | None] = None
    dtype: ClassVar[str] = INT8X4
    hooks: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[Mapping[str, Attr]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.numbers = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}

    def __post_init__(self) -> None:
        for name, attr in self.numbers.items():
            if text := attr.check(getattr(self, name)):
                raise GraphError(f"{self.name}: {name} {text}, found {reprlib.repr(getattr(self, name))}")

    def check(self, operand: TensorType, sums: Shape) -> None:
        """Raises GraphError where its operand does not fit sums of a shape."""
        if operand.dtype in RANGES and operand.shape != sums:
            raise GraphError(f"what is added must have the sum's shape {sums}, found {operand.shape}")

    def start(self, acc: NDArray[np.int64], multiplier: Array, offset: Array) -> Array:
        """What it reads as an epilogue's first stage: the sum in steps, int64."""
        return arithmetic.scaled_accumulator(acc, multiplier) + offset.astype(np.int64)

    def apply(self, value: Array, around: Around) -> Array:
        """Its result for `value`: its definition."""
        raise NotImplementedError

    def fields(self, around: Around) -> Params:
        """Its uniform fields."""
        return {}

    def plain(self) -> dict[str, Any]:
        """The value for JSON."""
        return {"stage": self.name, **asdict(self)}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in asdict(self).items())})"


@dataclass(frozen=True)
class _Rounds(Stage):
    """A stage that rounds to int8 and clamps to [lo, hi]."""

    lo: Int8
    hi: Int8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lo > self.hi:
            raise GraphError(f"{self.name}: the range lo..hi is empty, found {self.lo}..{self.hi}")

    def clamped(self, lo: int, hi: int) -> Self:
        """This stage, clamping also to [lo, hi]."""
        return replace(self, lo=int(np.clip(self.lo, lo, hi)), hi=int(np.clip(self.hi, lo, hi)))

    def rounded(self, v: Array, shift: int, around: Around) -> Array:
        """2^-shift steps rounded to integers."""
        return arithmetic.saturate(arithmetic.rte(v, shift), around.zero, self.lo, self.hi, self.dtype)

    def fields(self, around: Around) -> Params:
        return {"zero": np.int32(around.zero), "lo": np.int32(self.lo), "hi": np.int32(self.hi)}


@dataclass(frozen=True)
class Rows(Stage):
    """Comes first where each row of the sum's operand has a scale of its own: what follows reads the multipliers times
    the row's scale."""

    name = "rows"
    operand = Operand("rows", at_result=True)
    hooks = ("ResidualWord=Joins", "residual_of=joins_of", "added_word=joined_word")

    def check(self, operand: TensorType, sums: Shape) -> None:
        if operand.shape != (*sums[:-1], 1):
            raise GraphError(f"rows of {sums} have scales of shape {(*sums[:-1], 1)}, found {operand.shape}")

    def apply(self, value: Array, around: Around) -> Array:
        return value


@dataclass(frozen=True)
class Residual(Stage):
    """Adds a residual before rounding."""

    multiplier: Annotated[int, Attr("int", low=0, high=LARGEST_RESIDUAL)]

    name = "residual"
    operand = Operand("residual", dtypes=(INT8X4,), at_result=True)
    hooks = ("ResidualWord=residual_Word", "residual_of=residual_quad", "unrounded=plus_residual")

    def apply(self, value: Array, around: Around) -> Array:
        return value + (around.values.astype(np.int64) - around.operand_zero) * self.multiplier

    def fields(self, around: Around) -> Params:
        return {"residual_multiplier": np.int32(self.multiplier)}


@dataclass(frozen=True)
class ScaledResidual(Stage):
    """Adds a residual before rounding, where it or the result is int16: multiplied in float32 (see q16ta_add)."""

    multiplier: Annotated[float, Attr("float", low=0, high=3.4e38)]

    name = "scaled_residual"
    operand = Operand("residual", dtypes=INTEGERS, at_result=True)
    hooks = ("ResidualWord=residual_Word", "residual_of=residual_quad", "unrounded=plus_scaled_residual")

    def apply(self, value: Array, around: Around) -> Array:
        return value + arithmetic.scaled_term(around.values.astype(np.int64) - around.operand_zero, self.multiplier)

    def fields(self, around: Around) -> Params:
        return {"residual_zero": np.int32(around.operand_zero), "residual_multiplier": np.float32(self.multiplier)}


@dataclass(frozen=True)
class RealResidual(Stage):
    """Adds a float32 residual before rounding: what products of other halves of int16 operands made."""

    multiplier: Annotated[float, Attr("float", low=0, high=3.4e38)]

    name = "real_residual"
    operand = Operand("residual", at_result=True)
    hooks = ("ResidualWord=residual_Word", "residual_of=residual_quad", "unrounded=plus_real_residual")

    def check(self, operand: TensorType, sums: Shape) -> None:
        if operand.shape != sums:
            raise GraphError(f"what is added must have the sum's shape {sums}, found {operand.shape}")

    def apply(self, value: Array, around: Around) -> Array:
        return value + arithmetic.scaled_term(around.values, self.multiplier)

    def fields(self, around: Around) -> Params:
        return {"residual_multiplier": np.float32(self.multiplier)}


def _read(call: Call, arrays: Sequence[Array | None], stage: type[Stage]) -> Array:
    """The constant that a stage of a call reads."""
    reading = [isinstance(s, stage) for s in call.attrs["epilogue"].stages if s.operand]
    found = arrays[len(arrays) - len(reading) + reading.index(True)]
    assert found is not None
    return found


def _valid_curve(call: Call, arrays: Sequence[Array | None]) -> str:
    return curves.valid(_read(call, arrays, Curve))


def _valid_slopes(call: Call, arrays: Sequence[Array | None]) -> str:
    slopes = _read(call, arrays, Slopes)
    bad = slopes[~np.isfinite(slopes)]
    return f"must be finite, found {bad[0]}" if bad.size else ""


@dataclass(frozen=True)
class Curve(Stage):
    """An activation before rounding, as a piecewise linear curve."""

    name = "curve"
    operand = Operand("curve", constant=True, dtypes=(INT32,), valid=_valid_curve)
    hooks = ("bent=on_curve",)

    def apply(self, value: Array, around: Around) -> Array:
        return curves.evaluate(value, around.values)

    def fields(self, around: Around) -> Params:
        assert around.operand is not None
        return {"curve_end": np.int32(((around.operand.numel - 1) << arithmetic.FRACTION) - 1)}


@dataclass(frozen=True)
class Slopes(Stage):
    """PReLU before rounding: negative values times the float32 slope of their channel."""

    name = "slopes"
    operand = Operand("slopes", constant=True, valid=_valid_slopes)
    hooks = ("bent=sloped", "Channel=Sloped", "channel_quad=sloped_quad")

    def apply(self, value: Array, around: Around) -> Array:
        return np.where(value < 0, arithmetic.scaled_accumulator(value, around.values), value)


@dataclass(frozen=True)
class Requantize(_Rounds):
    """The sum as int8."""

    name = "requantize"
    hooks = ("quad_value=requantized",)

    def apply(self, value: Array, around: Around) -> Array:
        return self.rounded(value, arithmetic.FRACTION, around)


@dataclass(frozen=True)
class RequantizeInt16(_Rounds):
    """The sum as int16."""

    lo: Int16
    hi: Int16

    name = "requantize_int16"
    dtype = INT16X4
    hooks = ("quad_value=requantized_int16",)

    def apply(self, value: Array, around: Around) -> Array:
        return self.rounded(value, arithmetic.INT16_FRACTION, around)


@dataclass(frozen=True)
class Add(_Rounds):
    """q8ta_add of the int8 value before it, with the zero point `zero`, and another value."""

    zero: Int8
    multiplier: Multiplier
    addend_multiplier: Multiplier
    shift: Annotated[int, Attr("int", low=arithmetic.SMALLEST_SHIFT, high=30)]

    name = "add"
    operand = Operand("addend", dtypes=(INT8X4,), at_result=True)
    hooks = ("addend_of=addend_quad", "joined=plus_addend")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not arithmetic.sum_fits(self.multiplier, self.addend_multiplier, self.shift):
            multipliers = f"{self.multiplier} and {self.addend_multiplier}"
            raise GraphError(f"add: multipliers {multipliers} with shift {self.shift} pass int32")

    def apply(self, value: Array, around: Around) -> Array:
        v = (value.astype(np.int64) - self.zero) * self.multiplier
        v += (around.values.astype(np.int64) - around.operand_zero) * self.addend_multiplier
        return self.rounded(v, self.shift, around)

    def fields(self, around: Around) -> Params:
        offset = -(self.zero * self.multiplier + around.operand_zero * self.addend_multiplier)
        return {
            "inner_multiplier": np.int32(self.multiplier),
            "addend_multiplier": np.int32(self.addend_multiplier),
            "sum_offset": np.int32(np.int64(offset).astype(np.int32)),
            "shift": np.uint32(self.shift),
            "sum_zero": np.int32(around.zero),
            "sum_lo": np.int32(self.lo),
            "sum_hi": np.int32(self.hi),
        }


@dataclass(frozen=True)
class Mul(_Rounds):
    """q8ta_mul of the int8 value before it, with the zero point `zero`, and another value."""

    zero: Int8
    multiplier: Annotated[float, Attr("float", low=0, high=3.4e38)]

    name = "mul"
    operand = Operand("addend", dtypes=(INT8X4,), at_result=True)
    hooks = ("addend_of=addend_quad", "joined=times_addend")

    def apply(self, value: Array, around: Around) -> Array:
        product = (value.astype(np.int64) - self.zero) * (around.values.astype(np.int64) - around.operand_zero)
        return self.rounded(arithmetic.scaled_steps(product, self.multiplier), 0, around)

    def fields(self, around: Around) -> Params:
        return {
            "inner_zero": np.int32(self.zero),
            "addend_zero": np.int32(around.operand_zero),
            "product_multiplier": np.float32(self.multiplier),
            "sum_zero": np.int32(around.zero),
            "sum_lo": np.int32(self.lo),
            "sum_hi": np.int32(self.hi),
        }


@dataclass(frozen=True)
class Table(Stage):
    """q8ta_table of the int8 value before it, with the zero point `zero`."""

    zero: Int8

    name = "table"
    operand = Operand("table", constant=True, dtypes=(INT8,))
    hooks = ("joined=in_table",)

    def check(self, operand: TensorType, sums: Shape) -> None:
        if operand.shape != (256,):
            raise GraphError(f"a table has 256 entries, found shape {operand.shape}")

    def apply(self, value: Array, around: Around) -> Array:
        found: Array = around.values[value.astype(np.int64) + 128]
        return found


@dataclass(frozen=True)
class PixelShuffle(Stage):
    """Stores float32 elements as pixel_shuffle does: blocks of `factor` squared channels become blocks of pixels."""

    factor: Annotated[int, Attr("int", low=1, high=64)]

    name = "pixel_shuffle"

    def shape(self, sums: Shape) -> Shape:
        """The result's shape; raises GraphError where `sums` is not (n, c, h, w) with c a multiple of factor^2."""
        if len(sums) != 4 or sums[1] % self.factor**2:
            wanted = f"(n, c, h, w) with c a multiple of {self.factor**2}"
            raise GraphError(f"pixel_shuffle by {self.factor} takes {wanted}, found {sums}")
        n, c, h, w = sums
        return n, c // self.factor**2, h * self.factor, w * self.factor

    def sums(self, shape: Shape) -> Shape:
        """The shape of the sums for a result of `shape`."""
        n, c, h, w = shape
        return n, c * self.factor**2, h // self.factor, w // self.factor

    def apply(self, value: Array, around: Around) -> Array:
        (n, c, h, w), r = value.shape, self.factor
        split = value.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return split.reshape(self.shape(value.shape))


@dataclass(frozen=True)
class Dequantize(Stage):
    """float32 of the int8 value before it, by the zero point `zero` and `scale`."""

    zero: Int8
    scale: Annotated[float, Attr("float", low=SMALLEST_SCALE, high=1 / SMALLEST_SCALE)]

    name = "dequantize"
    dtype = FLOAT32
    hooks = (
        "quad_places=real_places",
        "store_joined=store_dequantized",
    )

    def apply(self, value: Array, around: Around) -> Array:
        return arithmetic.dequantize(value, QParams(self.scale, self.zero))

    def fields(self, around: Around) -> Params:
        return {"real_zero": np.int32(self.zero), "real_scale": np.float32(self.scale)}


@dataclass(frozen=True)
class Scale(Stage):
    """A float32 result without rounding: accumulator plus offset, times the multiplier."""

    name = "scale"
    dtype = FLOAT32
    hooks = (
        "quad_value=scaled",
        "Channel=Scaled",
        "channel_quad=scaled_channels",
        "quad_places=real_places",
        "store_joined=store_scaled",
    )

    def start(self, acc: NDArray[np.int64], multiplier: Array, offset: Array) -> Array:
        total: Array = acc.astype(np.int32).astype(np.float32) + offset
        return total * multiplier

    def apply(self, value: Array, around: Around) -> Array:
        return value


@dataclass(frozen=True)
class FixedPoint(Stage):
    """A float32 result of integers: the sum with its residual, in steps of `scale`."""

    scale: Annotated[float, Attr("float", low=SMALLEST_SCALE, high=1 / SMALLEST_SCALE)]

    name = "fixed_point"
    dtype = FLOAT32
    hooks = ("quad_value=fixed_point", "quad_places=real_places", "store_joined=store_scaled")

    def apply(self, value: Array, around: Around) -> Array:
        return value.astype(np.int32).astype(np.float32) * np.float32(self.scale)

    def fields(self, around: Around) -> Params:
        return {"real_scale": np.float32(self.scale)}


ALL: Mapping[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        Rows,
        Residual,
        ScaledResidual,
        RealResidual,
        Curve,
        Slopes,
        Requantize,
        RequantizeInt16,
        Add,
        Mul,
        Table,
        PixelShuffle,
        Dequantize,
        Scale,
        FixedPoint,
    )
}
"""Every stage by its name."""


def from_plain(data: Any) -> Stage:
    """The stage of a JSON value. Raises GraphError for anything else."""
    name = data.get("stage") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in ALL:
        found = reprlib.repr(name if isinstance(data, dict) else data)
        raise GraphError(f"a stage is one of {', '.join(ALL)}, found {found}")
    numbers = {key: value for key, value in data.items() if key != "stage"}
    if set(numbers) != set(ALL[name].numbers):
        raise GraphError(f"{name} has {sorted(ALL[name].numbers)}, found {reprlib.repr(sorted(numbers))}")
    return ALL[name](**numbers)
