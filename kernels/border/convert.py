"""to_float32: integers of a network as float32 numbers, exactly up to 2^24. to_int32: float32 numbers without their
fraction, within int32; NaN is 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, INT32, Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.op import Case, Op, Operand, reads_same_place

LARGEST = 2.0**31 - 128
"""The largest float32 number that int32 holds."""


def _to_int32(call: Call, arrays: Sequence[Array]) -> Array:
    found: Array = np.clip(np.nan_to_num(arrays[0], posinf=LARGEST), -(2.0**31), LARGEST).astype(np.int32)
    return found


OPS = (
    Op(
        name="to_int32",
        operands=(Operand("x"),),
        infer=lambda types, attrs: (types[0].shape, INT32),
        reference=_to_int32,
        kernels=(Kernel("to_int32", ("convert", "map", "compute=to_int32"), (FLOAT,), FLOAT),),
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
