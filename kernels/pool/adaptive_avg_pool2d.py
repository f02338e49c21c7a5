"""adaptive_avg_pool2d and its int8 form. adaptive_avg_pool1d is imported as it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import ONLY_4C, Params, no_params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INTEGERS, Attr, Case, Op, Operand, pair
from q8ta_wgpu.kernels.lib import channels, share
from q8ta_wgpu.kernels.pool import average, pooling

SCHEMA: Mapping[str, Attr] = {"output_size": pair()}


def _infer_adaptive(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return pooling.adaptive_shape("adaptive_avg_pool2d", types[0].shape, attrs["output_size"]), FLOAT32


def _infer_adaptive_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = _infer_adaptive(types, attrs)
    if text := average.too_many(math.prod(pooling.adaptive_window(types[0].shape, attrs))):
        raise GraphError(text)
    return shape, INT8X4


def _adaptive_work(call: Call) -> int:
    return call.output.numel * math.prod(pooling.adaptive_extents(call))


def _adaptive_sums(call: Call, x: Array) -> tuple[Array, Array]:
    rows, columns = (
        pooling.adaptive_spans(size, out) for size, out in zip(x.shape[-2:], call.attrs["output_size"], strict=True)
    )
    counts = np.outer([b - a for a, b in rows], [b - a for a, b in columns])
    return pooling.window_sums(x, rows, columns), counts


def _adaptive(call: Call, arrays: Sequence[Array]) -> Array:
    sums, counts = _adaptive_sums(call, arrays[0].astype(np.float64))
    return np.asarray(sums / counts).astype(np.float32)


def _adaptive_int8(call: Call, arrays: Sequence[Array]) -> Array:
    sums, counts = _adaptive_sums(call, arrays[0].astype(np.int64) - call.zeros[0])
    return average.requantize(call, sums, average.multiplier(call.attrs["ratio"], counts))


def _adaptive_params(call: Call) -> Params:
    """Uniform fields. Windows have three heights and three widths: floor(input / output) and the next two integers.
    multipliers_i has the multipliers of windows of height i, by width."""
    fields = dict(average.params(call))
    smallest = [d // o for d, o in zip(call.inputs[0].shape[-2:], call.attrs["output_size"], strict=True)]
    for i in range(3):
        counts = [max(smallest[0] + i, 1) * max(smallest[1] + j, 1) for j in range(4)]
        bits = average.multiplier(call.attrs["ratio"], counts).view(np.uint32)
        fields[f"multipliers_{i}"] = (int(bits[0]), int(bits[1]), int(bits[2]), int(bits[3]))
    return fields


def _lower_adaptive(call: QuantizedCall) -> Int8Form:
    count = math.prod(pooling.adaptive_window(call.inputs[0].shape, call.attrs))
    return average.lower(call, "q8ta_adaptive_avg_pool2d", call.attrs, count)


adaptive_avg_pool2d = Op(
    name="adaptive_avg_pool2d",
    operands=(Operand("x"),),
    infer=_infer_adaptive,
    reference=_adaptive,
    schema=SCHEMA,
    kernels=average.kernels("adaptive_avg_pool2d", "adaptive_avg_pool2d", no_params, pooling.adaptive_extents),
    int8=Arithmetic(_lower_adaptive, reads_int16=True, gives_int16=True),
    work=_adaptive_work,
    cases=(
        Case(((2, 5, 7, 9),), {"output_size": (1, 1)}),
        Case(((2, 94, 23, 9),), {"output_size": (1, 1)}),
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
    operands=(Operand("x", dtypes=INTEGERS),),
    infer=_infer_adaptive_int8,
    reference=_adaptive_int8,
    results=(INT16X4,),
    schema={**SCHEMA, **average.RATIO},
    work=_adaptive_work,
    kernels=(
        average.image_kernel(
            "q8ta_adaptive_avg_pool2d.image",
            average.params,
            lambda call: average.multiplier(call.attrs["ratio"], math.prod(call.inputs[0].shape[-2:])),
            lambda call, target: call.attrs["output_size"] == (1, 1),
            ONLY_4C,
        ),
        channels.kernel(
            "q8ta_adaptive_avg_pool2d.channels",
            ("adaptive_avg_pool2d", *average.CHANNELS),
            _adaptive_params,
            turns=lambda call: share.nested(pooling.adaptive_extents(call)),
        ),
        *average.kernels("q8ta_adaptive_avg_pool2d", "adaptive_avg_pool2d", _adaptive_params, pooling.adaptive_extents),
    ),
)
