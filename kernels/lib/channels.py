"""Kernels that work pixel by pixel on 4C tensors, in whole words of channels: kernels/lib/channels.wgsl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Call
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target

NARROW = {
    INT8X4: ("Words=u32", "Ints=i32", "Floats=f32"),
    INT16X4: ("Words=vec2<u32>", "Ints=vec2<i32>", "Floats=vec2<f32>"),
}
WIDE = ("Words=vec4<u32>", "Ints=vec4<i32>", "Floats=vec4<f32>")
"""WGSL types of what a thread loads of a pixel at once: a word, or a vector of 16 bytes, which is four words of int8 or
two of int16. Component j of an Ints is one of the channels in component j of Words."""


def _words(call: Call) -> int:
    """The number of words of a pixel."""
    return -(-dims(call.inputs[0])[1] // 4)


def _of_vector(call: Call) -> int:
    """The number of words in a vector."""
    return 2 if call.inputs[0].dtype == INT16X4 else 4


def whole_vectors(call: Call) -> bool:
    """Whether the words of a pixel are whole vectors."""
    return _words(call) % _of_vector(call) == 0


def groups(call: Call) -> int:
    """Number of Words of a pixel: of vectors where `whole_vectors`, else of words."""
    return _words(call) // _of_vector(call) if whole_vectors(call) else _words(call)


def types(call: Call) -> tuple[str, ...]:
    """The WGSL types of Words, Ints and Floats in a call."""
    return WIDE if whole_vectors(call) else NARROW[INT16X4 if call.inputs[0].dtype == INT16X4 else INT8X4]


def _items(call: Call) -> int:
    n, _, h, w = dims(call.output)
    return n * h * w * groups(call)


def kernel(
    name: str,
    source: tuple[str, ...],
    params: Callable[[Call], Params],
    supports: Callable[[Call, Target], bool] = lambda call, target: True,
    int16: tuple[str, ...] = (),
    **more: Any,
) -> Kernel:
    """A kernel for values in 4C, by vectors where `whole_vectors`, else by words.

    Args:
        name: of the kernel.
        source: WGSL files. They define words_of(p), which main of channels.wgsl calls, or another main.
        params: more uniform fields.
        supports: as for Kernel.
        int16: bindings for values of int16; without them it takes int8 only.
        more: more fields of Kernel.
    """
    dtypes = (INT8X4, INT16X4) if int16 else (INT8X4,)

    def fits(call: Call, target: Target) -> bool:
        dtype = call.inputs[0].dtype
        return dtype in dtypes and dtype == call.output.dtype and supports(call, target)

    def linked(call: Call) -> tuple[str, ...]:
        return *source, *(int16 if call.inputs[0].dtype == INT16X4 else ()), *types(call)

    def all_params(call: Call) -> Params:
        return {**params(call), "groups": np.uint32(groups(call)), "items": np.uint32(_items(call))}

    fields: dict[str, Any] = {"threads": lambda call, layout: (_items(call), 1, 1), "output": ONLY_4C, **more}
    return Kernel(
        name,
        linked,
        (ONLY_4C,),
        supports=fits,
        wide=lambda call: ("x", "y") if whole_vectors(call) else (),
        params=all_params,
        **fields,
    )
