"""Float32 kernels of conv2d: a tiled product for each group, gathering the image as it loads, and the general one."""

from __future__ import annotations

import math

import numpy as np

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.product import sgemm


def params(call: Call) -> Params:
    """The uniform fields of a convolution's window and groups."""
    attrs, weight = call.attrs, call.inputs[1].shape
    return {
        "kernel": (weight[2], weight[3], 0, 0),
        "stride": (*attrs["stride"], 0, 0),
        "padding": tuple(attrs["padding"]),
        "dilation": (*attrs["dilation"], 0, 0),
        "channels_per_group": np.uint32(weight[0] // attrs["groups"]),
        "depth_per_group": np.uint32(weight[1]),
    }


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
    gather="conv2d_gather",
    params=params,
)

KERNELS = (
    *sgemm.kernels(PRODUCT),
    *share.kernels(
        Kernel("conv2d", ("conv2d", "map"), (FLOAT,), FLOAT, params=params),
        lambda call: call.inputs[1].shape[1:],
    ),
)
"""The kernels of conv2d, preferred first."""
