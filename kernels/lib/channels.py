"""Kernels that work pixel by pixel on 4C tensors, in whole words of channels: kernels/lib/channels.wgsl."""

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
"""WGSL types of what a thread loads of a pixel at once: a word, or a vector of four words. Component j of an Ints is a
channel of word j."""


def whole_vectors(call: Call) -> bool:
    """Whether the words of a pixel are a multiple of four."""
    return -(-dims(call.inputs[0])[1] // 4) % 4 == 0


def groups(call: Call) -> int:
    """Number of Words of a pixel: of vectors where `whole_vectors`, else of words."""
    words = -(-dims(call.inputs[0])[1] // 4)
    return words // 4 if whole_vectors(call) else words


def _items(call: Call) -> int:
    n, _, h, w = dims(call.output)
    return n * h * w * groups(call)


def two_items(call: Call, layout: Layout) -> tuple[int, int, int]:
    """`Kernel.threads` of a kernel whose threads make two Words each. It is for kernels that only move elements; those
    with windows make one."""
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
    """A kernel for int8 values in 4C, by vectors of four words where `whole_vectors`, else by words.

    Args:
        name: of the kernel.
        source: WGSL files. They define words_of(p), which main of channels.wgsl calls, or another main.
        params: more uniform fields.
        supports: as for Kernel.
        more: more fields of Kernel.
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
