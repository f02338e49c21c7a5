"""to_float32: integers of a network as float32 numbers, exactly up to 2^24."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, INT32
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.op import Case, Op, Operand, reads_same_place

OPS = (
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
