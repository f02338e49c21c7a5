"""Code that convolutions and linear share: the int8 lowering of a weighted sum, its operands, and packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir import arithmetic, bits
from q8ta_wgpu.ir.graph import (
    FLOAT32,
    INT8,
    INT8X4,
    INT16X4,
    INT32,
    SMALLEST_SCALE,
    Array,
    Attrs,
    Call,
    QParams,
)
from q8ta_wgpu.ir.int8 import ROWS, Int8Form, NoInt8Form, QuantizedCall, Weight
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.op import FLOAT_MAX, Operand
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Scale
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Rows
from q8ta_wgpu.kernels.epilogue.sum_rounding import Rounding, rounding
from q8ta_wgpu.kernels.lib import valid
from q8ta_wgpu.kernels.lib.thresholds import MACS_A_BYTE
from q8ta_wgpu.kernels.product import four_bit_weights, halves


def _valid_multiplier(call: Call, arrays: Sequence[Array | None]) -> str:
    multiplier = arrays[2]
    assert multiplier is not None
    if call.attrs["epilogue"].keeps_accumulator and (bad := multiplier[np.abs(multiplier) < SMALLEST_SCALE]).size:
        return f"must be normal float32 numbers before the stage scale, from 2^-126 on, found {bad[0]}"
    if call.attrs["epilogue"].rows and (bad := multiplier[~_multiplies_rows(multiplier)]).size:
        return f"must be in [2^-126, 2^24] where rows have scales, found {bad[0]}"
    return valid.finite(2, negative=False)(call, arrays)


def _multiplies_rows(multiplier: Array) -> Array:
    return np.asarray((multiplier >= SMALLEST_SCALE) & (multiplier <= arithmetic.LARGEST_ROW_MULTIPLIER))


def _valid_offset(call: Call, arrays: Sequence[Array | None]) -> str:
    offset = arrays[3]
    assert offset is not None
    dtype = FLOAT32 if call.attrs["epilogue"].keeps_accumulator else INT32
    if offset.dtype != dtype:
        return f"must be {dtype} before the stage {call.attrs['epilogue'].stages[0].name}, found {offset.dtype}"
    limit = FLOAT_MAX if dtype == FLOAT32 else arithmetic.OFFSET_LIMIT
    bad = offset[~((np.abs(offset.astype(np.float64)) <= limit) & (offset == np.rint(offset)))]
    return f"must be in [{-limit:g}, {limit:g}] and whole, found {bad[0]}" if bad.size else ""


def input_zero(call: Call) -> int:
    """The zero point of a weighted sum's input: that of an int8 or int16 operand, or that by which a float32 operand is
    quantized."""
    stage = call.attrs["prologue"].stage if "prologue" in call.attrs else None
    zero: int = stage.zero if stage else call.attrs["x_zero"] if "x_zero" in call.attrs else call.zeros[0]
    return zero


def zero_words(call: Call) -> dict[str, tuple[int, int, int, int]]:
    """The uniform field that stands for elements outside of an image: words of the input's zero point."""
    zero = call.zeros[0]
    word = (zero & 0xFFFF) * 0x00010001 if call.inputs[0].dtype == INT16X4 else (zero & 0xFF) * 0x01010101
    return {"x_zeros": (word,) * 4}


def window_params(call: Call) -> dict[str, tuple[int, int, int, int]]:
    """Uniform fields of the window of a convolution, transposed or not. `padding` begins with top and left."""
    attrs, (_, _, height, width) = call.attrs, call.inputs[1].shape
    top, left, bottom, right = (*attrs["padding"], 0, 0)[:4]
    return {
        "kernel": (height, width, 0, 0),
        "stride": (*attrs["stride"], 0, 0),
        "padding": (top, left, bottom, right),
        "dilation": (*attrs["dilation"], 0, 0),
    }


def convolution_params(call: Call) -> Params:
    """Uniform fields of the window and the groups of a convolution, transposed or not."""
    channels, depth = call.inputs[1].shape[:2]
    per_group = np.uint32(channels // call.attrs["groups"])
    return {**window_params(call), "channels_per_group": per_group, "depth_per_group": np.uint32(depth)}


def values(call: Call, weight: Array) -> Array:
    """The integers of a stored weight of 8 or 4 bits, outputs first."""
    return bits.values(weight, call.inputs[0].shape[-1]) if four_bit_weights.is_grouped(call) else weight


def _valid_correction(call: Call, arrays: Sequence[Array | None]) -> str:
    weight, correction = arrays[1], arrays[4]
    assert weight is not None and correction is not None
    rows, zero = values(call, weight).reshape(weight.shape[0], -1), input_zero(call)
    sums = rows.sum(1, dtype=np.int64)
    x = QParams(1.0, zero, INT16X4 if call.inputs[0].dtype == INT16X4 else INT8X4)
    if np.any(correction != correction_of(x, sums)):
        return f"must be {factor_of(x)}the sums of the weights"
    largest_weight = arithmetic.LARGEST_OF_4_BITS if four_bit_weights.is_grouped(call) else 128
    if 2 * 128 * largest_weight * rows.shape[1] <= arithmetic.INT32_MAX:
        return ""
    largest = largest_accumulator(_sizes(rows, sums), x, sums)
    return (
        f"belongs to weights whose accumulator could reach {largest}, past int32"
        if largest > arithmetic.INT32_MAX
        else ""
    )


def _sizes(rows: Array, sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of |w| over the rows of a weight int8 (outputs, taps), without a copy in a larger dtype. `sums` are the
    sums of w."""
    sizes: NDArray[np.int64] = 2 * np.maximum(rows, 0).sum(1, dtype=np.int64) - sums
    return sizes


def correction_of(x: QParams, sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """The operand `correction`.

    Args:
        x: quantization of the input.
        sums: int64, the sums of the weights for each output.

    Returns:
        int64, shape of `sums`: the sums times the zero point of an int8 input. For int16 it is the sums themselves,
        since the halves of x have zero points of their own.
    """
    return sums if x.dtype == INT16X4 else x.zero * sums


def factor_of(x: QParams) -> str:
    """The factor in `correction_of`, in words, for messages."""
    return "" if x.dtype == INT16X4 else f"the zero point {x.zero} times "


def largest_accumulator(sizes: NDArray[np.int64], x: QParams, sums: NDArray[np.int64]) -> int:
    """The largest magnitude that an accumulator can reach.

    Args:
        sizes: int64 (outputs,), the sums of |w|.
        x: quantization of the input.
        sums: int64 (outputs,), the sums of w.

    Returns:
        The largest |sum of x * w| + |zero * sum of w| over all int8 inputs and all outputs. For int16 inputs, the
        larger one of high and low halves.
    """
    if x.dtype != INT16X4:
        return int((sizes * 128 + np.abs(x.zero * sums)).max())
    return max(largest_accumulator(sizes, QParams(1.0, zero), sums) for zero in halves.zeros(x.zero))


OPERANDS = (
    Operand("x", dtypes=(INT8X4,)),
    Operand("weight", constant=True, dtypes=(INT8,)),
    Operand("multiplier", constant=True, valid=_valid_multiplier),
    Operand("offset", constant=True, dtypes=(INT32, FLOAT32), valid=_valid_offset),
    Operand("correction", constant=True, dtypes=(INT32,), valid=_valid_correction),
)
"""The operands of q8ta_conv2d, q8ta_linear and their q16ta forms. Three of them have a number for each output channel:

* `multiplier`: s_x * s_w / s_y * 2^14;
* `offset`: the bias in 2^-14 output steps;
* `correction`: z_x * sum(w), or sum(w) for an int16 operand.

With a float32 result the multiplier is s_x * s_w, and the offset is the bias in such steps, in float32: it has room for
the bias of a channel whose weights are tiny or zero."""


def lower(call: QuantizedCall, name: str, attrs: Attrs) -> Int8Form:
    """The int8 form of a weighted sum.

    Args:
        call: the quantized call. Axis 0 of its weight is the output channel. Its residual, activation and range are
            fused. Without a quantized result, the result is float32.
        name: the form is q8ta_`name`, or q16ta_`name` with an int16 operand.
        attrs: attributes of the form, without the epilogue.

    Raises NoInt8Form where there is none, for instance since the accumulator could pass int32.
    """
    weight, bias, x = call.constants.get(1), call.constants.get(2), call.quantized()
    if not isinstance(weight, Weight) or not isinstance(bias, np.ndarray):
        raise NoInt8Form("its weight is not a quantized constant, or its bias is not a constant")
    if np.any(weight.zero != 0) or (weight.axis != 0 and np.any(weight.scale != weight.scale.flat[0])):
        raise NoInt8Form("its weight needs zero point 0 and scales along the output channels")
    stored = weight.values if weight.values.dtype == np.int8 else bits.pack(weight.values)
    if stored is None:
        raise NoInt8Form("its weight has more than 8 bits, and no factor for each 32 inputs leaves 4")
    channels = weight.values.shape[0]
    w = weight.values.reshape(channels, -1)
    scale = x.scale * np.broadcast_to(weight.scale if weight.axis == 0 else weight.scale.flat[0], (channels,))
    sums = w.sum(1, dtype=np.int64)
    sizes = _sizes(w, sums)
    largest = largest_accumulator(sizes, x, sums)
    if largest > arithmetic.INT32_MAX:
        raise NoInt8Form(f"its accumulator could reach {largest}, past int32")
    correction = correction_of(x, sums).astype(np.int32)
    step = max(call.rows, 1.0)
    reached = float((scale * sizes * x.span * step + np.abs(bias)).max())
    op = f"{'q16ta' if x.dtype == INT16X4 else 'q8ta'}_{name}"
    if call.out is None:
        with np.errstate(all="ignore"):
            offset = np.rint(bias.astype(np.float64) / scale).astype(np.float32)
        if (bad := ~np.isfinite(offset)).any():
            raise NoInt8Form(f"its bias {bias[bad][0]:g} is too large for its scale {scale[bad][0]:.3g}")
        if (bad := (scale < SMALLEST_SCALE) | (scale > FLOAT_MAX)).any():
            found = f"the scale of its input times its weight's, {scale[bad][0]:.3g}"
            raise NoInt8Form(f"{found}, is no normal float32 number")
        kept = Rounding(scale.astype(np.float32), offset, Epilogue((Scale(),)), ())
        return _form(call, op, attrs, stored, correction, kept)
    term = bias.astype(np.float64)
    return _form(call, op, attrs, stored, correction, rounding(call, call.out, scale, term, reached))


def _form(call: QuantizedCall, op: str, attrs: Attrs, weight: Array, correction: Array, found: Rounding) -> Int8Form:
    """The form of a sum with the rounding `found`. Where rows of x have scales, the stage `rows` is added."""
    stages, operands = found.epilogue.stages, found.operands
    if call.rows:
        stages, operands = (Rows(), *stages), (ROWS, *operands)
        if not _multiplies_rows(found.multiplier).all():
            raise NoInt8Form(f"the ratio of its scales, {found.multiplier.max():.3g}, is too large for scales of rows")
        if epilogue.wrong(stages):
            raise NoInt8Form("scales of rows, an addend and an activation together are more than a dispatch reads")
    numbers = (found.multiplier, found.offset, correction)
    return Int8Form(op, (0, weight, *numbers, *operands), {**attrs, "epilogue": Epilogue(stages)})


def macs(call: Call) -> int:
    """The number of multiply-accumulates of a call."""
    taps = call.inputs[0].shape[-1:] if four_bit_weights.is_grouped(call) else call.inputs[1].shape[1:]
    return call.output.numel * math.prod(taps)


def cost(kind: str) -> Callable[[Call], float]:
    """`Kernel.cost` of a kernel of a kind in MACS_A_BYTE."""
    return lambda call: macs(call) / MACS_A_BYTE[kind]


def is_depthwise(call: Call) -> bool:
    """Whether every input channel has one output channel of its own."""
    return bool(call.attrs["groups"] == call.inputs[0].shape[1] == call.inputs[1].shape[0])


def quads_of_sums(call: Call, layout: Layout = Layout.DEFAULT) -> tuple[int, int, int]:
    """`Kernel.threads` of a general kernel: one thread for four channels of a sum."""
    channels = call.inputs[1].shape[0]
    return math.prod(epilogue.sums(call)) // channels * -(-channels // 4), 1, 1


PER_CHANNEL = ("multiplier", "offset", "correction")
"""Operands with a number for each channel. Every kernel binds them as vectors of four channels."""


def pad4(call: Call, array: Array) -> Array:
    """`Kernel.prepack` of numbers (..., channels): channels are padded with zeros to a multiple of four."""
    return np.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, -array.shape[-1] % 4),))


PAD_CHANNELS = {2: pad4, 3: epilogue.pack_offset, 4: pad4}
"""`Kernel.prepack` of PER_CHANNEL."""


def pack_rows(rows: NDArray[np.int8]) -> NDArray[np.uint32]:
    """A weight int8 (outputs, taps, depth) as words in order (output quad, tap, depth quad, output in the quad), padded
    with 0."""
    padded = np.pad(rows, ((0, -rows.shape[0] % 4), (0, 0), (0, -rows.shape[2] % 4)))
    o, taps, depth = padded.shape
    quads = padded.reshape(o // 4, 4, taps, depth // 4, 4).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(quads).reshape(-1).view("<u4")
