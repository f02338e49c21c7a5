"""avg_pool2d and its int8 form. avg_pool1d is imported as it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Op, Operand
from q8ta_wgpu.kernels.lib import valid
from q8ta_wgpu.kernels.pool import average, pooling

SCHEMA: Mapping[str, Attr] = {
    **pooling.SCHEMA,
    "count_include_pad": Attr("bool"),
    "divisor_override": Attr("int", low=0),  # 0: none
}
MOST_MULTIPLIERS = 1 << 16


def _fixed_divisor(attrs: Attrs) -> int:
    """The divisor if it is the same for every window; 0 if it depends on how much of a window lies inside."""
    covers_all = not attrs["ceil_mode"] and (attrs["count_include_pad"] or not any(attrs["padding"]))
    height, width = attrs["kernel"]
    return int(attrs["divisor_override"] or (height * width if covers_all else 0))


def _averaged(call: Call, x: Array) -> tuple[Array, Array]:
    """(sums, divisors) of all windows."""
    shape, attrs = call.inputs[0].shape, call.attrs
    spans = [pooling.spans(shape, attrs, axis) for axis in (0, 1)]
    if fixed := _fixed_divisor(attrs):
        return pooling.window_sums(x, *spans), np.array(fixed)
    counts = []
    for axis, windows in enumerate(spans):
        before, after = (attrs["padding"][axis], attrs["padding"][axis + 2]) if attrs["count_include_pad"] else (0, 0)
        limit = shape[-2 + axis] + after
        counts.append(np.array([min(end, limit) - max(begin, -before) for begin, end in windows]))
    return pooling.window_sums(x, *spans), np.outer(*counts)


def _avg_pool(call: Call, arrays: Sequence[Array]) -> Array:
    sums, divisors = _averaged(call, arrays[0].astype(np.float64))
    return np.asarray(sums / divisors).astype(np.float32)


def _avg_pool_int8(call: Call, arrays: Sequence[Array]) -> Array:
    sums, divisors = _averaged(call, arrays[0].astype(np.int64) - call.zeros[0])
    index = np.zeros((), np.int64) if _fixed_divisor(call.attrs) else divisors - 1
    return average.requantize(call, sums, arrays[1][index])


def _avg_pool_params(call: Call) -> Params:
    return {
        **pooling.window_params(call),
        **average.params(call),
        "divisor": np.uint32(_fixed_divisor(call.attrs)),
        "counts_padding": np.uint32(call.attrs["count_include_pad"]),
    }


def _multipliers(attrs: Attrs) -> int:
    """The number of multipliers of the int8 form: one for each divisor that a window may have."""
    height, width = attrs["kernel"]
    return 1 if _fixed_divisor(attrs) else min(height * width, MOST_MULTIPLIERS)


def _counted(shape: Shape, attrs: Attrs) -> int:
    """The number of elements of the largest window, padding included."""
    before, after, sizes = attrs["padding"][:2], attrs["padding"][2:], shape[-2:]
    return math.prod(map(min, attrs["kernel"], map(sum, zip(sizes, before, after, strict=True))))


def _refused(shape: Shape, attrs: Attrs) -> str:
    """Why averages of these windows have no int8 form; empty if they have one."""
    counted = _counted(shape, attrs)
    if not _fixed_divisor(attrs) and counted > MOST_MULTIPLIERS:
        return f"its windows have up to {counted} elements, and so more than {MOST_MULTIPLIERS} divisors"
    return average.too_many(counted)


def _infer_avg_pool_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = pooling.infer_pool(types, attrs)
    if types[1].shape != (_multipliers(attrs),):
        raise GraphError(f"this average has {_multipliers(attrs)} divisors, found multipliers {types[1].shape}")
    if text := _refused(types[0].shape, attrs):
        raise GraphError(text)
    return shape, INT8X4


def _lower_avg_pool(call: QuantizedCall) -> Int8Form:
    attrs, shape = call.attrs, call.inputs[0].shape
    ratio = average.ratio_of(call, _counted(shape, attrs))
    if text := _refused(shape, attrs):
        raise NoInt8Form(text)
    fixed = _fixed_divisor(attrs)
    table = average.multiplier(ratio, np.array([fixed]) if fixed else np.arange(1, _multipliers(attrs) + 1))
    return Int8Form("q8ta_avg_pool2d", (0, table), {**attrs, "lo": call.lo, "hi": call.hi})


_COUNT_ALL: dict[str, Any] = {"count_include_pad": True, "divisor_override": 0}
_COUNT_IMAGE: dict[str, Any] = {"count_include_pad": False, "divisor_override": 0}

avg_pool2d = Op(
    name="avg_pool2d",
    operands=(Operand("x"),),
    infer=pooling.infer_pool,
    reference=_avg_pool,
    schema=SCHEMA,
    kernels=average.kernels("avg_pool2d", "avg_pool2d", _avg_pool_params, pooling.extents),
    int8=Arithmetic(_lower_avg_pool, reads_int16=True, gives_int16=True),
    reads=pooling.reads,
    work=pooling.work,
    cases=(
        pooling.pool_case((1, 5, 7, 9), 3, 2, 1, **_COUNT_ALL),
        pooling.pool_case((2, 8, 8, 8), 2, 2, values="ties", **_COUNT_ALL),
        pooling.pool_case((2, 3, 7, 5), 3, 2, 1, **_COUNT_IMAGE),
        pooling.pool_case((2, 3, 8, 6), 3, 2, 1, ceil_mode=True, **_COUNT_ALL),
        pooling.pool_case((1, 7, 8, 6), (3, 2), (2, 3), (1, 0, 1, 1), ceil_mode=True, **_COUNT_IMAGE),
        pooling.pool_case((1, 6, 9, 11), (2, 5), (3, 1), (1, 2, 0, 4), **_COUNT_IMAGE),
        pooling.pool_case((13, 6, 5), 3, 1, 1, count_include_pad=True, divisor_override=7),
        pooling.pool_case((1, 9, 5, 4), (5, 4), values="saturate", **_COUNT_ALL),
        pooling.pool_case((2, 4, 1, 1), 3, 1, 1, **_COUNT_IMAGE),
        pooling.pool_case((2, 30, 5, 7), 3, 2, 1, **_COUNT_IMAGE),
        pooling.pool_case((2, 5, 3, 7), (300, 6), (300, 5), 1, ceil_mode=True, **_COUNT_IMAGE),
    ),
    tolerance=1e-5,
)

q8ta_avg_pool2d = Op(
    name="q8ta_avg_pool2d",
    operands=(
        Operand("x", dtypes=INTEGERS),
        Operand("multiplier", constant=True, valid=valid.finite(1, negative=False)),
    ),
    infer=_infer_avg_pool_int8,
    reference=_avg_pool_int8,
    results=(INT16X4,),
    schema={**SCHEMA, **WIDE_RANGE},
    reads=pooling.reads,
    work=pooling.work,
    kernels=average.kernels("q8ta_avg_pool2d", "avg_pool2d", _avg_pool_params, pooling.extents),
)
