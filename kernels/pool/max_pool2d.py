"""max_pool2d on int8 and float32 alike; max_pool1d goes through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.int8 import Monotonic
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.op import EITHER, Builder, Op, Operand, pair
from q8ta_wgpu.kernels.lib import channels, share
from q8ta_wgpu.kernels.pool import pooling


def _max_pool(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0]
    lowest = -128 if x.dtype == np.int8 else -np.inf
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
    lowest = np.int32(-128) if call.output.q else np.float32(-np.inf)
    return {
        **pooling.window_params(call),
        "dilation": (*call.attrs["dilation"], 0, 0),
        "lowest": lowest.view(np.uint32),
    }


def _import_max_pool(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit(
        "max_pool2d", (args["self"],), {**pooling.pool_attrs(args), "dilation": pooling.two(args["dilation"])}
    )


def _import_adaptive(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """Equal windows; torch's second result, the places of the largest, is not supported."""
    extents, sizes = b.type(args["self"]).shape[-2:], pooling.two(args["output_size"])
    if any(extent % size for extent, size in zip(extents, sizes, strict=True)):
        raise b.refuse(f"adaptive max pooling of {extents} to {sizes} has windows of several sizes")
    kernel = tuple(extent // size for extent, size in zip(extents, sizes, strict=True))
    windows = {"kernel_size": kernel, "stride": kernel, "padding": (0, 0), "ceil_mode": False, "dilation": (1, 1)}
    return [_import_max_pool(b, {**windows, "self": args["self"]})]


_ONE: dict[str, Any] = {"dilation": (1, 1)}

max_pool2d = Op(
    name="max_pool2d",
    operands=(Operand("x", dtypes=EITHER),),
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
    aten={
        "aten.max_pool2d.default": _import_max_pool,
        "aten.max_pool2d_with_indices.default": lambda b, args: [_import_max_pool(b, args)],
        "aten.adaptive_max_pool2d.default": _import_adaptive,
        "aten.max_pool3d.default": pooling.one_deep(_import_max_pool),
        "aten.max_pool1d.default": pooling.one_dimensional(_import_max_pool),
    },
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
    ),
)
