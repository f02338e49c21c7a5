"""The stages that change a sum before it is rounded. Each has its operand, its numbers, its definition and its WGSL.

`Rows` comes before the first one and changes the numbers that this reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT32, Array, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INTEGERS, Attr, Operand
from q8ta_wgpu.kernels.epilogue import curve as curves
from q8ta_wgpu.kernels.epilogue.stage import Around, Stage

LARGEST_RESIDUAL = (
    int(arithmetic.INT32_MAX - arithmetic.T_LIMIT - arithmetic.OFFSET_LIMIT - 2 ** (arithmetic.FRACTION - 1)) // 255
)


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
    hooks = ("bent=sloped", "Channel=Sloped", "channel_quad=sloped_quad", "channel_from=sloped_from")

    def apply(self, value: Array, around: Around) -> Array:
        return np.where(value < 0, arithmetic.scaled_accumulator(value, around.values), value)
