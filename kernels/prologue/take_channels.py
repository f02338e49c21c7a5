"""q8ta_take_channels: channels of several int8 tensors, in any order, as one tensor. passes/fold_moves.py makes one of
moves that end in something else than a product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Op, Operand, reads_same_place

MOST_WORDS = 1 << 16
"""The most words of a pixel: a word's number and that of all words share 32 bits."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    channels, first, *_ = types
    images = {(t.shape[:1], t.shape[2:], t.q) for t in types[1:]}
    few = all(_words(t) < MOST_WORDS for t in types[1:])
    if len(channels.shape) != 1 or len(first.shape) != 4 or len(images) != 1 or not few:
        raise GraphError(
            "q8ta_take_channels takes numbers of channels, and tensors (N, C, H, W) of one size, scale and zero "
            f"point, with pixels of less than {MOST_WORDS} words, found {', '.join(map(str, types))}"
        )
    return (first.shape[0], channels.shape[0], *first.shape[2:]), INT8X4


def _words(t: TensorType) -> int:
    """The words of a pixel."""
    return -(-t.shape[1] // 4)


def _valid_channels(call: Call, arrays: Sequence[Array | None]) -> str:
    channels, count = arrays[0], sum(t.shape[1] for t in call.inputs[1:])
    assert channels is not None
    return "" if channels.min() >= 0 and channels.max() < count else f"must be in [0, {count - 1}]"


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return np.ascontiguousarray(np.concatenate(arrays[1:], 1)[:, arrays[0]])


def _pack(call: Call, channels: Array) -> Array:
    """For each channel of the result two numbers: its tensor and the first bit of its byte; the words of a pixel of
    that tensor and the word that has the byte."""
    tensors = call.inputs[1:]
    starts, words = np.cumsum([0, *(t.shape[1] for t in tensors)]), np.array([_words(t) for t in tensors])
    number = np.searchsorted(starts, np.pad(channels, (0, -len(channels) % 4)), "right") - 1
    within = np.pad(channels, (0, -len(channels) % 4)) - starts[number]
    return np.stack((number << 8 | within % 4 * 8, words[number] << 16 | within // 4), 1).astype(np.uint32).reshape(-1)


def _params(call: Call) -> Params:
    return {"quads": np.uint32(_words(call.output))}


take_channels = Op(
    name="q8ta_take_channels",
    operands=(
        Operand("channels", constant=True, dtypes=(INT32,), valid=_valid_channels),
        Operand("x", dtypes=(INT8X4,)),
    ),
    infer=_infer,
    reference=_reference,
    variadic=True,
    kernels=(
        Kernel(
            "q8ta_take_channels",
            ("take_channels",),
            (ONLY_4C,),
            ONLY_4C,
            wide=("channels",),
            params=_params,
            prepack={0: _pack},
        ),
    ),
    reads=reads_same_place,
)
