"""q8ta_clone: the transition of an int8 value from one layout to another. Layout sync inserts it; no graph holds it."""

from __future__ import annotations

from q8ta_wgpu.ir import INT8X4
from q8ta_wgpu.layout import ANY_INT8
from q8ta_wgpu.op import Case, Kernel, Op, Operand, same_as_first

OPS = (
    Op(
        name="q8ta_clone",
        operands=(Operand("x", dtypes=(INT8X4,)),),
        infer=same_as_first,
        reference=lambda call, arrays: arrays[0],
        kernels=(Kernel("q8ta_clone", ("copy", "map"), (ANY_INT8,), ANY_INT8),),
        moves_bytes=True,
        cases=(Case(((2, 5, 3, 7),)), Case(((1, 8, 4, 4),)), Case(((13,),)), Case(((2, 3, 2, 3, 5),))),
    ),
)
