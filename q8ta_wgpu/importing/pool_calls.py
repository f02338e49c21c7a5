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
        if name == "avg_pool" and any(d != 1 for d in dilation):
            raise b.refuse(f"averages of dilated windows are not supported, found dilations {dilation}")
        counts = bool(args.get("count_include_pad"))
        if min(pads) < 0 or (rank == 3 and pads[:rank] != pads[rank:]):
            if name == "avg_pool" and not counts:
                raise b.refuse(f"averages of windows padded so are not supported, found pads {pads}")
            value = b.constant(np.asarray(fill, np.float32))
            x = b.onnx("Pad", (x, None, value), pads=[0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode="constant")
            pads = [0] * 2 * rank
        more = {"dilation": dilation} if name == "max_pool" else {"count_include_pad": counts}
        if rank == 3:
            window = {"kernel_size": kernel, "stride": found["stride"], "padding": pads[:rank], "ceil_mode": ceil}
            return str(b.aten(f"aten.{name}3d.default", {"self": x, **window, **more}))
        lists = {"kernel": kernel, "stride": found["stride"], **more}
        if rank == 1:  # of height 1
            x = b.emit("view", (x,), {"shape": (0, 0, 1, -1)})
            lists = {key: [1, *n] if isinstance(n, list) else n for key, n in lists.items()}
            pads = [0, pads[0], 0, pads[1]]
        attrs = {**lists, "padding": pads, "ceil_mode": ceil}
        y = b.emit(f"{name}2d", (x,), attrs if name == "max_pool" else {**attrs, "divisor_override": 0})
        return b.emit("view", (y,), {"shape": (0, 0, -1)}) if rank == 1 else y

    return rule


def _three_dimensional(rule: Import) -> Import:
    """The importer of 3-D pooling, from `rule`, the importer of 2-D pooling. It pools along height and width with the
    slices along depth as channels, then along depth."""

    def imported(b: Builder, args: Mapping[str, Any]) -> str:
        lists = {key: list(args[key]) for key in _HEIGHT_ONE if isinstance(args.get(key), (list, tuple)) and args[key]}
        lists = {key: numbers * 3 if len(numbers) == 1 else numbers for key, numbers in lists.items()}
        along = [any(numbers[i] != _HEIGHT_ONE[key] for key, numbers in lists.items()) for i in range(3)]
        if args.get("divisor_override"):
            raise b.refuse("it has a divisor_override: 3-D pooling takes the size of its windows as divisor")
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


def _import_max_pool(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("max_pool2d", (args["self"],), {**pool_attrs(args), "dilation": two(args["dilation"])})


def _first(rule: Callable[[Builder, Mapping[str, Any]], str]) -> Import:
    """The importer of pooling whose second result in torch, the indices of the maxima, is not supported."""
    return lambda b, args: [rule(b, args)]


def _import_adaptive(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("adaptive_max_pool2d", (args["self"],), {"output_size": two(args["output_size"])})


ATEN: Rules = {
    "adaptive_avg_pool2d": {
        "aten.adaptive_avg_pool2d.default": _import_adaptive_average,
        "aten._adaptive_avg_pool2d.default": _import_adaptive_average,
    },
    "avg_pool2d": {
        "aten.avg_pool2d.default": _import_avg_pool,
        "aten.avg_pool3d.default": _three_dimensional(_import_avg_pool),
    },
    "max_pool2d": {
        "aten.max_pool2d.default": _import_max_pool,
        "aten.max_pool2d_with_indices.default": _first(_import_max_pool),
        "aten.max_pool3d.default": _three_dimensional(_import_max_pool),
    },
    "adaptive_max_pool2d": {"aten.adaptive_max_pool2d.default": _first(_import_adaptive)},
}
ONNX: Rules = {
    "adaptive_avg_pool2d": {"GlobalAveragePool": _onnx_global_average},
    "avg_pool2d": {"AveragePool": _onnx_rule("avg_pool", fill=0.0)},
    "max_pool2d": {"MaxPool": _onnx_rule("max_pool", fill=-FLOAT_MAX)},
}
