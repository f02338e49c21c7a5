"""q8ta_clone: the transition of an int8 or int16 value from one layout to another. Layout sync inserts it; graphs have
none."""

from __future__ import annotations

import functools

from q8ta_wgpu.ir.graph import INT8X4
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ONLY_4C, ONLY_4W, Kernel, LayoutSet, eight_words
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import INTEGERS, Case, Op, Operand, same_as_first
from q8ta_wgpu.kernels.lib import channel_tile


def _tiled(name: str, source: str, x: LayoutSet, y: LayoutSet) -> Kernel:
    return Kernel(
        name,
        ("clone", source, "channel_tile"),
        (x,),
        y,
        supports=lambda call, target: call.output.dtype == INT8X4,
        params=functools.partial(channel_tile.params, words=True),
        threads=lambda call, layout: channel_tile.threads(call, words=True),
        workgroup=channel_tile.WORKGROUP,
        cost=channel_tile.cost,
    )


OPS = (
    Op(
        name="q8ta_clone",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=same_as_first,
        reference=lambda call, arrays: arrays[0],
        kernels=(
            _tiled("q8ta_clone.to_4C", "to_4C", ONLY_4W, ONLY_4C),
            _tiled("q8ta_clone.from_4C", "from_4C", ONLY_4C, ONLY_4W),
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
