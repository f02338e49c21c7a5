"""What a product computes of each value while it loads it: the stages of a prologue.

A stage has the definition of the operator that it replaces, and the WGSL by which rows are loaded with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.op import INTEGERS, Operand


@dataclass(frozen=True)
class Stage:
    """A stage: int8 values with the zero point `zero`, clamped to [lo, hi], of the values x of one tensor.

    Attributes:
        operand: what it reads beside x.
        source: the WGSL with its `load_x`, for 1x1 windows of stride 1.
    """

    zero: int
    lo: int
    hi: int

    operand: ClassVar[Operand]
    source: ClassVar[tuple[str, ...]]

    def check(self, x: TensorType, operand: TensorType) -> None:
        """Raises GraphError where the operand does not fit x (n, c, h, w)."""
        raise NotImplementedError

    def steps(self, x: Array, operand: Array) -> Array:
        """The values before they are clamped, of int64 x and operand less their zero points: the definition."""
        raise NotImplementedError

    def apply(self, x: Array, operand: Array) -> Array:
        """The values less `zero`."""
        return np.asarray(np.clip(self.steps(x, operand) + self.zero, self.lo, self.hi) - self.zero)

    def fields(self, types: Sequence[TensorType]) -> Params:
        """Uniform fields, for x and the operand of these types."""
        return {f"stage_{name}": np.int32(getattr(self, name)) for name in ("zero", "lo", "hi")}


@dataclass(frozen=True)
class Gate(Stage):
    """q8ta_mul of x and one number for each channel of an image, int8 or int16."""

    multiplier: float

    operand = Operand("gate", dtypes=INTEGERS)
    source = ("parts_gated",)

    def check(self, x: TensorType, operand: TensorType) -> None:
        if operand.shape != (*x.shape[:2], 1, 1):
            raise GraphError(f"a gate has a number for each channel of an image, of {x} found {operand}")

    def steps(self, x: Array, operand: Array) -> Array:
        return arithmetic.scaled_steps(x * operand, self.multiplier)

    def fields(self, types: Sequence[TensorType]) -> Params:
        x, gate = (np.int32(t.q.zero if t.q else 0) for t in types)
        pixels, multiplier = np.uint32(math.prod(types[0].shape[2:])), np.float32(self.multiplier)
        numbers: Params = {"x_zero": x, "g_zero": gate, "gate_multiplier": multiplier, "gate_pixels": pixels}
        return {**super().fields(types), **numbers}
