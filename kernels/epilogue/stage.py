"""What a stage of an epilogue is: a step that reads the result of the stage before it.

The first stage reads the sum, in 2^-14 steps of the int8 result. Before a curve, it is in fractions of a segment
(curve.fraction). A stage says all that epilogue.py asks: when it has its turn, what it reads, and what it links.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, RANGES, Array, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INT8_RANGE, Attr, Operand

Int8 = Annotated[int, INT8_RANGE]


class Phase(enum.IntEnum):
    """When a stage has its turn: an epilogue has at most one stage of each phase, in this order."""

    ROWS = 0
    ADDEND = 1
    ACTIVATION = 2
    ROUNDING = 3
    INT8 = 4
    SHUFFLE = 5
    REAL = 6


@dataclass(frozen=True)
class StageContext:
    """What a stage reads from its call.

    Attributes:
        zero: zero point of its int8 result; of a stage before rounding, that of the next int8 value.
        operand: type of its operand, None without one.
        array: the operand's values, where the stage is applied by the reference.
    """

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
        operand: the operand that it reads, None without one.
        dtype: dtype of the result if it is the last stage.
        phase: when it has its turn.
        hooks: the names of quad.wgsl and stages.wgsl that it fills, as hook=function.
        magic_hooks: those that it fills as well where sums are rounded by addition (magic_rounding.py).
        adds: whether sums may be rounded by addition where it is the first stage.
        for_int8: whether the sum that it changes, or the value that it reads, must be rounded to int8.
        by_channel: whether its operand has one float32 number for each channel: `channel.operand` in WGSL.
        keeps_accumulator: whether its result is the accumulator times its scale, never rounded.
        numbers: the allowed values of its fields, from their annotated types.
    """

    name: ClassVar[str]
    operand: ClassVar[Operand | None] = None
    dtype: ClassVar[str] = INT8X4
    phase: ClassVar[Phase]
    hooks: ClassVar[tuple[str, ...]] = ()
    magic_hooks: ClassVar[tuple[str, ...]] = ()
    adds: ClassVar[bool] = False
    for_int8: ClassVar[bool] = False
    by_channel: ClassVar[bool] = False
    keeps_accumulator: ClassVar[bool] = False
    numbers: ClassVar[Mapping[str, Attr]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.numbers = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}

    def __post_init__(self) -> None:
        for name, attr in self.numbers.items():
            if text := attr.check(getattr(self, name)):
                raise GraphError(f"{self.name}: {name} {text}, found {reprlib.repr(getattr(self, name))}")

    @property
    def reads_zero(self) -> int | None:
        """The zero point of the int8 value that it reads and that is not stored; None where it reads none."""
        return None

    def linked(self, by_addition: bool, last: bool) -> tuple[str, ...]:
        """The hooks that it fills, where sums are rounded by addition or not, and as the last stage or not."""
        return (*self.hooks, *self.magic_hooks) if by_addition else self.hooks

    def shape(self, sums: Shape) -> Shape:
        """The result's shape for sums of a shape. Raises GraphError where there is none."""
        return sums

    def sums(self, shape: Shape) -> Shape:
        """The shape of the sums for a result's shape."""
        return shape

    @property
    def bounds(self) -> tuple[int, int]:
        """The range that it clamps its result to; empty where it has none."""
        return 0, -1

    @property
    def upscale(self) -> int:
        """The factor by which it upscales the image."""
        return 1

    def check(self, operand: TensorType, sums: Shape) -> None:
        """Raises GraphError where its operand does not fit sums of the shape `sums`."""
        if operand.dtype in RANGES and operand.shape != sums:
            raise GraphError(f"{self.name}: its operand must have the sum's shape {sums}, found {operand.shape}")

    def start(self, acc: NDArray[np.int64], multiplier: Array, offset: Array) -> Array:
        """What it reads as the first stage of an epilogue: the sum in fractions of a step, int64."""
        return arithmetic.scaled_accumulator(acc, multiplier) + offset.astype(np.int64)

    def apply(self, value: Array, context: StageContext) -> Array:
        """Its result for `value`, the result of the stage before it. This is its definition."""
        raise NotImplementedError

    def fields(self, context: StageContext) -> Params:
        """Its uniform fields."""
        return {}

    def clamped(self, lo: int, hi: int) -> Self | None:
        """This stage, clamping also to [lo, hi]; None where it has no range."""
        return None

    def steps_of_zero(self, context: StageContext) -> int:
        """What its operand's zero point adds to the sum, in fractions of a step."""
        return 0

    def magic_interval(self, low: int, high: int, context: StageContext) -> tuple[int, int]:
        """As the first stage: the interval of sums outside of which a result of low..high is constant, in fractions of
        a step or of a segment."""
        return low << arithmetic.FRACTION, high << arithmetic.FRACTION

    def magic_span(self, span: int) -> float:
        """As the first stage: how many fractions lie between the ends of a result of `span` steps. Infinite where sums
        must not be rounded by addition."""
        return span << arithmetic.FRACTION

    def plain(self) -> dict[str, Any]:
        """The stage as JSON: its name and its fields."""
        return {"stage": self.name, **asdict(self)}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in asdict(self).items())})"


@dataclass(frozen=True)
class RoundingStage(Stage):
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

    @property
    def bounds(self) -> tuple[int, int]:
        """The range [lo, hi]."""
        return self.lo, self.hi

    def rounded(self, v: Array, shift: int, context: StageContext) -> Array:
        """Fractions of a step, 2^-shift each, rounded to the result's dtype and clamped."""
        return arithmetic.saturate(arithmetic.rte(v, shift), context.zero, self.lo, self.hi, self.dtype)

    def fields(self, context: StageContext) -> Params:
        """Its uniform fields: zero point and bounds."""
        return {"zero": np.int32(context.zero), "lo": np.int32(self.lo), "hi": np.int32(self.hi)}
