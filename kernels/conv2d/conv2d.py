"""conv2d and its int8 form: any kernel size, stride, asymmetric padding, dilation, groups. conv1d is imported as it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall, WeightedSum
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand
from q8ta_wgpu.kernels.conv2d import conv2d_grouped, conv2d_sums, conv2d_tiled
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.lib.numbers import both
from q8ta_wgpu.kernels.product import general, sgemm, weighted


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return epilogue.check(types, attrs, conv2d_sums.infer(types, attrs)[0])


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, bias = arrays
    return (conv2d_sums.sums(x, weight, call.attrs) + bias.reshape(-1, 1, 1)).astype(np.float32)


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, multiplier, offset, _, *more = arrays
    acc = conv2d_sums.sums(x.astype(np.int64) - call.zeros[0], weight, call.attrs).astype(np.int64)
    return epilogue.apply(call, acc, 1, (multiplier, offset, *more))


def _lower(call: QuantizedCall) -> Int8Form:
    return weighted.lower(call, "conv2d", call.attrs)


def _kernels(op: str) -> tuple[Kernel, ...]:
    """All kernels of q8ta_conv2d or q16ta_conv2d, the general ones last."""
    return (
        *conv2d_tiled.kernels(op),
        *(conv2d_grouped.kernels(op) if op == "q8ta_conv2d" else ()),
        *general.kernels(
            op, ("q8ta_conv2d",), weighted.window_params, lambda call: call.inputs[1].shape[2:], weighted.cost("direct")
        ),
    )


def _case(
    x: Shape,
    weight: Shape,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    values: str = "random",
) -> Case:
    attrs = {"stride": both(stride), "padding": both(padding, 4), "dilation": both(dilation), "groups": groups}
    return Case((x, weight, (weight[0],)), attrs, values)


CASES = (
    _case((1, 3, 7, 9), (5, 3, 3, 3), padding=1),
    _case((2, 4, 8, 8), (8, 4, 3, 3), stride=2, padding=1),
    _case((1, 13, 5, 11), (7, 13, 1, 1)),
    _case((3, 8, 6, 5), (12, 8, 1, 1), stride=2),
    _case((1, 5, 9, 7), (6, 5, 3, 2), stride=(1, 2), padding=(0, 1, 2, 0), dilation=(2, 1)),
    _case((1, 16, 6, 6), (16, 4, 3, 3), padding=1, groups=4),
    _case((2, 9, 5, 5), (6, 3, 3, 3), padding=1, groups=3),
    _case((1, 10, 4, 6), (15, 2, 1, 1), groups=5),
    _case((1, 6, 5, 7), (6, 1, 3, 3), padding=1, groups=6),
    _case((2, 16, 9, 9), (16, 1, 5, 5), stride=2, padding=2, groups=16),
    _case((1, 5, 6, 6), (15, 1, 3, 3), padding=1, groups=5),
    _case((1, 17, 3, 3), (4, 17, 3, 3), values="saturate"),
    _case((1, 8, 4, 4), (4, 8, 1, 1), values="ties"),
    _case((1, 1, 1, 1), (1, 1, 1, 1)),
    _case((1, 16, 7, 9), (12, 16, 3, 3), padding=1),
    _case((2, 48, 6, 5), (70, 48, 3, 2), stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2)),
    _case((2, 32, 9, 11), (20, 32, 1, 1), stride=(2, 3)),
    _case((1, 272, 5, 7), (18, 272, 1, 1), values="saturate"),
    _case((2, 1, 9, 11), (6, 1, 5, 5), stride=2, padding=2),
    _case((3, 32, 1, 1), (9, 32, 1, 1)),
    _case((2, 20, 1, 1), (24, 20, 1, 1), values="ties"),
    _case((1, 4, 3, 3), (4, 4, 3, 3), padding=4, dilation=2),
    _case((2, 24, 7, 9), (48, 8, 3, 3), stride=2, padding=(1, 0, 2, 1), groups=3),
    _case((1, 8, 6, 11), (16, 4, 3, 2), padding=(2, 1, 0, 3), dilation=(1, 3), groups=2),
    _case((3, 12, 5, 3), (12, 4, 1, 1), groups=3, values="ties"),
    _case((1, 64, 3, 5), (8, 32, 3, 3), padding=1, groups=2, values="saturate"),
    _case((2, 12, 5, 7), (48, 12, 3, 3), padding=1),
    _case((1, 3, 5, 7), (16, 3, 3, 3), padding=1),
)


def _float_sizes(call: Call) -> sgemm.Sizes:
    n, channels, height, width = call.output.shape
    groups, depth = call.attrs["groups"], math.prod(call.inputs[1].shape[1:])
    return sgemm.Sizes(n * groups, channels // groups, height * width, depth)


def _is_pointwise(call: Call) -> bool:
    weight, attrs = call.inputs[1].shape, call.attrs
    return weight[2:] == (1, 1) and tuple(attrs["stride"]) == (1, 1) and not any(attrs["padding"])


_FLOAT_PRODUCT = sgemm.Product(
    "conv2d",
    "conv2d",
    ("x", "weight", "y"),
    _float_sizes,
    matrix=_is_pointwise,
    gather=("right_quad=gathered_quad",),
    params=weighted.convolution_params,
)

_FLOAT_KERNELS = (
    *sgemm.kernels(_FLOAT_PRODUCT),
    *share.kernels(
        Kernel("conv2d", ("conv2d", "map"), (FLOAT,), FLOAT, params=weighted.convolution_params),
        lambda call: call.inputs[1].shape[1:],
    ),
)
"""The kernels of float32: a tiled matrix product for each group, which gathers the image while loading, and one for any
call."""


conv2d = Op(
    name="conv2d",
    operands=(Operand("x"), Operand("weight", constant=True), Operand("bias", constant=True)),
    infer=conv2d_sums.infer,
    reference=_reference,
    macs=weighted.macs,
    reads=conv2d_sums.reads,
    schema=conv2d_sums.SCHEMA,
    kernels=_FLOAT_KERNELS,
    int8=WeightedSum(_lower, reads_int16=True, gives_int16=True),
    cases=CASES,
    tolerance=1e-5,
)


q8ta_conv2d = Op(
    name="q8ta_conv2d",
    operands=weighted.OPERANDS,
    infer=_infer_int8,
    reference=_reference_int8,
    macs=weighted.macs,
    reads=conv2d_sums.reads,
    schema={**conv2d_sums.SCHEMA, "epilogue": epilogue.EPILOGUE},
    kernels=_kernels("q8ta_conv2d"),
)

q16ta_conv2d = replace(
    q8ta_conv2d,
    name="q16ta_conv2d",
    operands=(Operand("x", dtypes=(INT16X4,)), *weighted.OPERANDS[1:]),
    kernels=_kernels("q16ta_conv2d"),
)
"""q8ta_conv2d with an int16 operand (kernels/product/halves.py)."""
