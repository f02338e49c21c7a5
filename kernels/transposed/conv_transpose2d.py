"""conv_transpose2d and its int8 form: any kernel size, stride, padding, output padding, dilation, groups.

The weight is stored as that of a convolution, (outputs, inputs / groups, kernel height, kernel width): an output
channel is a row of it. conv_transpose1d and conv_transpose3d are imported as conv_transpose2d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT16X4, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall, WeightedSum
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Case, Op, Operand, check_padded, extent, pair
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.lib.numbers import both
from q8ta_wgpu.kernels.product import general, weighted
from q8ta_wgpu.kernels.transposed import conv_transpose2d_tiled as tiled

MAX_STRIDE = (1 << 16) - 1
"""The largest stride: kernels multiply two numbers below it in 32 bits."""

SCHEMA: Mapping[str, Attr] = {
    "stride": Attr("ints", low=1, high=MAX_STRIDE, length=2),
    "padding": pair(0),
    "output_padding": pair(0),
    "dilation": pair(),
    "groups": extent(),
}


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, weight, groups = types[0].shape, types[1].shape, attrs["groups"]
    if len(x) != 4 or len(weight) != 4:
        raise GraphError(f"conv_transpose2d takes a 4-D input and a 4-D weight, found {x} and {weight}")
    if x[1] != weight[1] * groups or weight[0] % groups:
        raise GraphError(f"conv_transpose2d with {groups} groups: input channels {x[1]} do not fit the weight {weight}")
    size = tuple(
        (x[2 + i] - 1) * attrs["stride"][i]
        - 2 * attrs["padding"][i]
        + attrs["dilation"][i] * (weight[2 + i] - 1)
        + attrs["output_padding"][i]
        + 1
        for i in range(2)
    )
    if min(size) < 1:
        raise GraphError(f"conv_transpose2d's padding {attrs['padding']} leaves nothing of the result of input {x}")
    full = [
        size[i] + 2 * attrs["padding"][i] + attrs["dilation"][i] * weight[2 + i] + attrs["stride"][i] * x[2 + i]
        for i in range(2)
    ]
    check_padded(x[0], weight[0], *full)
    phases = attrs["stride"][0] * attrs["stride"][1]
    for t, shape in zip(types[2:5], ((weight[0],), (weight[0],), (phases, weight[0])), strict=False):
        if t.shape != shape:
            raise GraphError(f"conv_transpose2d takes a per-channel operand of shape {shape}, found {t.shape}")
    return (x[0], weight[0], *size), FLOAT32


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return epilogue.check(types, attrs, _infer(types, attrs)[0])


def _sums(call: Call, x: Array, weight: Array) -> Array:
    """The sums, float64 (n, outputs, height, width): every input element times the weight, added to the outputs that
    its taps reach. Sums of integers are exact below 2^53."""
    attrs, (n, depth, h, w) = call.attrs, x.shape
    (sy, sx), (dy, dx), (top, left), groups = attrs["stride"], attrs["dilation"], attrs["padding"], attrs["groups"]
    outputs, _, kh, kw = weight.shape
    height, width = epilogue.sums(call)[2:]
    full = np.zeros((n, outputs, height + 2 * top + dy * kh + sy * h, width + 2 * left + dx * kw + sx * w))
    split = x.astype(np.float64).reshape(n, groups, depth // groups, h * w)
    taps = weight.astype(np.float64).reshape(groups, outputs // groups, depth // groups, kh, kw)
    for ky in range(kh):
        for kx in range(kw):
            product = (taps[..., ky, kx] @ split).reshape(n, outputs, h, w)
            full[:, :, ky * dy : ky * dy + sy * h : sy, kx * dx : kx * dx + sx * w : sx] += product
    return full[:, :, top : top + height, left : left + width]


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, bias = arrays
    return (_sums(call, x, weight) + bias.reshape(-1, 1, 1)).astype(np.float32)


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, multiplier, offset, _, *more = arrays
    acc = _sums(call, x.astype(np.int64) - call.zeros[0], weight).astype(np.int64)
    return epilogue.apply(call, acc, 1, (multiplier, offset, *more))


def _corrections(weight: Array, x: QParams, attrs: Attrs) -> tuple[NDArray[np.int64], int]:
    """`weighted.correction_of` for each phase and output channel, and the largest accumulator of any x."""
    (sy, sx), (dy, dx), (outputs, _, height, width) = attrs["stride"], attrs["dilation"], weight.shape
    phase = (np.arange(height) * dy % sy)[:, None] * sx + np.arange(width) * dx % sx
    sums, sizes = np.zeros((2, sy * sx, outputs), np.int64)
    np.add.at(sums, phase.reshape(-1), weight.sum(1, dtype=np.int64).reshape(outputs, -1).T)
    np.add.at(sizes, phase.reshape(-1), np.abs(weight.astype(np.int64)).sum(1).reshape(outputs, -1).T)
    return weighted.correction_of(x, sums), weighted.largest_accumulator(sizes, x, sums)


def _valid_correction(call: Call, arrays: Sequence[Array | None]) -> str:
    weight, correction = arrays[1], arrays[4]
    assert weight is not None and correction is not None
    x = call.inputs[0].q
    assert x is not None
    expected, largest = _corrections(weight, x, call.attrs)
    if np.any(correction != expected):
        return f"must be {weighted.factor_of(x)}the sums of each phase's weights"
    limit = arithmetic.INT32_MAX
    return f"belongs to weights whose accumulator could reach {largest}, past int32" if largest > limit else ""


OPERANDS = (*weighted.OPERANDS[:4], replace(weighted.OPERANDS[4], valid=_valid_correction))
"""Those of a convolution, but `correction` is (phases, output channels): see conv_transpose2d_tiled.phases. A tap
outside of the image reads z_x. A tap between two input pixels reads nothing."""


def _lower(call: QuantizedCall) -> Int8Form:
    lowered = weighted.lower(call, "conv_transpose2d", call.attrs)
    weight = lowered.operands[1]
    assert isinstance(weight, np.ndarray)
    correction, largest = _corrections(weight, call.quantized(), call.attrs)
    if largest > arithmetic.INT32_MAX:
        raise NoInt8Form(f"its accumulator could reach {largest}, past int32")
    operands = (*lowered.operands[:4], correction.astype(np.int32), *lowered.operands[5:])
    return replace(lowered, operands=operands)


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int]:
    i, factor = axis - 2, epilogue.factor(call.attrs)
    first, last = first // factor, last // factor
    stride, padding = call.attrs["stride"][i], call.attrs["padding"][i]
    span = call.attrs["dilation"][i] * (call.inputs[1].shape[axis] - 1)
    # The range must be long enough for a result that has the last row, even if no tap reaches that row.
    exists = -((span + call.attrs["output_padding"][i] - 2 * padding - last) // stride)
    return -((span - first - padding) // stride), max((last + padding) // stride, exists)


def _case(
    x: Shape,
    weight: Shape,
    stride: Any = 2,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    values: str = "random",
) -> Case:
    pairs = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    attrs = {name: both(v) for name, v in pairs.items()}
    return Case((x, weight, (weight[0],)), {**attrs, "groups": groups}, values)


CASES = (
    _case((1, 5, 4, 7), (6, 5, 3, 3), padding=1, output_padding=1),
    _case((2, 16, 5, 3), (9, 16, 2, 2)),
    _case((1, 12, 7, 5), (8, 12, 4, 4), padding=1),
    _case((3, 16, 3, 5), (5, 16, 3, 3), stride=1, padding=1),
    _case((1, 20, 5, 4), (7, 20, 5, 4), stride=(3, 2), padding=(2, 0), output_padding=(1, 0)),
    _case((2, 7, 4, 5), (11, 7, 3, 2), stride=(2, 3), padding=(1, 0), output_padding=(0, 2), dilation=(3, 2)),
    _case((1, 6, 5, 3), (4, 6, 3, 3), dilation=2, output_padding=1),
    _case((1, 16, 3, 4), (6, 16, 1, 1), stride=(2, 3), output_padding=(1, 2)),
    _case((2, 6, 3, 5), (6, 1, 4, 4), padding=1, groups=6),
    _case((1, 5, 4, 4), (15, 1, 3, 3), stride=(2, 1), padding=1, groups=5),
    _case((1, 9, 3, 4), (6, 3, 3, 3), padding=(0, 1), groups=3),
    _case((1, 16, 3, 3), (8, 8, 2, 3), groups=2),
    _case((1, 17, 3, 3), (4, 17, 3, 3), stride=1, values="saturate"),
    _case((1, 16, 3, 3), (4, 16, 2, 2), values="ties"),
    _case((1, 1, 1, 1), (1, 1, 1, 1)),
    _case((2, 32, 9, 7), (37, 32, 4, 4), padding=1),
    _case((1, 3, 4, 5), (4, 3, 3, 3), stride=1, padding=2),
    _case((1, 5, 1, 4), (3, 5, 1, 130), stride=(1, 65), padding=(0, 30)),
    _case((1, 6, 4, 3), (6, 3, 4, 3), stride=(4, 2), dilation=(2, 4), padding=(1, 2), groups=2),
    _case((1, 9, 4, 3), (10, 9, 4, 3), stride=(4, 2), dilation=(6, 4), padding=(1, 2)),
    _case((1, 8, 3, 5), (16, 8, 2, 2)),
)


def _float_params(call: Call) -> Params:
    """`tap_step`: where taps are next to each other, those between places of the input need not be looked at."""
    steps = [s if d == 1 else 1 for s, d in zip(call.attrs["stride"], call.attrs["dilation"], strict=True)]
    return {**weighted.convolution_params(call), "tap_step": (steps[0], steps[1], 0, 0)}


conv_transpose2d = Op(
    name="conv_transpose2d",
    operands=(Operand("x"), Operand("weight", constant=True), Operand("bias", constant=True)),
    infer=_infer,
    reference=_reference,
    macs=tiled.macs,
    reads=_reads,
    schema=SCHEMA,
    kernels=share.kernels(
        Kernel(
            "conv_transpose2d",
            ("conv_transpose2d", "map"),
            (FLOAT,),
            FLOAT,
            params=_float_params,
        ),
        lambda call: call.inputs[1].shape[1:],
    ),
    int8=WeightedSum(_lower, reads_int16=True, gives_int16=True),
    cases=CASES,
    tolerance=1e-5,
)


def _kernels(op: str, halves_per_row: int) -> tuple[Kernel, ...]:
    """All kernels of an operator. A row of x is `halves_per_row` rows of int8: 1, or 2 for int16."""
    files = ("q8ta_conv_transpose2d", "stride_phases")
    others = general.kernels(op, files, tiled.phase_params, lambda call: (tiled.most_taps(call),), tiled.cost("direct"))
    return *tiled.kernels(op, halves_per_row), *others


q8ta_conv_transpose2d = Op(
    name="q8ta_conv_transpose2d",
    operands=OPERANDS,
    infer=_infer_int8,
    reference=_reference_int8,
    macs=tiled.macs,
    reads=_reads,
    work=tiled.work,
    schema={**SCHEMA, "epilogue": epilogue.EPILOGUE},
    kernels=_kernels("q8ta_conv_transpose2d", 1),
)

q16ta_conv_transpose2d = replace(
    q8ta_conv_transpose2d,
    name="q16ta_conv_transpose2d",
    operands=(Operand("x", dtypes=(INT16X4,)), *OPERANDS[1:]),
    kernels=_kernels("q16ta_conv_transpose2d", 2),
)
"""q8ta_conv_transpose2d with an int16 operand (kernels/product/halves.py)."""
