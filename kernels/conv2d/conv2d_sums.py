"""Attributes, shape rule and numpy definition of a convolution's sums, for float32, int8 and int16."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, check_padded, extent, pair
from q8ta_wgpu.kernels.epilogue import epilogue

SCHEMA: Mapping[str, Attr] = {
    "stride": pair(),
    "padding": Attr("ints", low=0, length=4),  # top, left, bottom, right
    "dilation": pair(),
    "groups": extent(),
}


def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """Shape and dtype of a float32 convolution. Raises GraphError where the operands do not fit each other."""
    x, weight, groups = types[0].shape, types[1].shape, attrs["groups"]
    if len(x) != 4 or len(weight) != 4:
        raise GraphError(f"conv2d takes a 4-D input and a 4-D weight, found {x} and {weight}")
    if x[1] != weight[1] * groups or weight[0] % groups:
        raise GraphError(f"conv2d with {groups} groups: input channels {x[1]} do not fit the weight {weight}")
    top, left, bottom, right = attrs["padding"]
    size = []
    for axis, before, after in ((0, top, bottom), (1, left, right)):
        span = attrs["dilation"][axis] * (weight[2 + axis] - 1) + 1
        size.append((x[2 + axis] + before + after - span) // attrs["stride"][axis] + 1)
    if min(size) < 1:
        raise GraphError(f"conv2d's kernel {weight[2:]} does not fit the padded input {x}")
    check_padded(x[0], x[1], x[2] + top + bottom, x[3] + left + right)
    for t in types[2:5]:
        if t.shape != (weight[0],):
            raise GraphError(f"conv2d with {weight[0]} output channels: a per-channel operand has shape {t.shape}")
    return (x[0], weight[0], size[0], size[1]), FLOAT32


def sums(x: Array, weight: Array, attrs: Attrs) -> Array:
    """The sums of a convolution.

    Args:
        x: (n, c, h, w), without zero point.
        weight: (outputs, c / groups, kernel height, kernel width).
        attrs: attributes of SCHEMA.

    Returns:
        float64 (n, outputs, height, width). Taps outside of the image count as 0. Sums of integers are exact below
        2^53.
    """
    top, left, bottom, right = attrs["padding"]
    (sy, sx), (dy, dx), groups = attrs["stride"], attrs["dilation"], attrs["groups"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    oc, depth, kh, kw = weight.shape
    oh = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    ow = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    w = weight.astype(np.float64)
    result = np.zeros((x.shape[0], oc, oh, ow))
    for ky in range(kh):
        for kx in range(kw):
            tap = padded[:, :, ky * dy : ky * dy + sy * (oh - 1) + 1 : sy, kx * dx : kx * dx + sx * (ow - 1) + 1 : sx]
            if depth == 1:
                result += np.repeat(tap, oc // groups, axis=1) * w[:, 0, ky, kx, None, None]
                continue
            split = tap.reshape(x.shape[0], groups, depth, oh * ow)
            result += (w[:, :, ky, kx].reshape(groups, oc // groups, depth) @ split).reshape(result.shape)
    return result


def reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int]:
    """`Op.reads` of a convolution, also with a pixel_shuffle in its epilogue."""
    i, factor = axis - 2, epilogue.factor(call.attrs)
    first, last = first // factor, last // factor
    stride, before = call.attrs["stride"][i], call.attrs["padding"][i]
    span = call.attrs["dilation"][i] * (call.inputs[1].shape[axis] - 1)
    return first * stride - before, last * stride - before + span
