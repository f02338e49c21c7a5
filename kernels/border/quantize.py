"""quantize, dequantize and dequantize_weight: between float32 and int8 or int16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT16, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, ONLY_4W, Kernel, Params, four_words
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Case, Op, Operand, dims, quantized_as_first, reads_same_place
from q8ta_wgpu.ir.target import Target


def _quantize(call: Call, arrays: Sequence[Array]) -> Array:
    return arithmetic.quantize(arrays[0], call.q, call.attrs["lo"], call.attrs["hi"])


def _quantize_params(call: Call) -> Params:
    return arithmetic.quantize_fields(call.q, call.attrs["lo"], call.attrs["hi"])


def _pixel_params(call: Call) -> Params:
    _, c, h, w = dims(call.output)
    return {**_quantize_params(call), "channels": np.uint32(c), "pixels": np.uint32(h * w)}


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


def _whole_rows(call: Call, target: Target) -> bool:
    """Whether the length of rows is a multiple of four: a word of int8 or int16 has the index of a vector of floats."""
    return dims(call.output)[3] % 4 == 0


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
                ("quantize", "words"),
                (FLOAT,),
                ONLY_4W,
                supports=_whole_rows,
                wide=("x",),
                params=_quantize_params,
                threads=four_words,
            ),
            Kernel(
                "quantize.pixels",
                ("quantize", "words", "load=load_pixel"),
                (FLOAT,),
                ONLY_4C,
                supports=lambda call, target: dims(call.output)[1] <= 4,
                params=_pixel_params,
                threads=four_words,
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
        kernels=(Kernel("dequantize", ("dequantize", "map"), (ANY_INT8,), FLOAT, params=_dequantize_params),),
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
