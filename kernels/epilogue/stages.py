"""The stages that round a sum or make it float32, the stages after them, and the table of all stages by name.

Each has its operand, its fields, its definition and the WGSL that it links. `Scale` reads the accumulator itself.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT16X4, SMALLEST_SCALE, Array, QParams, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INT16_RANGE, Attr, Operand
from q8ta_wgpu.kernels.epilogue.stage import Int8, Phase, RoundingStage, Stage, StageContext
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import (
    Curve,
    Residual,
    Rows,
    ScaledResidual,
    Slopes,
)

Int16 = Annotated[int, INT16_RANGE]

Multiplier = Annotated[int, Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX)]


@dataclass(frozen=True)
class Requantize(RoundingStage):
    """Rounds the sum to int8."""

    name = "requantize"
    phase = Phase.ROUNDING
    adds = True
    hooks = ("rounded=requantized",)
    magic_hooks = ("Numbers=MagicNumbers", "numbers_of=magic_numbers", "numbers_from=magic_from")

    def linked(self, by_addition: bool, last: bool) -> tuple[str, ...]:
        if not by_addition:
            return self.hooks
        ends = ("rounded=magic_rounded", "packed_result=packed_magic") if last else ("rounded=requantized_by_magic",)
        return *self.magic_hooks, *ends

    def apply(self, value: Array, context: StageContext) -> Array:
        return self.rounded(value, arithmetic.FRACTION, context)


@dataclass(frozen=True)
class RequantizeInt16(RoundingStage):
    """Rounds the sum to int16."""

    lo: Int16
    hi: Int16

    name = "requantize_int16"
    phase = Phase.ROUNDING
    dtype = INT16X4
    hooks = ("rounded=requantized_int16",)

    def apply(self, value: Array, context: StageContext) -> Array:
        return self.rounded(value, arithmetic.INT16_FRACTION, context)


@dataclass(frozen=True)
class Add(RoundingStage):
    """q8ta_add of the int8 value before it, whose zero point is `zero`, and the operand."""

    zero: Int8
    multiplier: Multiplier
    addend_multiplier: Multiplier
    shift: Annotated[int, Attr("int", low=arithmetic.SMALLEST_SHIFT, high=30)]

    name = "add"
    phase = Phase.INT8
    for_int8 = True
    operand = Operand("addend", dtypes=(INT8X4,), at_result=True)
    hooks = ("addend_of=addend_quad", "after_rounding=plus_addend")

    @property
    def reads_zero(self) -> int:
        return self.zero

    def __post_init__(self) -> None:
        super().__post_init__()
        if not arithmetic.sum_fits(self.multiplier, self.addend_multiplier, self.shift):
            multipliers = f"{self.multiplier} and {self.addend_multiplier}"
            raise GraphError(f"add: multipliers {multipliers} with shift {self.shift} pass int32")

    def apply(self, value: Array, context: StageContext) -> Array:
        v = (value.astype(np.int64) - self.zero) * self.multiplier
        v += (context.values.astype(np.int64) - context.operand_zero) * self.addend_multiplier
        return self.rounded(v, self.shift, context)

    def fields(self, context: StageContext) -> Params:
        offset = -(self.zero * self.multiplier + context.operand_zero * self.addend_multiplier)
        return {
            "inner_multiplier": np.int32(self.multiplier),
            "addend_multiplier": np.int32(self.addend_multiplier),
            "sum_offset": np.int32(np.int64(offset).astype(np.int32)),
            "shift": np.uint32(self.shift),
            "sum_zero": np.int32(context.zero),
            "sum_lo": np.int32(self.lo),
            "sum_hi": np.int32(self.hi),
        }


@dataclass(frozen=True)
class Mul(RoundingStage):
    """q8ta_mul of the int8 value before it, whose zero point is `zero`, and the operand."""

    zero: Int8
    multiplier: Annotated[float, Attr("float", low=0, high=3.4e38)]

    name = "mul"
    phase = Phase.INT8
    for_int8 = True
    operand = Operand("addend", dtypes=(INT8X4,), at_result=True)
    hooks = ("addend_of=addend_quad", "after_rounding=times_addend")

    @property
    def reads_zero(self) -> int:
        return self.zero

    def apply(self, value: Array, context: StageContext) -> Array:
        product = (value.astype(np.int64) - self.zero) * (context.values.astype(np.int64) - context.operand_zero)
        return self.rounded(arithmetic.scaled_steps(product, self.multiplier), 0, context)

    def fields(self, context: StageContext) -> Params:
        return {
            "inner_zero": np.int32(self.zero),
            "addend_zero": np.int32(context.operand_zero),
            "product_multiplier": np.float32(self.multiplier),
            "sum_zero": np.int32(context.zero),
            "sum_lo": np.int32(self.lo),
            "sum_hi": np.int32(self.hi),
        }


@dataclass(frozen=True)
class Table(Stage):
    """q8ta_table of the int8 value before it, whose zero point is `zero`."""

    zero: Int8

    name = "table"
    phase = Phase.INT8
    for_int8 = True
    operand = Operand("table", constant=True, dtypes=(INT8,))
    hooks = ("after_rounding=in_table",)

    @property
    def reads_zero(self) -> int:
        return self.zero

    def check(self, operand: TensorType, sums: Shape) -> None:
        if operand.shape != (256,):
            raise GraphError(f"a table has 256 entries, found shape {operand.shape}")

    def apply(self, value: Array, context: StageContext) -> Array:
        found: Array = context.values[value.astype(np.int64) + 128]
        return found


@dataclass(frozen=True)
class PixelShuffle(Stage):
    """Stores float32 elements as pixel_shuffle does: `factor`^2 channels of a pixel become a block of pixels."""

    factor: Annotated[int, Attr("int", low=1, high=64)]

    name = "pixel_shuffle"
    phase = Phase.SHUFFLE

    @property
    def upscale(self) -> int:
        return self.factor

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

    def apply(self, value: Array, context: StageContext) -> Array:
        (n, c, h, w), r = value.shape, self.factor
        split = value.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return split.reshape(self.shape(value.shape))


@dataclass(frozen=True)
class Dequantize(Stage):
    """Dequantizes the int8 value before it, whose zero point is `zero` and whose scale is `scale`."""

    zero: Int8
    scale: Annotated[float, Attr("float", low=SMALLEST_SCALE, high=1 / SMALLEST_SCALE)]

    name = "dequantize"
    phase = Phase.REAL
    for_int8 = True
    dtype = FLOAT32
    hooks = ("quad_offsets=float_offsets", "store_result=store_dequantized")

    @property
    def reads_zero(self) -> int:
        return self.zero

    def apply(self, value: Array, context: StageContext) -> Array:
        return arithmetic.dequantize(value, QParams(self.scale, self.zero))

    def fields(self, context: StageContext) -> Params:
        return {"real_zero": np.int32(self.zero), "real_scale": np.float32(self.scale)}


@dataclass(frozen=True)
class Scale(Stage):
    """A float32 result that is never rounded to int8: (accumulator + offset) * multiplier."""

    name = "scale"
    phase = Phase.ROUNDING
    keeps_accumulator = True
    dtype = FLOAT32
    hooks = (
        "rounded=scaled",
        "Numbers=RealNumbers",
        "numbers_of=real_numbers",
        "numbers_from=real_from",
        "offset_for_row=real_offset_for_row",
        "quad_offsets=float_offsets",
        "store_result=store_scaled",
    )

    def start(self, acc: NDArray[np.int64], multiplier: Array, offset: Array) -> Array:
        total: Array = arithmetic.as_float32(acc) + offset
        return total * multiplier

    def apply(self, value: Array, context: StageContext) -> Array:
        return value


ALL: Mapping[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        Rows,
        Residual,
        ScaledResidual,
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
    )
}
"""Every stage by its name."""


def from_plain(data: Any) -> Stage:
    """The stage of a JSON value that `Stage.plain` returned. Raises GraphError for any other value."""
    name = data.get("stage") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in ALL:
        found = reprlib.repr(name if isinstance(data, dict) else data)
        raise GraphError(f"a stage is one of {', '.join(ALL)}, found {found}")
    numbers = {key: value for key, value in data.items() if key != "stage"}
    if set(numbers) != set(ALL[name].numbers):
        raise GraphError(f"{name} has {sorted(ALL[name].numbers)}, found {reprlib.repr(sorted(numbers))}")
    return ALL[name](**numbers)
