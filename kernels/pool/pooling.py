"""Code that pooling operators share: windows along height and width, their sums, and importers of 1-D and 3-D
pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Case, Import, pair
from q8ta_wgpu.kernels.lib import onnx_calls, share
from q8ta_wgpu.kernels.lib.numbers import both

SCHEMA: Mapping[str, Attr] = {
    "kernel": pair(),
    "stride": pair(),
    "padding": Attr("ints", low=0, length=4),  # top, left, bottom, right
    "ceil_mode": Attr("bool"),
}


def require_image(op: str, shape: Shape) -> None:
    """Raises GraphError unless `shape` is one image or a batch of them."""
    if len(shape) not in (3, 4):
        raise GraphError(f"{op} takes a (C, H, W) or (N, C, H, W) input, found shape {shape}")


def reach(attrs: Attrs, axis: int) -> int:
    """The number of elements from the first to the last tap of a window, along height (0) or width (1)."""
    return int(attrs.get("dilation", (1, 1))[axis] * (attrs["kernel"][axis] - 1) + 1)


def _windows(shape: Shape, attrs: Attrs, axis: int) -> int:
    """The number of windows along height (0) or width (1). With ceil_mode the last window may extend past the padding
    by less than a stride, but it must start inside the image or the padding before it."""
    size, stride, span = shape[-2 + axis], attrs["stride"][axis], reach(attrs, axis)
    before, after = attrs["padding"][axis], attrs["padding"][axis + 2]
    free = size + before + after - span
    if free <= (-stride if attrs["ceil_mode"] else -1) or max(before, after) >= span:
        raise GraphError(
            f"a pooling window that spans {span} must fit the {size} elements padded by {before} and {after}, "
            "and be larger than the padding"
        )
    if not attrs["ceil_mode"]:
        return int(free // stride + 1)
    count = -(-free // stride) + 1
    return int(count - ((count - 1) * stride >= size + before))


def spans(shape: Shape, attrs: Attrs, axis: int) -> list[tuple[int, int]]:
    """(begin, end) of every window along height (0) or width (1). The image starts at 0. Windows may extend past the
    image, and with ceil_mode past the padding."""
    starts = (i * attrs["stride"][axis] - attrs["padding"][axis] for i in range(_windows(shape, attrs, axis)))
    return [(start, start + reach(attrs, axis)) for start in starts]


def infer_pool(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of pooling with windows of a given size. The dtype stays the same. Raises GraphError where a
    window does not fit."""
    shape = types[0].shape
    require_image("pooling", shape)
    return (*shape[:-2], *(_windows(shape, attrs, axis) for axis in (0, 1))), types[0].dtype


def reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int]:
    """`Op.reads` of pooling: the range that windows first..last cover."""
    i = axis - 2
    stride, before = call.attrs["stride"][i], call.attrs["padding"][i]
    return first * stride - before, last * stride - before + reach(call.attrs, i) - 1


def extents(call: Call) -> share.Extents:
    """The turns of the loops over a window. Taps outside of the image take no turn."""
    height, width = (min(k, d) for k, d in zip(call.attrs["kernel"], call.inputs[0].shape[-2:], strict=True))
    return height, width


def turns(call: Call) -> int:
    """`Kernel.turns` of a thread that computes one window."""
    return share.nested(extents(call))


def work(call: Call) -> int:
    """`Op.work` of pooling."""
    return int(call.output.numel * math.prod(extents(call)))


def window_params(call: Call) -> dict[str, Any]:
    """Uniform fields of a window; `padding` is top, left, bottom, right."""
    attrs = call.attrs
    return {
        "kernel": (*attrs["kernel"], 0, 0),
        "stride": (*attrs["stride"], 0, 0),
        "padding": tuple(attrs["padding"]),
    }


def window_sums(x: Array, rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]) -> Array:
    """Sums of `x` over every window, given by the (begin, end) of its rows and columns. Elements outside of the image
    count as 0."""
    x = np.stack([x[..., max(a, 0) : b, :].sum(-2) for a, b in rows], -2)
    return np.stack([x[..., max(a, 0) : b].sum(-1) for a, b in columns], -1)


def adaptive_shape(op: str, shape: Shape, size: Shape) -> Shape:
    """The shape rule of pooling to the output size `size`. Raises GraphError where indices would pass 32 bits."""
    require_image(op, shape)
    if any((s + 1) * (d + 1) > 2**31 for s, d in zip(size, shape[-2:], strict=True)):
        raise GraphError(f"{op} from {shape[-2:]} to {size} is too large for 32-bit positions")
    return (*shape[:-2], *size)


def adaptive_spans(size: int, out: int) -> list[tuple[int, int]]:
    """(begin, end) of every window if `size` elements are pooled to `out`."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def adaptive_window(shape: Shape, attrs: Attrs) -> tuple[int, int]:
    """(height, width) of the largest window of pooling to an output size."""
    (height, width), (oh, ow) = shape[-2:], attrs["output_size"]
    return height // oh + 2, width // ow + 2


def adaptive_extents(call: Call) -> share.Extents:
    """The turns of the loops over a window of pooling to an output size."""
    return adaptive_window(call.inputs[0].shape, call.attrs)


def two(values: Sequence[int]) -> tuple[int, int]:
    """(height, width) from aten's one or two numbers."""
    return (values[0], values[-1])


def pool_attrs(args: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of SCHEMA from aten's arguments. An empty stride is that of the kernel's size."""
    kernel, padding = two(args["kernel_size"]), two(args["padding"])
    return {
        "kernel": kernel,
        "stride": two(args["stride"] or kernel),
        "padding": (*padding, *padding),
        "ceil_mode": args["ceil_mode"],
    }


_HEIGHT_ONE = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}


def onnx_rule(name: str, **arguments: Any) -> Import:
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


def one_dimensional(rule: Import) -> Import:
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


def three_dimensional(rule: Import, joint: Callable[[Mapping[str, Any]], bool] = lambda args: False) -> Import:
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


def volumes_to_size(rule: Callable[[Builder, Mapping[str, Any]], list[str]]) -> Import:
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


def pool_case(
    shape: Shape, kernel: Any, stride: Any = 1, padding: Any = 0, values: str = "random", **more: Any
) -> Case:
    """A test case. A single number is for both axes, or for all four sides."""
    attrs = {"kernel": both(kernel), "stride": both(stride), "padding": both(padding, 4), "ceil_mode": False, **more}
    return Case((shape,), attrs, values)
