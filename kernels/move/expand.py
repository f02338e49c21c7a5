"""expand, expand_batch, repeat and flip: elements that are repeated, or in reverse order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MAX_EXTENT, Attr, Builder, reads_same_place
from q8ta_wgpu.kernels.lib import onnx_calls
from q8ta_wgpu.kernels.move.strided import Digit, move, splat_kernels, strides


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


def _expand(x: Array, y: Shape, attrs: Attrs) -> Array:
    return np.broadcast_to(x, y)


def _grow(b: Builder, x: str, shape: Shape) -> str:
    old = b.type(x).shape
    aligned = (0,) * (len(shape) - len(old)) + old
    wanted = [-1 if new in (-1, extent) else new for new, extent in zip(shape, aligned, strict=True)]
    return x if wanted == [-1] * len(old) else b.emit("expand", (x,), {"shape": wanted})


def _import_expand(b: Builder, args: Mapping[str, Any]) -> str:
    return _grow(b, args["self"], tuple(args["size"]))


def _onnx_expand(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Expand, to the broadcast of its operand's shape and a given one."""
    x, old = args["inputs"][0], b.type(args["inputs"][0]).shape
    wanted = onnx_calls.integers(b, args, 1, "shape") or []
    if any(not 1 <= n <= MAX_EXTENT for n in wanted):
        raise b.refuse(f"its shape must be numbers from 1 to {MAX_EXTENT}, found {wanted}")
    return _grow(b, x, np.broadcast_shapes(old, tuple(wanted)))


def _onnx_tile(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("repeat", (args["inputs"][0],), {"repeats": onnx_calls.integers(b, args, 1, "repeats") or []})


def _import_expand_as(b: Builder, args: Mapping[str, Any]) -> str:
    return _grow(b, args["self"], b.type(args["other"]).shape)


expand = move(
    "expand",
    shape=_expand_shape,
    digits=_expand_digits,
    reference=_expand,
    schema={"shape": Attr("ints", low=-1, high=MAX_EXTENT)},
    onnx={"Expand": _onnx_expand},
    aten={"aten.expand.default": _import_expand, "aten.expand_as.default": _import_expand_as},
    reads=reads_same_place,
    kernels=splat_kernels("expand", _expand_digits),
    cases=(
        ((2, 5, 1, 1), {"shape": (-1, -1, 3, 7)}),
        ((1, 1, 6), {"shape": (3, 5, -1)}),
        ((7,), {"shape": (2, 3, 7)}),
        ((2, 1, 2, 1, 5), {"shape": (-1, 3, -1, 4, -1)}),
        ((2, 1, 3, 16), {"shape": (-1, 3, -1, -1)}),
        ((2, 1, 1, 3, 1), {"shape": (-1, 2, 8, -1, 5)}),
    ),
)


def _expand_batch_shape(x: Shape, attrs: Attrs) -> Shape:
    if not x or x[0] != 1:
        raise GraphError(f"expand_batch of {x}: its first dimension must be 1")
    return (attrs["size"], *x[1:])


expand_batch = move(
    "expand_batch",
    shape=_expand_batch_shape,
    digits=_expand_digits,
    reference=_expand,
    schema={"size": Attr("int", low=1)},
    aten={},
    reads=reads_same_place,
    cases=(
        ((1, 3, 5), {"size": 3}),
        ((1, 1, 16), {"size": 2}),
        ((1, 8, 3, 5), {"size": 2}),
        ((1, 2, 5, 3, 8), {"size": 3}),
    ),
)
"""Repeats an operand for each image of a batch. `Model.rebatch` changes the size of the batch, so passes must not fold
it into a constant."""


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


def _repeat(x: Array, y: Shape, attrs: Attrs) -> Array:
    return np.tile(x, attrs["repeats"])


repeat = move(
    "repeat",
    shape=_repeat_shape,
    digits=_repeat_digits,
    reference=_repeat,
    schema={"repeats": Attr("ints", low=1, high=MAX_EXTENT)},
    onnx={"Tile": _onnx_tile},
    aten={"aten.repeat.default": lambda b, args: b.emit("repeat", (args["self"],), {"repeats": list(args["repeats"])})},
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


def _flip(x: Array, y: Shape, attrs: Attrs) -> Array:
    return np.flip(x, tuple(attrs["dims"]))


def _import_flip(b: Builder, args: Mapping[str, Any]) -> str:
    rank = max(len(b.type(args["self"]).shape), 1)
    return b.emit("flip", (args["self"],), {"dims": sorted({d % rank for d in args["dims"]})})


flip = move(
    "flip",
    shape=_flip_shape,
    digits=_flip_digits,
    reference=_flip,
    schema={"dims": Attr("ints", low=0, high=63)},
    aten={"aten.flip.default": _import_flip},
    cases=(
        ((2, 5, 3, 7), {"dims": (3,)}),
        ((2, 5, 3, 7), {"dims": (0, 1, 2)}),
        ((13,), {"dims": (0,)}),
        ((2, 3, 2, 3, 5), {"dims": (1, 4)}),
        ((2, 5, 3, 16), {"dims": (1, 2)}),
    ),
)
