"""The kernels of convolutions, transposed or not, that take any call in any layout of packed channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import CHANNELS_PACKED_INT8
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.product import halves, weighted


def pack_depthwise(call: Call, weight: Array) -> Array:
    """`Kernel.prepack` of a depthwise weight: words in order (channel quad, tap), a lane for each channel."""
    channels = weight.shape[0]
    padded = np.pad(weight.reshape(channels, -1), ((0, -channels % 4), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, 4, padded.shape[1]).transpose(0, 2, 1)).reshape(-1).view("<u4")


def _words_of_tap(call: Call) -> int:
    """The most input words that an output channel reads for a tap. A group may start within a word."""
    depth = call.inputs[1].shape[1]
    return max((start % 4 + depth + 3) // 4 for start in range(0, depth * min(call.attrs["groups"], 4), depth))


def _are_aligned(call: Call) -> bool:
    """Whether four neighbouring outputs read the same words."""
    groups, channels = call.attrs["groups"], call.inputs[1].shape[0]
    return bool(groups == 1 or channels // groups % 4 == 0 or weighted.is_depthwise(call))


def _pack_taps(call: Call, weight: Array) -> Array:
    """A convolution's weight in the order of kernels/product/taps.wgsl."""
    if weighted.is_depthwise(call):
        return pack_depthwise(call, weight)
    channels, depth, kh, kw = weight.shape
    starts = np.arange(channels) // (channels // call.attrs["groups"]) * depth % 4
    rows = np.zeros((channels, kh * kw, _words_of_tap(call) * 4), np.int8)
    taps = weight.transpose(0, 2, 3, 1).reshape(channels, kh * kw, depth)
    for start in np.unique(starts):
        rows[starts == start, :, start : start + depth] = taps[starts == start]
    return weighted.pack_rows(rows)


def kernels(
    op: str,
    files: tuple[str, ...],
    window: Callable[[Call], Params],
    taps: Callable[[Call], tuple[int, ...]],
    cost: Callable[[Call], float],
) -> tuple[Kernel, Kernel]:
    """The kernels of an operator: with one thread for four channels of a sum, and with a team.

    Args:
        op: the operator's name.
        files: its WGSL, which adds taps by kernels/product/taps.wgsl.
        window: the uniform fields of its window.
        taps: turns of the loops over taps.
        cost: as for `Kernel`.
    """

    def source(call: Call) -> tuple[str, ...]:
        by_lane = ("add_words=add_each_lane", "words_of_tap=one_word") if weighted.is_depthwise(call) else ()
        hooks = epilogue.source(call)
        return *files, "taps", "dot", "direct", *hooks, "sums_planes", *halves.source(call), *by_lane

    def params(call: Call) -> Params:
        channels, depth = call.inputs[1].shape[:2]
        numbers = {
            "channels_per_group": channels // call.attrs["groups"],
            "depth_per_group": depth,
            "depth_quads": _words_of_tap(call),
        }
        return {
            **window(call),
            **epilogue.params(call),
            **weighted.zero_words(call),
            **halves.params(call),
            **{name: np.uint32(number) for name, number in numbers.items()},
        }

    kernel = Kernel(
        f"{op}.direct",
        source,
        (CHANNELS_PACKED_INT8,),
        CHANNELS_PACKED_INT8 | FLOAT,
        wide=lambda call: (*weighted.PER_CHANNEL, *(() if weighted.is_depthwise(call) else ("weight",))),
        params=params,
        constants=lambda call: {"ALIGNED": int(_are_aligned(call))},
        prepack={1: _pack_taps, **weighted.PAD_CHANNELS},
        threads=weighted.quads_of_sums,
        cost=cost,
    )
    return share.kernels(kernel, lambda call: (*taps(call), _words_of_tap(call)))
