"""quantize, dequantize and dequantize_weight: between float32 and int8 or int16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT16, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, ONLY_4W, Kernel, Params, four_words
from q8ta_wgpu.ir.layout import ANY_INT8, Layout, Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Case, Op, Operand, dims, quantized_as_first, reads_same_place
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib import channel_tile


def _quantize(call: Call, arrays: Sequence[Array]) -> Array:
    return arithmetic.quantize(arrays[0], call.q, call.attrs["lo"], call.attrs["hi"])


def _quantize_params(call: Call) -> Params:
    return arithmetic.quantize_fields(call.q, call.attrs["lo"], call.attrs["hi"])


def _infer_float(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return types[0].shape, FLOAT32


def _dequantize(call: Call, arrays: Sequence[Array]) -> Array:
    q = call.inputs[0].q
    assert q is not None
    return arithmetic.dequantize(arrays[0], q)


def _dequantize_params(call: Call) -> Params:
    q = call.inputs[0].q
    assert q is not None
    return {"scale": np.float32(q.scale), "x_zero": np.int32(q.zero)}


def _is_int8(call: Call, target: Target) -> bool:
    return INT8X4 in (call.inputs[0].dtype, call.output.dtype)


def _one_channel(call: Call, target: Target) -> bool:
    return _is_int8(call, target) and dims(call.output)[1] == 1


def _row_words(call: Call) -> np.uint32:
    return np.uint32(-(-dims(call.output)[3] // 4))


def _whole_rows(call: Call) -> bool:
    """Whether the length of rows is a multiple of four."""
    return dims(call.output)[3] % 4 == 0


_RAGGED = ("Loaded=vec4<i32>", "load=load_ragged", "result=result_ragged")
"""WGSL bindings of dequantize.rows for rows of other lengths."""


def _dequantize_rows_params(call: Call) -> Params:
    return {**_dequantize_params(call), "words": np.uint32(-(-call.output.numel // 4)), "row_words": _row_words(call)}


def _dequantize_rows_threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    return -(-call.output.numel // 16), 1, 1


def _infer_weight(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    axis, shape = attrs["axis"], types[0].shape
    if axis >= len(shape) or any(t.shape != (shape[axis],) for t in types[1:]):
        raise GraphError(f"dequantize_weight along axis {axis} of {shape}: found scales of shape {types[1].shape}")
    return shape, FLOAT32


def dequantize_weight(call: Call, arrays: Sequence[Array]) -> Array:
    """The reference of dequantize_weight: scale[c] * (values - zero[c]) for each index c of the attribute `axis`, in
    float32 as torch computes it. Arrays are (values, scale, zero)."""
    values, scale, zero = arrays
    shape = [-1 if i == call.attrs["axis"] else 1 for i in range(values.ndim)]
    steps = values.astype(np.int32) - zero.reshape(shape)
    return steps.astype(np.float32) * scale.astype(np.float32).reshape(shape)


_SHAPES = (((1, 5, 3, 7),), ((2, 8, 4, 4),), ((3, 13),), ((257,),), ((2, 3, 2, 3, 5),), ((2, 126, 9, 11),))

OPS = (
    Op(
        name="quantize",
        operands=(Operand("x"),),
        infer=quantized_as_first,
        results=(INT16X4,),
        reference=_quantize,
        reads=reads_same_place,
        schema=WIDE_RANGE,
        kernels=(
            Kernel(
                "quantize.rows",
                lambda call: ("quantize", "words", *(() if _whole_rows(call) else ("load=load_ragged",))),
                (FLOAT,),
                ONLY_4W,
                wide=lambda call: ("x",) if _whole_rows(call) else (),
                params=lambda call: {**_quantize_params(call), "row_words": _row_words(call)},
                threads=four_words,
            ),
            Kernel(
                "quantize.plane",
                ("quantize", "words", "Loaded=f32", "result=result_plane"),
                (FLOAT,),
                ONLY_4C,
                supports=_one_channel,
                params=_quantize_params,
                threads=four_words,
            ),
            channel_tile.kernel(
                "quantize",
                "quantize",
                "to_4C",
                FLOAT,
                _quantize_params,
                preferred=lambda call, target: target.shares_memory or dims(call.output)[1] > 4,
            ),
            Kernel("quantize", ("quantize", "map"), (FLOAT,), ANY_INT8, params=_quantize_params),
        ),
        cases=tuple(
            Case(shapes, {"lo": -128, "hi": 127}, values)
            for shapes in _SHAPES
            for values in ("random", "special", "ties")
        ),
    ),
    Op(
        name="dequantize",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=_infer_float,
        reference=_dequantize,
        reads=reads_same_place,
        kernels=(
            Kernel(
                "dequantize.rows",
                lambda call: ("dequantize", "words", *(() if _whole_rows(call) else _RAGGED)),
                (ONLY_4W,),
                FLOAT,
                supports=lambda call, target: _whole_rows(call) or _is_int8(call, target),
                wide=("y",),
                params=_dequantize_rows_params,
                threads=_dequantize_rows_threads,
            ),
            Kernel(
                "dequantize.plane",
                ("dequantize", "words", "result=result_plane"),
                (ONLY_4C,),
                FLOAT,
                supports=_one_channel,
                params=_dequantize_params,
                threads=four_words,
            ),
            channel_tile.kernel("dequantize", "dequantize", "from_4C", FLOAT, _dequantize_params),
            Kernel("dequantize", ("dequantize", "map"), (ANY_INT8,), FLOAT, params=_dequantize_params),
        ),
        cases=tuple(Case(shapes) for shapes in _SHAPES),
    ),
    Op(
        name="dequantize_weight",
        operands=(
            Operand("values", constant=True, dtypes=(INT8, INT16)),
            Operand("scale", constant=True),
            Operand("zero", constant=True, dtypes=("int32",)),
        ),
        infer=_infer_weight,
        reference=dequantize_weight,
        schema={"axis": Attr("int", low=0, high=7)},
    ),
)
