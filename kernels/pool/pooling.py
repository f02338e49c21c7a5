"""Code that pooling operators share: windows along height and width, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Case, pair
from q8ta_wgpu.kernels.lib import share
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


def pool_case(
    shape: Shape, kernel: Any, stride: Any = 1, padding: Any = 0, values: str = "random", **more: Any
) -> Case:
    """A test case. A single number is for both axes, or for all four sides."""
    attrs = {"kernel": both(kernel), "stride": both(stride), "padding": both(padding, 4), "ceil_mode": False, **more}
    return Case((shape,), attrs, values)
