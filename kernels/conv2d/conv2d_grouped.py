"""The fast kernels of q8ta_conv2d for groups whose channels are multiples of four, as in ResNeXt and ShuffleNet.

They read and write 4C. A group has few channels, so a thread holds its weights in registers for several pixels, instead
of sharing them through workgroup memory.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.lib.thresholds import MANY_THREADS, MOST_TAPS
from q8ta_wgpu.kernels.product import weighted

LARGEST_SPAN = 16
"""Most input words of a row that a thread holds in registers."""

STRIPS: Mapping[str, int] = {"grouped_4": 4, "grouped_2": 2}
"""Pixels of a row of the result that a thread makes, the longer strip first."""


def _span(call: Call, columns: int) -> int:
    reach = call.attrs["dilation"][1] * (call.inputs[1].shape[3] - 1)
    return int((columns - 1) * call.attrs["stride"][1] + reach + 1)


def _supports(call: Call, target: Target, columns: int) -> bool:
    groups, (outputs, depth, *_) = call.attrs["groups"], call.inputs[1].shape
    words = depth % 4 == 0 and outputs // groups % 4 == 0
    return groups > 1 and words and _span(call, columns) <= LARGEST_SPAN


def _constants(call: Call, columns: int) -> dict[str, int]:
    return {
        "COLUMNS": columns,
        "KERNEL_X": call.inputs[1].shape[3],
        "STRIDE_X": call.attrs["stride"][1],
        "DILATION_X": call.attrs["dilation"][1],
    }


def _params(call: Call) -> Params:
    attrs, (outputs, depth, height, _) = call.attrs, call.inputs[1].shape
    return {
        **epilogue.params(call),
        "padding": tuple(attrs["padding"]),
        **weighted.zero_words(call),
        "kernel_y": np.uint32(height),
        "stride_y": np.uint32(attrs["stride"][0]),
        "dilation_y": np.uint32(attrs["dilation"][0]),
        "group_quads": np.uint32(outputs // attrs["groups"] // 4),
        "row_words": np.uint32(call.inputs[0].shape[1] // 4),
        "depth_words": np.uint32(depth // 4),
    }


def _pack(call: Call, weight: Array) -> Array:
    """`Kernel.prepack`: words in order (tap row, input word of the group, tap column, output channel)."""
    outputs, depth, height, width = weight.shape
    split = weight.reshape(outputs, depth // 4, 4, height, width).transpose(3, 1, 4, 0, 2)
    return np.ascontiguousarray(split).reshape(-1).view("<u4")


def _turns(call: Call, columns: int) -> int:
    _, depth, height, width = call.inputs[1].shape
    return share.nested((height, depth // 4)) * (1 + _span(call, columns) + width * (1 + columns))


def _threads(call: Call, layout: Layout, columns: int) -> tuple[int, int, int]:
    n, c, h, w = epilogue.extents(call)
    return n * h * -(-w // columns) * (c // 4), 1, 1


def _preferred(call: Call, target: Target, columns: int) -> bool:
    if columns == min(STRIPS.values()):
        return True
    if target.few_cores:
        return columns * call.inputs[1].shape[3] <= MOST_TAPS
    return _threads(call, Layout.PACKED_INT8_4C, columns)[0] >= MANY_THREADS


def kernels(op: str) -> tuple[Kernel, ...]:
    """The kernels for strips of each length."""
    return tuple(
        Kernel(
            f"{op}.{label}",
            lambda call: ("q8ta_conv2d_grouped", "dot", *epilogue.source(call), "sums_planes", "halves_int8"),
            (ONLY_4C,),
            ONLY_4C | FLOAT,
            supports=functools.partial(_supports, columns=columns),
            preferred=functools.partial(_preferred, columns=columns),
            wide=(*weighted.PER_CHANNEL, "weight"),
            params=_params,
            constants=functools.partial(_constants, columns=columns),
            prepack={1: _pack, **weighted.PAD_CHANNELS},
            threads=functools.partial(_threads, columns=columns),
            turns=functools.partial(_turns, columns=columns),
            cost=weighted.cost("shared"),
        )
        for label, columns in STRIPS.items()
    )
