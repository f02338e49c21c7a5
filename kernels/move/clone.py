"""q8ta_clone: a copy of an int8 or int16 value in another layout. Layout sync inserts it into plans; graphs do not have
it."""

from __future__ import annotations

from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import INTEGERS, Case, Op, Operand, same_as_first
from q8ta_wgpu.kernels.lib import channel_tile

OPS = (
    Op(
        name="q8ta_clone",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=same_as_first,
        reference=lambda call, arrays: arrays[0],
        kernels=(
            channel_tile.kernel("q8ta_clone", "clone", "to_4C", ONLY_4W),
            channel_tile.kernel("q8ta_clone", "clone", "from_4C", ONLY_4W),
            Kernel("q8ta_clone.words", ("clone", "words"), (ANY_INT8,), ANY_INT8, True, threads=eight_words),
            Kernel("q8ta_clone", ("clone", "map"), (ANY_INT8,), ANY_INT8),
        ),
        int8=Moves(),
        cases=(
            Case(((2, 5, 3, 7),)),
            Case(((1, 8, 4, 4),)),
            Case(((13,),)),
            Case(((2, 3, 2, 3, 5),)),
            Case(((2, 126, 9, 11),)),
            Case(((1, 36, 24, 24),)),
        ),
    ),
)
