"""q8ta_conv2d_image, for first layers: q8ta_conv2d of a float32 image with few channels, quantized while it is loaded.

The bytes are those of `quantize` and the convolution, with one dispatch and one round trip through memory less. Padding
is the zero point, also where that lies outside of the range that the image is clamped to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import SMALLEST_SCALE, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.kernel import ONLY_4C, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INT8_RANGE, Attr, Op, Operand
from q8ta_wgpu.kernels.conv2d import conv2d_sums
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.product import gemm, tiled, weighted

MOST_CHANNELS = 4
"""The most input channels: a pixel must fit a word."""

IMAGE: Mapping[str, Attr] = {
    "x_scale": Attr("float", low=SMALLEST_SCALE, high=1 / SMALLEST_SCALE),
    "x_zero": INT8_RANGE,
    "x_lo": INT8_RANGE,
    "x_hi": INT8_RANGE,
}
"""Attributes of the image's quantization: the range of `quantize`, and the scale and zero point of its result."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    sums, _ = conv2d_sums.infer(types, attrs)
    if attrs["groups"] != 1 or types[0].shape[1] > MOST_CHANNELS:
        found = f"{types[0].shape[1]} channels in {attrs['groups']} groups"
        raise GraphError(f"an image has at most {MOST_CHANNELS} channels in one group, found {found}")
    if attrs["x_lo"] > attrs["x_hi"]:
        raise GraphError(f"the range x_lo..x_hi is empty, found {attrs['x_lo']}..{attrs['x_hi']}")
    return epilogue.check(types, attrs, sums)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    image, weight, multiplier, offset, _, *more = arrays
    attrs, zero = call.attrs, weighted.input_zero(call)
    x = arithmetic.quantize(image, QParams(attrs["x_scale"], zero), attrs["x_lo"], attrs["x_hi"])
    acc = conv2d_sums.sums(x.astype(np.int64) - zero, weight, attrs).astype(np.int64)
    return epilogue.apply(call, acc, 1, (multiplier, offset, *more))


def _params(call: Call) -> Params:
    attrs = call.attrs
    return {
        **weighted.window_params(call),
        **arithmetic.quantize_fields(QParams(attrs["x_scale"], attrs["x_zero"]), attrs["x_lo"], attrs["x_hi"]),
    }


def _sizes(call: Call) -> tuple[int, int, int]:
    """(rows, channels, words along k) of the matrix product: the numbers of output pixels, of output channels, and of
    words that hold the taps of all channels."""
    n, c, h, w = epilogue.extents(call)
    return n * h * w, c, -(-call.inputs[1].numel // (4 * c))


def _weight_rows(call: Call, weight: Array) -> Array:
    rows = weight.reshape(weight.shape[0], -1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))


def _divisors(call: Call, tile: gemm.AnyTile) -> dict[str, int]:
    """The kernel's size: a byte's tap is computed by divisions, which are cheap by constants."""
    _, _, height, width = call.inputs[1].shape
    return {"TAPS": height * width, "KERNEL_WIDTH": width}


PRODUCT = tiled.Product(
    name="q8ta_conv2d_image.implicit",
    layouts=ONLY_4C,
    sizes=_sizes,
    weights=_weight_rows,
    # On lavapipe, eight copies of what gathers and quantizes a vector took 1.55 s to compile instead of 1.1, and ran
    # 1.1 times as long.
    reads=lambda call, tile: ("gemm_window_image", "gemm_pixels", "sums_planes", "LOADS=ONE_BY_ONE"),
    params=_params,
    has_vectors=lambda call: False,
    divisors=_divisors,
    narrow=lambda call: True,
    among=gemm.NARROW_TILES,
)


q8ta_conv2d_image = Op(
    name="q8ta_conv2d_image",
    operands=(Operand("x"), *weighted.OPERANDS[1:]),
    infer=_infer,
    reference=_reference,
    macs=weighted.macs,
    reads=conv2d_sums.reads,
    schema={**conv2d_sums.SCHEMA, "epilogue": epilogue.EPILOGUE, **IMAGE},
    kernels=tuple(tiled.kernels(PRODUCT)),
)
