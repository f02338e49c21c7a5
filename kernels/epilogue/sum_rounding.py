"""The multipliers, offsets and epilogue stages by which a weighted sum is rounded, from scales and fused operands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Array, QParams
from q8ta_wgpu.ir.int8 import RESIDUAL, NoInt8Form, QuantizedCall
from q8ta_wgpu.kernels.epilogue import curve as curves
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Stage
from q8ta_wgpu.kernels.epilogue.stages import Requantize, RequantizeInt16
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import LARGEST_RESIDUAL, Curve, Residual, ScaledResidual, Slopes


@dataclass(frozen=True)
class Rounding:
    """How a weighted sum is rounded.

    Attributes:
        multiplier: float32 (channels,).
        offset: int32 (channels,); float32 where the epilogue begins with `Scale`.
        epilogue: its stages.
        operands: operands of the stages in order, as in `Int8Form`.
    """

    multiplier: NDArray[np.float32]
    offset: Array
    epilogue: Epilogue
    operands: tuple[int | Array, ...]


def rounding(call: QuantizedCall, out: QParams, scale: Array, term: Array, reached: float) -> Rounding:
    """How the sum of a call is rounded to `out`.

    Args:
        call: its residual, activation, slopes and range are fused.
        out: quantization of the result.
        scale: real value of a step of the sum, float64 (channels,).
        term: real value added to the sum, float64 (channels,).
        reached: the largest magnitude of sum plus term, a real value.

    Raises NoInt8Form where that is not possible.
    """
    curve, added, shortest = None, 0.0, 0.0
    if call.residual:
        added = call.residual.span * call.residual.scale
        in_float = INT16X4 in (call.residual.dtype, out.dtype)  # the stage is a ScaledResidual
        shortest = (
            min(added, reached) * 2.0**-arithmetic.FRACTION * 1.001
            if in_float
            else call.residual.scale * 2.0**arithmetic.FRACTION / LARGEST_RESIDUAL
        )
    if call.activation:
        curve = curves.fit(call.activation, out, call.lo, call.hi, reached + added, shortest)
        if curve is None:
            raise NoInt8Form("its activation is too steep for the output's scale")
    by_addition = bool(curve and curve.allows_additions) and out.dtype != INT16X4 and not call.residual
    steps = curve.steps(by_addition) if curve else 2.0 ** arithmetic.fraction(out.dtype) / out.scale
    with np.errstate(all="ignore"):
        multiplier = np.asarray(scale * steps, np.float32)
        offset = np.rint((term - (curve.low if curve else 0.0)) * steps)
    if not (np.isfinite(multiplier).all() and np.isfinite(offset).all()):
        raise NoInt8Form("the ratio of its scales is not a finite float32")
    stages: list[Stage] = []
    operands: list[int | Array] = []
    if call.residual is not None:
        stage = _residual(call.residual, out, steps, reached)
        if stage is None:
            ratio = call.residual.scale / out.scale
            raise NoInt8Form(f"its residual's scale is {ratio:.3g} times the output's, past int32")
        stages.append(stage)
        operands.append(RESIDUAL)
    if curve:
        stages.append(Curve(by_addition))
        operands.append(curve.knots)
    elif call.slopes is not None:
        stages.append(Slopes())
        operands.append(call.slopes.astype(np.float32))
    stages.append((RequantizeInt16 if out.dtype == INT16X4 else Requantize)(call.lo, call.hi))
    limit = arithmetic.OFFSET_LIMIT
    clipped = np.clip(offset, -limit, limit).astype(np.int32)
    return Rounding(multiplier, clipped, Epilogue(tuple(stages)), tuple(operands))


def _residual(residual: QParams, out: QParams, steps: float, reached: float) -> Stage | None:
    """The stage that adds a residual to a sum of at most `reached`. The real value 1.0 is `steps` fractions of a step.
    None where the sum could saturate before the residual is added, and the result could differ."""
    factor, integer = residual.scale * steps, round(residual.scale * steps)
    if INT16X4 not in (residual.dtype, out.dtype) and integer <= LARGEST_RESIDUAL:
        return Residual(integer)
    fits = arithmetic.terms_fit(residual.span * factor, reached * steps)
    return ScaledResidual(float(np.float32(factor))) if fits else None
