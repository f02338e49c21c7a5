"""max_pool2d, avg_pool2d and adaptive_avg_pool2d with their int8 forms; the 1-D ones go through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu import average
from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import FLOAT32, INT8X4, Array, Attrs, TensorType
from q8ta_wgpu.layout import ANY_INT8, Shape
from q8ta_wgpu.op import (
    ANY,
    EITHER,
    FLOAT,
    Attr,
    Builder,
    Call,
    Case,
    Import,
    Kernel,
    Lowered,
    Op,
    Operand,
    Params,
    Site,
    pair,
)

WINDOW: Mapping[str, Attr] = {
    "kernel": pair(),
    "stride": pair(),
    "padding": Attr("ints", low=0, length=4),  # top, left, bottom, right
    "ceil_mode": Attr("bool"),
}
MAX_POOL: Mapping[str, Attr] = {**WINDOW, "dilation": pair()}
AVG_POOL: Mapping[str, Attr] = {
    **WINDOW,
    "count_include_pad": Attr("bool"),
    "divisor_override": Attr("int", low=0),  # 0: none
}
ADAPTIVE: Mapping[str, Attr] = {"output_size": pair()}
MOST_MULTIPLIERS = 1 << 16
INT8_INPUT = Operand("x", dtypes=(INT8X4,))


def _image(op: str, shape: Shape) -> None:
    if len(shape) not in (3, 4):
        raise GraphError(f"{op} takes a (C, H, W) or (N, C, H, W) input, found shape {shape}")


def _spans(shape: Shape, attrs: Attrs, axis: int) -> list[tuple[int, int]]:
    """(begin, end) of every window along height (0) or width (1), the padding before the image being negative.

    Windows may reach past the padding; with ceil_mode none starts beyond the image and the padding before it.
    """
    size, kernel, stride = shape[-2 + axis], attrs["kernel"][axis], attrs["stride"][axis]
    before, after = attrs["padding"][axis], attrs["padding"][axis + 2]
    reach = attrs.get("dilation", (1, 1))[axis] * (kernel - 1) + 1
    free = size + before + after - reach
    if free < 0 or max(before, after) >= reach:
        raise GraphError(
            f"a pooling window that spans {reach} must fit the {size} elements padded by {before} and {after}, "
            "and be larger than the padding"
        )
    count = free // stride + 1
    if attrs["ceil_mode"]:
        count = -(-free // stride) + 1
        count -= (count - 1) * stride >= size + before
    return [(i * stride - before, i * stride - before + reach) for i in range(count)]


def _infer_pool(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    _image("pooling", shape)
    return (*shape[:-2], *(len(_spans(shape, attrs, axis)) for axis in (0, 1))), types[0].dtype


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int]:
    i = axis - 2
    stride, before = call.attrs["stride"][i], call.attrs["padding"][i]
    span = call.attrs.get("dilation", (1, 1))[i] * (call.attrs["kernel"][i] - 1)
    return first * stride - before, last * stride - before + span


def _work(call: Call) -> int:
    """Taps outside the image are skipped."""
    height, width = (min(k, d) for k, d in zip(call.attrs["kernel"], call.inputs[0].shape[-2:], strict=True))
    return call.output.numel * height * width


def _window_params(call: Call) -> dict[str, Any]:
    attrs = call.attrs
    return {
        "kernel": (*attrs["kernel"], 0, 0),
        "stride": (*attrs["stride"], 0, 0),
        "padding": tuple(attrs["padding"]),
    }


# --- max_pool2d ---


def _max_pool(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0]
    lowest = -128 if x.dtype == np.int8 else -np.inf
    for axis in (0, 1):
        size, step = x.shape[-2 + axis], call.attrs["dilation"][axis]
        windows = []
        for begin, end in _spans(x.shape, call.attrs, axis):
            first = begin if begin >= 0 else begin % step
            taps = np.take(x, range(first, min(end, size), step), axis=axis - 2)
            windows.append(taps.max(axis - 2, initial=lowest))
        x = np.stack(windows, axis - 2)
    return x


def _max_pool_params(call: Call) -> Params:
    lowest = np.int32(-128) if call.output.q else np.float32(-np.inf)
    return {
        **_window_params(call),
        "dilation": (*call.attrs["dilation"], 0, 0),
        "lowest": lowest.view(np.uint32),
    }


# --- avg_pool2d ---


def _fixed_divisor(attrs: Attrs) -> int:
    """The divisor if it is the same for every window, else 0: it counts what a window covers."""
    covers_all = not attrs["ceil_mode"] and (attrs["count_include_pad"] or not any(attrs["padding"]))
    height, width = attrs["kernel"]
    return int(attrs["divisor_override"] or (height * width if covers_all else 0))


def _window_sums(x: Array, rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]) -> Array:
    """Sums over every window, elements outside the image adding 0; in float64 or int64."""
    x = np.stack([x[..., max(a, 0) : b, :].sum(-2) for a, b in rows], -2)
    return np.stack([x[..., max(a, 0) : b].sum(-1) for a, b in columns], -1)


def _averaged(call: Call, x: Array) -> tuple[Array, Array]:
    """Sums over the windows of avg_pool2d, and the divisor of each."""
    shape, attrs = call.inputs[0].shape, call.attrs
    spans = [_spans(shape, attrs, axis) for axis in (0, 1)]
    if fixed := _fixed_divisor(attrs):
        return _window_sums(x, *spans), np.array(fixed)
    counts = []
    for axis, windows in enumerate(spans):
        before, after = (attrs["padding"][axis], attrs["padding"][axis + 2]) if attrs["count_include_pad"] else (0, 0)
        limit = shape[-2 + axis] + after
        counts.append(np.array([min(end, limit) - max(begin, -before) for begin, end in windows]))
    return _window_sums(x, *spans), np.outer(*counts)


def _avg_pool(call: Call, arrays: Sequence[Array]) -> Array:
    sums, divisors = _averaged(call, arrays[0].astype(np.float64))
    return np.asarray(sums / divisors).astype(np.float32)


def _avg_pool_int8(call: Call, arrays: Sequence[Array]) -> Array:
    sums, divisors = _averaged(call, arrays[0].astype(np.int64) - call.zeros[0])
    index = np.zeros((), np.int64) if _fixed_divisor(call.attrs) else divisors - 1
    return average.requantize(call, sums, arrays[1][index])


def _avg_pool_params(call: Call) -> Params:
    return {
        **_window_params(call),
        **average.params(call),
        "divisor": np.uint32(_fixed_divisor(call.attrs)),
        "counts_padding": np.uint32(call.attrs["count_include_pad"]),
    }


def _multipliers(attrs: Attrs) -> int:
    """How many multipliers the int8 form has: one for each divisor a window may have."""
    height, width = attrs["kernel"]
    return 1 if _fixed_divisor(attrs) else height * width


def _infer_avg_pool_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = _infer_pool(types, attrs)
    if types[1].shape != (_multipliers(attrs),):
        raise GraphError(f"this average has {_multipliers(attrs)} divisors, found multipliers {types[1].shape}")
    height, width = attrs["kernel"]
    if text := average.too_many(min(height, types[0].shape[-2]) * min(width, types[0].shape[-1])):
        raise GraphError(text)
    return shape, INT8X4


def _lower_avg_pool(site: Site) -> Lowered | str:
    attrs = site.call.attrs
    height, width = attrs["kernel"]
    ratio = average.ratio_of(site, height * width)
    if isinstance(ratio, str):
        return ratio
    if _multipliers(attrs) > MOST_MULTIPLIERS:
        return f"its windows of {height}x{width} have more than {MOST_MULTIPLIERS} divisors"
    divisors = np.array([fixed]) if (fixed := _fixed_divisor(attrs)) else np.arange(1, height * width + 1)
    table = average.multiplier(ratio, divisors)
    return Lowered("q8ta_avg_pool2d", (0, table), {**attrs, "lo": site.lo, "hi": site.hi})


# --- adaptive_avg_pool2d ---


def _infer_adaptive(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, size = types[0].shape, attrs["output_size"]
    _image("adaptive_avg_pool2d", shape)
    if any((s + 1) * (d + 1) > 2**31 for s, d in zip(size, shape[-2:], strict=True)):
        raise GraphError(f"adaptive_avg_pool2d from {shape[-2:]} to {size} is too large for 32-bit positions")
    return (*shape[:-2], *size), FLOAT32


def _infer_adaptive_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = _infer_adaptive(types, attrs)
    if text := average.too_many(_largest_window(types[0].shape, attrs)):
        raise GraphError(text)
    return shape, INT8X4


def _adaptive_spans(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _largest_window(shape: Shape, attrs: Attrs) -> int:
    (height, width), (oh, ow) = shape[-2:], attrs["output_size"]
    return int((height // oh + 2) * (width // ow + 2))


def _adaptive_work(call: Call) -> int:
    return call.output.numel * _largest_window(call.inputs[0].shape, call.attrs)


def _adaptive_sums(call: Call, x: Array) -> tuple[Array, Array]:
    rows, columns = (
        _adaptive_spans(size, out) for size, out in zip(x.shape[-2:], call.attrs["output_size"], strict=True)
    )
    counts = np.outer([b - a for a, b in rows], [b - a for a, b in columns])
    return _window_sums(x, rows, columns), counts


def _adaptive(call: Call, arrays: Sequence[Array]) -> Array:
    sums, counts = _adaptive_sums(call, arrays[0].astype(np.float64))
    return np.asarray(sums / counts).astype(np.float32)


def _adaptive_int8(call: Call, arrays: Sequence[Array]) -> Array:
    sums, counts = _adaptive_sums(call, arrays[0].astype(np.int64) - call.zeros[0])
    return average.requantize(call, sums, average.multiplier(call.attrs["ratio"], counts))


def _adaptive_params(call: Call) -> Params:
    """Window heights and widths are floor(input/output) and the next two: multipliers_i holds those of height i."""
    fields = dict(average.params(call))
    smallest = [d // o for d, o in zip(call.inputs[0].shape[-2:], call.attrs["output_size"], strict=True)]
    for i in range(3):
        counts = [max(smallest[0] + i, 1) * max(smallest[1] + j, 1) for j in range(4)]
        bits = average.multiplier(call.attrs["ratio"], counts).view(np.uint32)
        fields[f"multipliers_{i}"] = (int(bits[0]), int(bits[1]), int(bits[2]), int(bits[3]))
    return fields


def _lower_adaptive(site: Site) -> Lowered | str:
    attrs = site.call.attrs
    return average.lower(site, "q8ta_adaptive_avg_pool2d", attrs, _largest_window(site.call.inputs[0].shape, attrs))


# --- from aten ---


def _two(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[-1])


def _pool_attrs(args: Mapping[str, Any]) -> dict[str, Any]:
    """aten's kernel_size, stride (empty: the kernel's) and padding."""
    kernel, padding = _two(args["kernel_size"]), _two(args["padding"])
    return {
        "kernel": kernel,
        "stride": _two(args["stride"] or kernel),
        "padding": (*padding, *padding),
        "ceil_mode": args["ceil_mode"],
    }


def _import_max_pool(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("max_pool2d", (args["self"],), {**_pool_attrs(args), "dilation": _two(args["dilation"])})


def _import_avg_pool(b: Builder, args: Mapping[str, Any]) -> str:
    attrs = {
        **_pool_attrs(args),
        "count_include_pad": args["count_include_pad"],
        "divisor_override": args.get("divisor_override") or 0,
    }
    return b.emit("avg_pool2d", (args["self"],), attrs)


def _import_adaptive(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("adaptive_avg_pool2d", (args["self"],), {"output_size": tuple(args["output_size"])})


_HEIGHT_ONE = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}


def _one_dimensional(rule: Import) -> Import:
    """The same rule for (..., length) inputs, seen as images of height 1."""

    def wide(b: Builder, args: Mapping[str, Any]) -> str:
        shape = b.type(args["self"]).shape
        if not 2 <= len(shape) <= 3:
            raise b.refuse(f"1-D pooling takes a 2-D or 3-D input, found shape {shape}")
        keep = (0,) * (len(shape) - 1)
        lists = {key: [one, *args[key]] for key, one in _HEIGHT_ONE.items() if args.get(key)}
        image = b.emit("view", (args["self"],), {"shape": (*keep, 1, -1)})
        y = rule(b, {**args, **lists, "self": image})
        assert isinstance(y, str)
        return b.emit("view", (y,), {"shape": (*keep, -1)})

    return wide


# --- the operators ---


def _case(shape: Shape, kernel: Any, stride: Any = 1, padding: Any = 0, values: str = "random", **more: Any) -> Case:
    def two(value: Any) -> Any:
        return value if isinstance(value, tuple) else (value, value)

    four = padding if isinstance(padding, tuple) else (padding,) * 4
    attrs = {"kernel": two(kernel), "stride": two(stride), "padding": four, "ceil_mode": False, **more}
    return Case((shape,), attrs, values)


_ONE = {"dilation": (1, 1)}
_COUNT_ALL = {"count_include_pad": True, "divisor_override": 0}
_COUNT_IMAGE = {"count_include_pad": False, "divisor_override": 0}

max_pool2d = Op(
    name="max_pool2d",
    operands=(Operand("x", dtypes=EITHER),),
    infer=_infer_pool,
    reference=_max_pool,
    schema=MAX_POOL,
    kernels=(Kernel("max_pool2d", ("max_pool2d", "map"), (ANY,), ANY, params=_max_pool_params),),
    aten={
        "aten.max_pool2d.default": _import_max_pool,
        "aten.max_pool2d_with_indices.default": lambda b, args: [_import_max_pool(b, args)],
        "aten.max_pool1d.default": _one_dimensional(_import_max_pool),
    },
    monotonic=True,
    annotate="shared",
    reads=_reads,
    work=_work,
    cases=(
        _case((1, 5, 7, 9), 3, 2, 1, **_ONE),
        _case((2, 8, 8, 8), 2, 2, **_ONE),
        _case((2, 3, 7, 5), 3, 2, ceil_mode=True, **_ONE),
        _case((1, 6, 9, 11), (2, 3), (3, 1), (1, 0, 0, 2), dilation=(3, 2)),
        _case((13, 6, 5), 3, 2, 1, ceil_mode=True, dilation=(2, 1)),
        _case((1, 1, 17, 1), (5, 1), **_ONE),
    ),
)

avg_pool2d = Op(
    name="avg_pool2d",
    operands=(Operand("x"),),
    infer=_infer_pool,
    reference=_avg_pool,
    schema=AVG_POOL,
    kernels=(
        Kernel(
            "avg_pool2d",
            ("avg_pool2d", "average_float32", "window", "map"),
            (FLOAT,),
            FLOAT,
            params=_avg_pool_params,
        ),
    ),
    aten={
        "aten.avg_pool2d.default": _import_avg_pool,
        "aten.avg_pool1d.default": _one_dimensional(_import_avg_pool),
    },
    int8=_lower_avg_pool,
    annotate="elementwise",
    reads=_reads,
    work=_work,
    cases=(
        _case((1, 5, 7, 9), 3, 2, 1, **_COUNT_ALL),
        _case((2, 8, 8, 8), 2, 2, values="ties", **_COUNT_ALL),
        _case((2, 3, 7, 5), 3, 2, 1, **_COUNT_IMAGE),
        _case((2, 3, 8, 6), 3, 2, 1, ceil_mode=True, **_COUNT_ALL),
        _case((1, 7, 8, 6), (3, 2), (2, 3), (1, 0, 1, 1), ceil_mode=True, **_COUNT_IMAGE),
        _case((1, 6, 9, 11), (2, 5), (3, 1), (1, 2, 0, 4), **_COUNT_IMAGE),
        _case((13, 6, 5), 3, 1, 1, count_include_pad=True, divisor_override=7),
        _case((1, 9, 5, 4), (5, 4), values="saturate", **_COUNT_ALL),
        _case((2, 4, 1, 1), 3, 1, 1, **_COUNT_IMAGE),
    ),
    tolerance=1e-5,
)

q8ta_avg_pool2d = Op(
    name="q8ta_avg_pool2d",
    operands=(INT8_INPUT, Operand("multiplier", constant=True, valid=average.valid_multiplier)),
    infer=_infer_avg_pool_int8,
    reference=_avg_pool_int8,
    schema={**AVG_POOL, **average.RANGE},
    reads=_reads,
    work=_work,
    kernels=(
        Kernel(
            "q8ta_avg_pool2d",
            ("q8ta_avg_pool2d", "avg_pool2d", "average_int8x4", "window", "map"),
            (ANY_INT8,),
            ANY_INT8,
            params=_avg_pool_params,
        ),
    ),
)

adaptive_avg_pool2d = Op(
    name="adaptive_avg_pool2d",
    operands=(Operand("x"),),
    infer=_infer_adaptive,
    reference=_adaptive,
    schema=ADAPTIVE,
    kernels=(
        Kernel("adaptive_avg_pool2d", ("adaptive_avg_pool2d", "average_float32", "window", "map"), (FLOAT,), FLOAT),
    ),
    aten={
        "aten.adaptive_avg_pool2d.default": _import_adaptive,
        "aten._adaptive_avg_pool2d.default": _import_adaptive,
        "aten.adaptive_avg_pool1d.default": _one_dimensional(_import_adaptive),
    },
    int8=_lower_adaptive,
    annotate="elementwise",
    work=_adaptive_work,
    cases=(
        Case(((2, 5, 7, 9),), {"output_size": (1, 1)}),
        Case(((1, 8, 7, 7),), {"output_size": (5, 3)}),
        Case(((1, 3, 13, 11),), {"output_size": (7, 4)}),
        Case(((2, 3, 3, 5),), {"output_size": (5, 11)}),
        Case(((7, 6, 4),), {"output_size": (3, 2)}, "ties"),
        Case(((1, 4, 16, 16),), {"output_size": (2, 6)}, "saturate"),
    ),
    tolerance=1e-5,
)

q8ta_adaptive_avg_pool2d = Op(
    name="q8ta_adaptive_avg_pool2d",
    operands=(INT8_INPUT,),
    infer=_infer_adaptive_int8,
    reference=_adaptive_int8,
    schema={**ADAPTIVE, **average.RATIO},
    work=_adaptive_work,
    kernels=(
        Kernel(
            "q8ta_adaptive_avg_pool2d",
            ("q8ta_adaptive_avg_pool2d", "adaptive_avg_pool2d", "average_int8x4", "window", "map"),
            (ANY_INT8,),
            ANY_INT8,
            params=_adaptive_params,
        ),
    ),
)
