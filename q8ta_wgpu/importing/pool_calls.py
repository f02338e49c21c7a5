"""Importer functions of pooling, of sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.op import FLOAT_MAX

_HEIGHT_ONE = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}


def two(values: Sequence[int]) -> tuple[int, int]:
    """(height, width) from aten's one or two numbers."""
    return (values[0], values[-1])


def pool_attrs(args: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a pool from aten's arguments. An empty stride is that of the kernel's size."""
    kernel, padding = two(args["kernel_size"]), two(args["padding"])
    return {
        "kernel": kernel,
        "stride": two(args["stride"] or kernel),
        "padding": (*padding, *padding),
        "ceil_mode": args["ceil_mode"],
    }


def _onnx_rule(name: str, **arguments: Any) -> Import:
    """The importer of ONNX's pooling of one to three dimensions. Padding that aten does not have becomes a Pad before
    it.

    Args:
        name: aten's name without dimensions: `max_pool` or `avg_pool`.
        arguments: `fill`, the value to pad with.
    """
    fill = arguments.pop("fill")

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x = args["inputs"][0]
        size, kernel = b.type(x).shape, list(args["kernel_shape"])
        rank = len(kernel)
        if not 1 <= rank <= 3 or len(size) != rank + 2:
            raise b.refuse(f"it takes images of one to three dimensions, found {size} and a kernel {kernel}")
        found = onnx_calls.window(b, args, kernel, size[2:])
        pads, dilation, ceil = found["pads"], found["dilation"], bool(args.get("ceil_mode"))
        counts = bool(args.get("count_include_pad"))
        if rank == 2 and min(pads) >= 0 and name == "max_pool":
            attrs = {"kernel": kernel, "stride": found["stride"], "padding": pads, "ceil_mode": ceil}
            return b.emit("max_pool2d", (x,), {**attrs, "dilation": dilation})
        if rank == 2 and min(pads) >= 0 and dilation == [1, 1]:
            attrs = {"kernel": kernel, "stride": found["stride"], "padding": pads, "ceil_mode": ceil}
            return b.emit("avg_pool2d", (x,), {**attrs, "count_include_pad": counts, "divisor_override": 0})
        if name == "avg_pool" and any(d != 1 for d in dilation):
            raise b.refuse(f"averages of dilated windows are not supported, found dilations {dilation}")
        if pads[:rank] != pads[rank:]:
            if name == "avg_pool" and not counts:
                raise b.refuse(f"averages of windows padded unevenly are supported for images alone, found pads {pads}")
            value = b.constant(np.asarray(fill, np.float32))
            x = b.onnx("Pad", (x, None, value), pads=[0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode="constant")
            pads = [0] * 2 * rank
        window = {"kernel_size": kernel, "stride": found["stride"], "padding": pads[:rank], "ceil_mode": ceil}
        more = {"dilation": dilation} if name == "max_pool" else {"count_include_pad": counts}
        return str(b.aten(f"aten.{name}{rank}d.default", {"self": x, **window, **more}))

    return rule


def _one_dimensional(rule: Import) -> Import:
    """The importer of 1-D pooling, from `rule`, the importer of 2-D pooling: images have height 1. Refuses inputs of
    other than two or three dimensions."""

    def imported(b: Builder, args: Mapping[str, Any]) -> str:
        shape = b.type(args["self"]).shape
        if not 2 <= len(shape) <= 3:
            raise b.refuse(f"1-D pooling takes a 2-D or 3-D input, found shape {shape}")
        lead = (0,) * (len(shape) - 1)
        lists = {key: [one, *args[key]] for key, one in _HEIGHT_ONE.items() if args.get(key)}
        image = b.emit("view", (args["self"],), {"shape": (*lead, 1, -1)})
        y = rule(b, {**args, **lists, "self": image})
        assert isinstance(y, str)
        return b.emit("view", (y,), {"shape": (*lead, -1)})

    return imported


def _three_dimensional(rule: Import, joint: Callable[[Mapping[str, Any]], bool] = lambda args: False) -> Import:
    """The importer of 3-D pooling, from `rule`, the importer of 2-D pooling. It pools along height and width with the
    slices along depth as channels, then along depth. Refuses calls for which `joint` says that the two do not
    separate."""

    def imported(b: Builder, args: Mapping[str, Any]) -> str:
        lists = {key: list(args[key]) for key in _HEIGHT_ONE if isinstance(args.get(key), (list, tuple)) and args[key]}
        lists = {key: numbers * 3 if len(numbers) == 1 else numbers for key, numbers in lists.items()}
        along = [any(numbers[i] != _HEIGHT_ONE[key] for key, numbers in lists.items()) for i in range(3)]
        if along[0] and any(along[1:]) and joint(args):
            raise b.refuse(
                "it has a divisor_override: 3-D pooling with one is supported along the depth only, or along height "
                "and width only"
            )
        y, lead = str(args["self"]), [0] * (len(b.type(args["self"]).shape) - 4)
        if any(along[1:]) or not along[0]:
            channels, depth = b.type(y).shape[-4:-2]
            images = b.emit("view", (y,), {"shape": (*lead, channels * depth, -2, -2)})
            y = str(rule(b, {**args, **{key: numbers[1:] for key, numbers in lists.items()}, "self": images}))
            y = b.emit("view", (y,), {"shape": (*lead, channels, depth, -2, -2)})
        if along[0]:
            channels, depth, height, width = b.type(y).shape[-4:]
            columns = b.emit("view", (y,), {"shape": (*lead, channels, depth, height * width)})
            rest = {key: [numbers[0], _HEIGHT_ONE[key]] for key, numbers in lists.items()}
            y = str(rule(b, {**args, **rest, "self": columns}))
            y = b.emit("view", (y,), {"shape": (*lead, channels, -1, height, width)})
        return y

    return imported


def _volumes_to_size(rule: Callable[[Builder, Mapping[str, Any]], list[str]]) -> Import:
    """The importer of 3-D pooling to an output size, from `rule`, the importer of 2-D pooling to a size. It pools along
    height and width first, then along depth."""

    def imported(b: Builder, args: Mapping[str, Any]) -> list[str]:
        x, (size, rows, columns) = args["self"], args["output_size"]
        lead, (channels, depth) = [0] * (len(b.type(x).shape) - 4), b.type(x).shape[-4:-2]
        images = b.emit("view", (x,), {"shape": (*lead, channels * depth, -2, -2)})
        (y,) = rule(b, {"self": images, "output_size": (rows, columns)})
        y = b.emit("view", (y,), {"shape": (*lead, channels, depth, rows * columns)})
        (y,) = rule(b, {"self": y, "output_size": (size, rows * columns)})
        return [b.emit("view", (y,), {"shape": (*lead, channels, size, rows, columns)})]

    return imported


def _import_adaptive_average(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("adaptive_avg_pool2d", (args["self"],), {"output_size": tuple(args["output_size"])})


def _onnx_global_average(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's GlobalAveragePool: the average of each channel."""
    x = args["inputs"][0]
    rank = len(b.type(x).shape)
    if rank == 4:
        return b.emit("adaptive_avg_pool2d", (x,), {"output_size": (1, 1)})
    return b.aten("aten.mean.dim", {"self": x, "dim": list(range(2, rank)), "keepdim": True})


def _import_avg_pool(b: Builder, args: Mapping[str, Any]) -> str:
    attrs = {
        **pool_attrs(args),
        "count_include_pad": args["count_include_pad"],
        "divisor_override": args.get("divisor_override") or 0,
    }
    return b.emit("avg_pool2d", (args["self"],), attrs)


def _has_joint_divisor(args: Mapping[str, Any]) -> bool:
    """Whether the divisor of a window is not a product of one number for each dimension."""
    return bool(args.get("divisor_override"))


def _import_max_pool(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("max_pool2d", (args["self"],), {**pool_attrs(args), "dilation": two(args["dilation"])})


def _import_with_indices(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """max_pool2d_with_indices. Its second result, the index of each maximum in its image, is computed only if the
    argument `indices` says that it is read: windows are unfolded, and argmax gives the index within a window. Padding
    repeats the element at the edge, so that this element still comes first in the window. Indices of dilated windows,
    and with ceil_mode, are not supported."""
    values, x, shape = _import_max_pool(b, args), str(args["self"]), b.type(args["self"]).shape
    attrs = {**pool_attrs(args), "dilation": two(args["dilation"])}
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


def _import_adaptive(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """adaptive_max_pool2d. Its second result in torch, the indices of the maxima, is not supported."""
    return [b.emit("adaptive_max_pool2d", (args["self"],), {"output_size": two(args["output_size"])})]


ATEN: Rules = {
    "adaptive_avg_pool2d": {
        "aten.adaptive_avg_pool2d.default": _import_adaptive_average,
        "aten._adaptive_avg_pool2d.default": _import_adaptive_average,
        "aten.adaptive_avg_pool1d.default": _one_dimensional(_import_adaptive_average),
    },
    "avg_pool2d": {
        "aten.avg_pool2d.default": _import_avg_pool,
        "aten.avg_pool3d.default": _three_dimensional(_import_avg_pool, _has_joint_divisor),
        "aten.avg_pool1d.default": _one_dimensional(_import_avg_pool),
    },
    "max_pool2d": {
        "aten.max_pool2d.default": _import_max_pool,
        "aten.max_pool2d_with_indices.default": _import_with_indices,
        "aten.max_unpool2d.default": _import_unpool,
        "aten.max_pool3d.default": _three_dimensional(_import_max_pool),
        "aten.max_pool1d.default": _one_dimensional(_import_max_pool),
    },
    "adaptive_max_pool2d": {
        "aten.adaptive_max_pool2d.default": _import_adaptive,
        "aten.adaptive_max_pool3d.default": _volumes_to_size(_import_adaptive),
    },
}
ONNX: Rules = {
    "adaptive_avg_pool2d": {"GlobalAveragePool": _onnx_global_average},
    "avg_pool2d": {"AveragePool": _onnx_rule("avg_pool", fill=0.0)},
    "max_pool2d": {"MaxPool": _onnx_rule("max_pool", fill=-FLOAT_MAX)},
}
