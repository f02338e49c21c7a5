"""max_pool2d and adaptive_max_pool2d on int8, int16 and float32. max_pool1d is imported as max_pool2d."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Monotonic
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import ANY_DTYPE, FLOAT_MAX, Builder, Case, Op, Operand, pair
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


def _import_max_pool(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit(
        "max_pool2d", (args["self"],), {**pooling.pool_attrs(args), "dilation": pooling.two(args["dilation"])}
    )


def _import_with_indices(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """max_pool2d_with_indices. Its second result, the index of each maximum in its image, is computed only if the
    argument `indices` says that it is read: windows are unfolded, and argmax gives the index within a window. Padding
    repeats the element at the edge, so that this element still comes first in the window. Indices of dilated windows,
    and with ceil_mode, are not supported."""
    values, x, shape = _import_max_pool(b, args), str(args["self"]), b.type(args["self"]).shape
    attrs = {**pooling.pool_attrs(args), "dilation": pooling.two(args["dilation"])}
    if not args.get("indices") or attrs["ceil_mode"] or attrs["dilation"] != (1, 1):
        return [values]
    padding, width = attrs["padding"], shape[-1]
    if any(padding):
        sides = [padding[1], padding[3], padding[0], padding[2]]
        x = b.aten("aten.replication_pad2d.default", {"self": x, "padding": sides})
    for dim in (-2, -1):
        sizes = {"size": attrs["kernel"][dim], "step": attrs["stride"][dim]}
        x = b.aten("aten.unfold.default", {"self": x, "dimension": len(shape) + dim, **sizes})
    x = b.emit("view", (x,), {"shape": (*b.type(values).shape, -1)})
    taps = b.aten("aten.argmax.default", {"self": x, "dim": len(shape), "keepdim": False})
    rows = b.emit("floor_divide", (taps,), {"divisor": float(attrs["kernel"][1])})
    columns = b.emit("add", (taps, rows), {"alpha": -float(attrs["kernel"][1])})
    found = []
    for axis, steps in enumerate((rows, columns)):
        first = np.arange(b.type(values).shape[axis - 2]) * attrs["stride"][axis] - padding[axis]
        starts = b.constant(first.astype(np.float32).reshape((-1, 1) if axis == 0 else (-1,)), "starts")
        at = b.aten("aten.add.Tensor", {"self": steps, "other": starts, "alpha": 1})
        found.append(b.emit("clamp", (at,), {"min": 0.0, "max": float(shape[axis - 2] - 1)}))
    return [values, b.emit("add", (found[1], found[0]), {"alpha": float(width)})]


def _import_unpool(b: Builder, args: Mapping[str, Any]) -> str:
    """max_unpool2d, whose windows `kernel` do not overlap. Each value is repeated over its window, and all are set to 0
    except the one whose position equals the value's index."""
    height, width = b.type(args["self"]).shape[-2:]
    kernel, size = args["kernel"], tuple(args["output_size"])
    covered = (height * kernel[0], width * kernel[1])
    if any(c > s for c, s in zip(covered, size, strict=True)):
        raise b.refuse(f"its windows cover {covered}, more than its result's {size}")
    repeated = [
        b.aten("aten.upsample_nearest2d.vec", {"input": x, "output_size": list(covered), "scale_factors": None})
        for x in (args["self"], args["indices"])
    ]
    positions = np.arange(covered[0])[:, None] * size[1] + np.arange(covered[1])
    other = b.constant(positions.astype(np.float32), "positions")
    equal = b.aten("aten.eq.Tensor", {"self": repeated[1], "other": other})
    found: str = b.aten("aten.where.self", {"condition": b.truth(equal), "self": repeated[0], "other": 0.0})
    if size != covered:
        pad = [0, size[1] - covered[1], 0, size[0] - covered[0]]
        found = b.aten("aten.constant_pad_nd.default", {"self": found, "pad": pad, "value": 0.0})
    return found


def _infer_adaptive(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return pooling.adaptive_shape("adaptive_max_pool2d", types[0].shape, attrs["output_size"]), types[0].dtype


def _adaptive(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0]
    for axis in (-2, -1):
        windows = pooling.adaptive_spans(x.shape[axis], call.output.shape[axis])
        x = np.stack([np.take(x, range(*window), axis).max(axis) for window in windows], axis)
    return x


def _import_adaptive(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """adaptive_max_pool2d. Its second result in torch, the indices of the maxima, is not supported."""
    return [b.emit("adaptive_max_pool2d", (args["self"],), {"output_size": pooling.two(args["output_size"])})]


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
    aten={
        "aten.max_pool2d.default": _import_max_pool,
        "aten.max_pool2d_with_indices.default": _import_with_indices,
        "aten.max_unpool2d.default": _import_unpool,
        "aten.max_pool3d.default": pooling.three_dimensional(_import_max_pool),
        "aten.max_pool1d.default": pooling.one_dimensional(_import_max_pool),
    },
    onnx={"MaxPool": pooling.onnx_rule("max_pool", fill=-FLOAT_MAX)},
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
    aten={
        "aten.adaptive_max_pool2d.default": _import_adaptive,
        "aten.adaptive_max_pool3d.default": pooling.volumes_to_size(_import_adaptive),
    },
    int8=Monotonic(),
    work=lambda call: call.output.numel * math.prod(pooling.adaptive_extents(call)),
    cases=(
        Case(((2, 5, 7, 9),), {"output_size": (1, 1)}),
        Case(((1, 3, 13, 11),), {"output_size": (7, 4)}),
        Case(((6, 3, 5),), {"output_size": (5, 11)}),
    ),
)
