"""pixel_shuffle, pixel_unshuffle and channel_shuffle. Each is a view, a permute and a view, in one dispatch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Attrs, Call
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, four_words
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import extent, reads_same_place
from q8ta_wgpu.kernels.move.strided import Digit, Digits, move, permuted

Split = Callable[[Shape, Attrs], tuple[Shape, tuple[int, ...]]]
"""(shape, attributes) -> (shape of the first view, dimensions of the permute)."""


def _digits(split: Split) -> Digits:
    def digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
        return permuted(*split(x, attrs)), 0

    return digits


def _reference(split: Split) -> Callable[[Array, Shape, Attrs], Array]:
    def reference(x: Array, y: Shape, attrs: Attrs) -> Array:
        shape, dims = split(x.shape, attrs)
        return x.reshape(shape).transpose(dims).reshape(y)

    return reference


def _shuffle_shape(x: Shape, attrs: Attrs) -> Shape:
    r = attrs["upscale_factor"]
    if len(x) < 3 or x[-3] % (r * r):
        raise GraphError(f"pixel_shuffle by {r} needs (..., C, H, W) with C a multiple of {r * r}, found {x}")
    return (*x[:-3], x[-3] // (r * r), x[-2] * r, x[-1] * r)


def _shuffle_split(x: Shape, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    r = attrs["upscale_factor"]
    return (math.prod(x[:-3]), x[-3] // (r * r), r, r, *x[-2:]), (0, 1, 4, 2, 5, 3)


def _shuffle_reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    r = call.attrs["upscale_factor"]
    return (first // r, last // r) if len(call.output.shape) == 4 else None


def _shuffle_kernel(layout: Layout) -> Kernel:
    return Kernel(
        f"pixel_shuffle.to_{layout.short}",
        ("pixel_shuffle", "words", f"load=load_{layout.short}"),
        (ONLY_4C,),
        frozenset({layout}),
        supports=lambda call, target: call.output.dtype == INT8X4,
        params=lambda call: {"factor": np.uint32(call.attrs["upscale_factor"])},
        threads=four_words,
    )


pixel_shuffle = move(
    "pixel_shuffle",
    shape=_shuffle_shape,
    digits=_digits(_shuffle_split),
    reference=_reference(_shuffle_split),
    schema={"upscale_factor": extent()},
    reads=_shuffle_reads,
    kernels=tuple(_shuffle_kernel(layout) for layout in (Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W)),
    cases=(
        ((2, 12, 3, 5), {"upscale_factor": 2}),
        ((1, 45, 2, 3), {"upscale_factor": 3}),
        ((25, 2, 3), {"upscale_factor": 5}),
        ((2, 2, 4, 3, 2), {"upscale_factor": 2}),
        ((1, 16, 3, 8), {"upscale_factor": 1}),
    ),
)


def _unshuffle_shape(x: Shape, attrs: Attrs) -> Shape:
    r = attrs["downscale_factor"]
    if len(x) < 3 or x[-1] % r or x[-2] % r:
        raise GraphError(f"pixel_unshuffle by {r} needs (..., C, H, W) with H and W multiples of {r}, found {x}")
    return (*x[:-3], x[-3] * r * r, x[-2] // r, x[-1] // r)


def _unshuffle_split(x: Shape, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    r = attrs["downscale_factor"]
    return (math.prod(x[:-2]), x[-2] // r, r, x[-1] // r, r), (0, 2, 4, 1, 3)


def _unshuffle_reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    r = call.attrs["downscale_factor"]
    return (first * r, last * r + r - 1) if len(call.output.shape) == 4 else None


pixel_unshuffle = move(
    "pixel_unshuffle",
    shape=_unshuffle_shape,
    digits=_digits(_unshuffle_split),
    reference=_reference(_unshuffle_split),
    schema={"downscale_factor": extent()},
    reads=_unshuffle_reads,
    cases=(
        ((2, 3, 6, 10), {"downscale_factor": 2}),
        ((1, 5, 6, 9), {"downscale_factor": 3}),
        ((1, 5, 10), {"downscale_factor": 5}),
        ((2, 2, 3, 4, 2), {"downscale_factor": 2}),
        ((1, 16, 3, 8), {"downscale_factor": 1}),
    ),
)


def _channel_shape(x: Shape, attrs: Attrs) -> Shape:
    groups = attrs["groups"]
    if len(x) < 3 or x[1] % groups:
        raise GraphError(f"channel_shuffle needs (N, C, ...) with C a multiple of {groups} groups, found {x}")
    return x


def _channel_split(x: Shape, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    groups = attrs["groups"]
    return (x[0], groups, x[1] // groups, math.prod(x[2:])), (0, 2, 1, 3)


channel_shuffle = move(
    "channel_shuffle",
    shape=_channel_shape,
    digits=_digits(_channel_split),
    reference=_reference(_channel_split),
    schema={"groups": extent()},
    reads=reads_same_place,
    cases=(
        ((2, 12, 3, 5), {"groups": 3}),
        ((1, 10, 4, 3), {"groups": 5}),
        ((2, 6, 5), {"groups": 2}),
    ),
)
