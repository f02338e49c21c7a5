"""max_pool2d and adaptive_max_pool2d on int8, int16 and float32. max_pool1d is imported as max_pool2d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Monotonic
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import ANY_DTYPE, Case, Op, Operand, pair
from q8ta_wgpu.kernels.lib import channels, share
from q8ta_wgpu.kernels.pool import pooling


def _max_pool(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0]
    lowest = -np.inf if x.dtype == np.float32 else np.iinfo(x.dtype).min
    for axis in (0, 1):
        size, step = x.shape[-2 + axis], call.attrs["dilation"][axis]
        windows = []
        for begin, end in pooling.spans(x.shape, call.attrs, axis):
            first = begin if begin >= 0 else begin % step
            taps = np.take(x, range(first, min(end, size), step), axis=axis - 2)
            windows.append(taps.max(axis - 2, initial=lowest))
        x = np.stack(windows, axis - 2)
    return x


def _max_pool_params(call: Call) -> Params:
    q = call.output.q
    lowest = np.int32(q.range[0]) if q else np.float32(-np.inf)
    return {
        **pooling.window_params(call),
        "dilation": (*call.attrs["dilation"], 0, 0),
        "lowest": lowest.view(np.uint32),
    }


def _infer_adaptive(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return pooling.adaptive_shape("adaptive_max_pool2d", types[0].shape, attrs["output_size"]), types[0].dtype


def _adaptive(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0]
    for axis in (-2, -1):
        windows = pooling.adaptive_spans(x.shape[axis], call.output.shape[axis])
        x = np.stack([np.take(x, range(*window), axis).max(axis) for window in windows], axis)
    return x


_ONE: dict[str, Any] = {"dilation": (1, 1)}

max_pool2d = Op(
    name="max_pool2d",
    operands=(Operand("x", dtypes=ANY_DTYPE),),
    infer=pooling.infer_pool,
    reference=_max_pool,
    schema={**pooling.SCHEMA, "dilation": pair()},
    kernels=(
        channels.kernel(
            "max_pool2d.channels",
            ("max_pool2d", "channels", "channel_lanes"),
            _max_pool_params,
            turns=pooling.turns,
        ),
        *share.kernels(
            Kernel("max_pool2d", ("max_pool2d", "extremes", "map"), (ANY,), ANY, params=_max_pool_params),
            pooling.extents,
        ),
    ),
    int8=Monotonic(),
    reads=pooling.reads,
    work=pooling.work,
    cases=(
        pooling.pool_case((1, 5, 7, 9), 3, 2, 1, **_ONE),
        pooling.pool_case((2, 8, 8, 8), 2, 2, **_ONE),
        pooling.pool_case((2, 3, 7, 5), 3, 2, ceil_mode=True, **_ONE),
        pooling.pool_case((1, 6, 9, 11), (2, 3), (3, 1), (1, 0, 0, 2), dilation=(3, 2)),
        pooling.pool_case((13, 6, 5), 3, 2, 1, ceil_mode=True, dilation=(2, 1)),
        pooling.pool_case((1, 1, 17, 1), (5, 1), **_ONE),
        pooling.pool_case((2, 30, 9, 7), 3, 2, 1, **_ONE),
        pooling.pool_case((2, 5, 3, 7), 6, 5, 1, ceil_mode=True, **_ONE),
    ),
)

adaptive_max_pool2d = Op(
    name="adaptive_max_pool2d",
    operands=(Operand("x", dtypes=ANY_DTYPE),),
    infer=_infer_adaptive,
    reference=_adaptive,
    schema={"output_size": pair()},
    kernels=share.kernels(
        Kernel(
            "adaptive_max_pool2d",
            ("extreme", "windows", "extremes", "adaptive_avg_pool2d", "map"),
            (ANY,),
            ANY,
            constants=lambda call: {"LARGEST": 1},
        ),
        pooling.adaptive_extents,
    ),
    int8=Monotonic(),
    work=lambda call: call.output.numel * math.prod(pooling.adaptive_extents(call)),
    cases=(
        Case(((2, 5, 7, 9),), {"output_size": (1, 1)}),
        Case(((1, 3, 13, 11),), {"output_size": (7, 4)}),
        Case(((6, 3, 5),), {"output_size": (5, 11)}),
    ),
)
