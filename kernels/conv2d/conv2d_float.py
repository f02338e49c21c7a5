"""The float32 kernels of conv2d: a tiled matrix product for each group, which gathers the image while loading, and a
kernel for any call."""

from __future__ import annotations

import math

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.product import sgemm, weighted


def _sizes(call: Call) -> sgemm.Sizes:
    n, channels, height, width = call.output.shape
    groups, depth = call.attrs["groups"], math.prod(call.inputs[1].shape[1:])
    return sgemm.Sizes(n * groups, channels // groups, height * width, depth)


def _is_pointwise(call: Call) -> bool:
    weight, attrs = call.inputs[1].shape, call.attrs
    return weight[2:] == (1, 1) and tuple(attrs["stride"]) == (1, 1) and not any(attrs["padding"])


PRODUCT = sgemm.Product(
    "conv2d",
    "conv2d",
    ("x", "weight", "y"),
    _sizes,
    matrix=_is_pointwise,
    gather=("right_quad=gathered_quad",),
    params=weighted.convolution_params,
)

KERNELS = (
    *sgemm.kernels(PRODUCT),
    *share.kernels(
        Kernel("conv2d", ("conv2d", "map"), (FLOAT,), FLOAT, params=weighted.convolution_params),
        lambda call: call.inputs[1].shape[1:],
    ),
)
"""The kernels of conv2d, preferred first."""
