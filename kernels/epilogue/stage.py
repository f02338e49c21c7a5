"""What a stage of an epilogue is: a step that reads the result of the one before it.

The first one reads the sum in 2^-14 of the int8 result's steps (for a curve, of its segments).
"""

from __future__ import annotations

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

    def rounded(self, v: Array, shift: int, around: Around) -> Array:
        """2^-shift steps rounded to integers."""
        return arithmetic.saturate(arithmetic.rte(v, shift), around.zero, self.lo, self.hi, self.dtype)

    def fields(self, around: Around) -> Params:
        """Its uniform fields: zero point and bounds."""
        return {"zero": np.int32(around.zero), "lo": np.int32(self.lo), "hi": np.int32(self.hi)}
