"""to_float32 converts int32 to float32, exactly up to 2^24. to_int32 truncates float32 numbers and clamps them to
int32; NaN is 0. It also converts int8 values of scale 1, as bools are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import ANY, FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, reads_same_place

LARGEST = 2.0**31 - 128
"""The largest float32 number that fits int32."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if (q := types[0].q) is not None and q.scale != 1:
        raise GraphError(f"to_int32 takes int8 values of scale 1, which are integers, found scale {q.scale}")
    return types[0].shape, INT32


def _params(call: Call) -> Params:
    return {"x_zero": np.int32(call.zeros[0])} if call.inputs[0].q else {}


def _to_int32(call: Call, arrays: Sequence[Array]) -> Array:
    if call.inputs[0].q:
        return arrays[0].astype(np.int32) - call.zeros[0]
    found: Array = np.clip(np.nan_to_num(arrays[0], posinf=LARGEST), -(2.0**31), LARGEST).astype(np.int32)
    return found


OPS = (
    Op(
        name="to_int32",
        operands=(Operand("x", dtypes=(FLOAT32, INT8X4)),),
        infer=_infer,
        reference=_to_int32,
        kernels=(
            Kernel(
                "to_int32",
                lambda call: ("convert", "map", f"compute={'steps' if call.inputs[0].q else 'to_int32'}"),
                (ANY,),
                FLOAT,
                params=_params,
            ),
        ),
        reads=reads_same_place,
        cases=(Case(((2, 5, 3, 7),)), Case(((13,),)), Case(((),))),
    ),
    Op(
        name="to_float32",
        operands=(Operand("x", dtypes=(INT32,)),),
        infer=lambda types, attrs: (types[0].shape, FLOAT32),
        reference=lambda call, arrays: arrays[0].astype(np.float32),
        kernels=(Kernel("to_float32", ("convert", "map", "compute=to_float32"), (FLOAT,), FLOAT),),
        reads=reads_same_place,
        cases=(Case(((2, 5, 3, 7),)), Case(((13,),)), Case(((),))),
        tolerance=1e-7,
    ),
)
