"""Kernels over 4C, pixel by pixel, in whole words of channels: kernels/lib/channels.wgsl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target

NARROW = ("Words=u32", "Ints=i32", "Floats=f32")
WIDE = ("Words=vec4<u32>", "Ints=vec4<i32>", "Floats=vec4<f32>")
"""Types for what is loaded of a pixel at once. Lane j of an Ints is a channel of word j."""


def whole_vectors(call: Call) -> bool:
    """Whether the channels of a pixel are whole vectors of four words."""
    return -(-dims(call.inputs[0])[1] // 4) % 4 == 0


def groups(call: Call) -> int:
    """Words of a pixel, or its vectors where they are whole."""
    words = -(-dims(call.inputs[0])[1] // 4)
    return words // 4 if whole_vectors(call) else words


def _items(call: Call) -> int:
    n, _, h, w = dims(call.output)
    return n * h * w * groups(call)


def two_items(call: Call, layout: Layout) -> tuple[int, int, int]:
    """The threads of a kernel that makes two Words each. Kernels that only move should; windows make one."""
    return -(-_items(call) // 2), 1, 1


def _one_item(call: Call, layout: Layout) -> tuple[int, int, int]:
    return _items(call), 1, 1


def kernel(
    name: str,
    source: tuple[str, ...],
    params: Callable[[Call], Params],
    supports: Callable[[Call, Target], bool] = lambda call, target: True,
    **more: Any,
) -> Kernel:
    """A kernel for int8 values in 4C, by vectors of four words where a pixel has whole ones, else by words.

    channels.wgsl's main calls words_of(p), unless `more` names another main in `source`.
    """

    def fits(call: Call, target: Target) -> bool:
        return call.inputs[0].dtype == call.output.dtype == INT8X4 and supports(call, target)

    def all_params(call: Call) -> Params:
        return {**params(call), "groups": np.uint32(groups(call)), "items": np.uint32(_items(call))}

    fields: dict[str, Any] = {"threads": _one_item, "output": ONLY_4C, **more}
    return Kernel(
        name,
        lambda call: (*source, *(WIDE if whole_vectors(call) else NARROW)),
        (ONLY_4C,),
        supports=fits,
        wide=lambda call: ("x", "y") if whole_vectors(call) else (),
        params=all_params,
        **fields,
    )
