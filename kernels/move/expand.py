"""expand, expand_batch, repeat and flip: elements that are repeated, or in reverse order."""

from __future__ import annotations

import itertools

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Attrs, Call
from q8ta_wgpu.ir.kernel import ANY, Kernel, four_words
from q8ta_wgpu.ir.layout import CHANNELS_PACKED_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, MAX_EXTENT, Attr, dims, reads_same_place
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.strided import Digit, move, strides


def _expand_shape(x: Shape, attrs: Attrs) -> Shape:
    """The shape rule of expand. -1 keeps the extent of the input's dimension at the same distance from the end."""
    shape = list(attrs["shape"])
    lead = len(shape) - len(x)
    if lead < 0 or 0 in shape or -1 in shape[:lead]:
        raise GraphError(f"expand of {x} to {shape}: -1 keeps a dimension of the input, new ones are at least 1")
    found = [x[i - lead] if d == -1 else d for i, d in enumerate(shape)]
    if any(old not in (1, new) for old, new in zip(x, found[lead:], strict=True)):
        raise GraphError(f"expand of {x} to {found}: only dimensions of extent 1 can grow")
    return tuple(found)


def _expand_digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    steps = [0 if d == 1 else s for d, s in zip(x, strides(x), strict=True)]
    return list(zip(y, [0] * (len(y) - len(x)) + steps, strict=True)), 0


def _repeats_channel(call: Call, target: Target) -> bool:
    shape = call.output.shape
    return call.output.dtype in INTEGERS and len(shape) <= 4 and dims(call.inputs[0])[1] == 1 < dims(call.output)[1]


_CHANNEL = Kernel(
    "expand.channel",
    ("expand", "words"),
    (ANY,),
    CHANNELS_PACKED_INT8,
    supports=_repeats_channel,
    threads=four_words,
    cost=lambda call: 0.5 * call.output.numel,
)
"""For a value with one channel, such as an image that is added to every phase of a larger one."""

expand = move(
    "expand",
    shape=_expand_shape,
    digits=_expand_digits,
    reference=lambda x, y, attrs: np.broadcast_to(x, y),
    schema={"shape": Attr("ints", low=-1, high=MAX_EXTENT)},
    reads=reads_same_place,
    kernels=(_CHANNEL,),
    cases=(
        ((2, 5, 1, 1), {"shape": (-1, -1, 3, 7)}),
        ((1, 1, 6), {"shape": (3, 5, -1)}),
        ((7,), {"shape": (2, 3, 7)}),
        ((2, 1, 2, 1, 5), {"shape": (-1, 3, -1, 4, -1)}),
        ((2, 1, 3, 16), {"shape": (-1, 3, -1, -1)}),
        ((2, 1, 1, 3, 1), {"shape": (-1, 2, 8, -1, 5)}),
        ((2, 1, 5, 7), {"shape": (-1, 9, -1, -1)}),
    ),
)


def _expand_batch_shape(x: Shape, attrs: Attrs) -> Shape:
    if not x or x[0] != 1:
        raise GraphError(f"expand_batch of {x}: its first dimension must be 1")
    return (int(attrs["size"]), *x[1:])


expand_batch = move(
    "expand_batch",
    shape=_expand_batch_shape,
    digits=_expand_digits,
    reference=lambda x, y, attrs: np.broadcast_to(x, y),
    schema={"size": Attr("int", low=1)},
    reads=reads_same_place,
    cases=(
        ((1, 3, 5), {"size": 3}),
        ((1, 1, 16), {"size": 2}),
        ((1, 8, 3, 5), {"size": 2}),
        ((1, 2, 5, 3, 8), {"size": 3}),
    ),
)
"""Repeats an operand for each image of a batch. Only files have it that were written before a batch of any size was a
size like others (q8ta_wgpu/model/encoding.py)."""


def _repeat_shape(x: Shape, attrs: Attrs) -> Shape:
    repeats = attrs["repeats"]
    lead = len(repeats) - len(x)
    if lead < 0:
        raise GraphError(f"repeat of {x} needs a count for each dimension, found {list(repeats)}")
    return tuple(d * r for d, r in zip((1,) * lead + x, repeats, strict=True))


def _repeat_digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    full = (1,) * (len(y) - len(x)) + x
    pairs = [((r, 0), (d, s)) for r, d, s in zip(attrs["repeats"], full, strides(full), strict=True)]
    return list(itertools.chain(*pairs)), 0


repeat = move(
    "repeat",
    shape=_repeat_shape,
    digits=_repeat_digits,
    reference=lambda x, y, attrs: np.tile(x, attrs["repeats"]),
    schema={"repeats": Attr("ints", low=1, high=MAX_EXTENT)},
    cases=(
        ((2, 3, 3, 5), {"repeats": (1, 2, 3, 2)}),
        ((3, 5), {"repeats": (2, 2, 3)}),
        ((2, 3, 2, 3, 5), {"repeats": (2, 1, 3, 1, 2)}),
        ((2, 8, 3, 5), {"repeats": (1, 2, 1, 3)}),
        ((2, 3, 16), {"repeats": (2, 1, 1)}),
    ),
)


def _flip_shape(x: Shape, attrs: Attrs) -> Shape:
    dims = attrs["dims"]
    if any(d >= len(x) for d in dims) or len(set(dims)) < len(dims):
        raise GraphError(f"flip of {x} needs dimensions it has, each once, found {list(dims)}")
    return x


def _flip_digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    dims, steps = set(attrs["dims"]), strides(x)
    digits = [(size, -step if i in dims else step) for i, (size, step) in enumerate(zip(x, steps, strict=True))]
    return digits, sum((x[d] - 1) * steps[d] for d in dims)


flip = move(
    "flip",
    shape=_flip_shape,
    digits=_flip_digits,
    reference=lambda x, y, attrs: np.flip(x, tuple(attrs["dims"])),
    schema={"dims": Attr("ints", low=0, high=63)},
    cases=(
        ((2, 5, 3, 7), {"dims": (3,)}),
        ((2, 5, 3, 7), {"dims": (0, 1, 2)}),
        ((13,), {"dims": (0,)}),
        ((2, 3, 2, 3, 5), {"dims": (1, 4)}),
        ((2, 5, 3, 16), {"dims": (1, 2)}),
    ),
)
