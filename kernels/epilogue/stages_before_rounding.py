"""The stages that change a sum before it is rounded.

Each has its operand, its fields, its definition and the WGSL that it links. `Rows` is always the first stage: it scales
the multipliers that the next one reads.
"""

from __future__ import annotations

import math
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
from q8ta_wgpu.kernels.epilogue.stage import Phase, Stage, StageContext

LARGEST_RESIDUAL = (
    int(arithmetic.INT32_MAX - arithmetic.T_LIMIT - arithmetic.OFFSET_LIMIT - 2 ** (arithmetic.FRACTION - 1)) // 255
)


@dataclass(frozen=True)
class Rows(Stage):
    """Multiplies the multipliers by a scale of each row. It is the first stage where each row of x has its own scale.
    Its operand is float32 (..., rows, 1)."""

    name = "rows"
    phase = Phase.ROWS
    operand = Operand("rows", at_result=True)
    hooks = (
        "ResidualWord=RowOperands",
        "residual_of=row_operands_of",
        "added_word=row_added_word",
        "for_row=numbers_for_row",
    )

    def check(self, operand: TensorType, sums: Shape) -> None:
        if operand.shape != (*sums[:-1], 1):
            raise GraphError(f"rows of {sums} have scales of shape {(*sums[:-1], 1)}, found {operand.shape}")

    def apply(self, value: Array, context: StageContext) -> Array:
        return value


@dataclass(frozen=True)
class Residual(Stage):
    """Adds an int8 residual, times an integer multiplier, before rounding."""

    multiplier: Annotated[int, Attr("int", low=0, high=LARGEST_RESIDUAL)]

    name = "residual"
    phase = Phase.ADDEND
    for_int8 = True
    adds = True
    operand = Operand("residual", dtypes=(INT8X4,), at_result=True)
    hooks = ("AddedWord=residual_Word", "added_of=residual_quad", "before_rounding=plus_residual")
    magic_hooks = ("magic_bounds=bounded_by_range",)

    def apply(self, value: Array, context: StageContext) -> Array:
        return value + (context.values.astype(np.int64) - context.operand_zero) * self.multiplier

    def fields(self, context: StageContext) -> Params:
        return {"residual_multiplier": np.int32(self.multiplier)}

    def steps_of_zero(self, context: StageContext) -> int:
        return context.operand_zero * self.multiplier

    def magic_interval(self, low: int, high: int, context: StageContext) -> tuple[int, int]:
        lowest, highest = super().magic_interval(low, high, context)
        return lowest - 127 * self.multiplier, highest + 128 * self.multiplier

    def magic_span(self, span: int) -> float:
        return super().magic_span(span) + 255 * self.multiplier


@dataclass(frozen=True)
class ScaledResidual(Stage):
    """Adds a residual before rounding where it or the result is int16. It is multiplied in float32 (see q16ta_add)."""

    multiplier: Annotated[float, Attr("float", low=0, high=3.4e38)]

    name = "scaled_residual"
    phase = Phase.ADDEND
    operand = Operand("residual", dtypes=INTEGERS, at_result=True)
    hooks = ("AddedWord=residual_Word", "added_of=residual_quad", "before_rounding=plus_scaled_residual")

    def apply(self, value: Array, context: StageContext) -> Array:
        return value + arithmetic.scaled_term(context.values.astype(np.int64) - context.operand_zero, self.multiplier)

    def fields(self, context: StageContext) -> Params:
        return {"residual_zero": np.int32(context.operand_zero), "residual_multiplier": np.float32(self.multiplier)}


def _read(call: Call, arrays: Sequence[Array | None], operand: str) -> Array:
    """A constant operand of the stages of a call."""
    names = [each.name for each in call.attrs["epilogue"].operands]
    found = arrays[len(arrays) - len(names) + names.index(operand)]
    assert found is not None
    return found


def _valid_curve(call: Call, arrays: Sequence[Array | None]) -> str:
    return curves.valid(_read(call, arrays, "curve"))


def _valid_slopes(call: Call, arrays: Sequence[Array | None]) -> str:
    slopes = _read(call, arrays, "slopes")
    bad = slopes[~np.isfinite(slopes)]
    return f"must be finite, found {bad[0]}" if bad.size else ""


@dataclass(frozen=True)
class Curve(Stage):
    """An activation before rounding, as a piecewise linear curve (curve.py). With `by_addition` the sum has so few
    fractions of a segment that additions can round it."""

    by_addition: Annotated[bool, Attr("bool")]

    name = "curve"
    phase = Phase.ACTIVATION
    adds = True
    operand = Operand("curve", constant=True, dtypes=(INT32,), valid=_valid_curve)
    hooks = ("activated=on_curve",)
    magic_hooks = ("magic_bounds=bounded_by_range", "activated_bits=bits_on_curve")

    def apply(self, value: Array, context: StageContext) -> Array:
        return curves.evaluate(value, context.values, curves.fraction(len(context.values) - 1, self.by_addition))

    def fields(self, context: StageContext) -> Params:
        bits, end = self._extent(context)
        return {"curve_bits": np.uint32(bits), "curve_end": np.int32(end - 1)}

    def magic_span(self, span: int) -> float:
        return 0 if self.by_addition else math.inf

    def magic_interval(self, low: int, high: int, context: StageContext) -> tuple[int, int]:
        """The interval outside of which sums give the curve's ends, in fractions of a segment, with a margin for the
        rounding of its ends to float32."""
        return -curves.MARGIN, self._extent(context)[1] + curves.MARGIN

    def _extent(self, context: StageContext) -> tuple[int, int]:
        """Fraction bits of a position on the curve, and its end in such fractions."""
        assert context.operand is not None
        segments = context.operand.numel - 1
        bits = curves.fraction(segments, self.by_addition)
        return bits, segments << bits


@dataclass(frozen=True)
class Slopes(Stage):
    """PReLU before rounding: negative values are multiplied by the slope of their channel, float32 (channels,)."""

    name = "slopes"
    phase = Phase.ACTIVATION
    by_channel = True
    operand = Operand("slopes", constant=True, valid=_valid_slopes)
    hooks = ("activated=prelu",)

    def apply(self, value: Array, context: StageContext) -> Array:
        return np.where(value < 0, arithmetic.scaled_accumulator(value, context.values), value)
