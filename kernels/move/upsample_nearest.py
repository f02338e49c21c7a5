"""upsample_nearest: rows and columns selected by torch's index rules nearest and nearest-exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import ANY_DTYPE, MAX_EXTENT, Attr, Case, Op, Operand

LARGEST_SCALE = 1024.0


SIZES = {
    "scale": Attr("floats", low=1 / LARGEST_SCALE, high=LARGEST_SCALE, length=2),
    "size": Attr("ints", low=0, high=MAX_EXTENT, length=2),
}
"""Attributes for the size of (rows, columns): for each a size, or a size of 0 and a scale factor."""


def resized(name: str, x: Shape, attrs: Attrs) -> Shape:
    """The shape rule of a resizing operator called `name`. Raises GraphError for fewer than three dimensions, and for
    results that are empty or too large."""
    if len(x) < 3:
        raise GraphError(f"{name} needs (..., H, W) with at least three dimensions, found {x}")
    found = [s or math.floor(d * f) for d, s, f in zip(x[-2:], attrs["size"], attrs["scale"], strict=True)]
    if any(not 1 <= d <= MAX_EXTENT for d in found):
        raise GraphError(f"{name} of {x} by {list(attrs['scale'])} gives {found}")
    return (*x[:-2], *found)


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return resized("upsample_nearest", types[0].shape, attrs), types[0].dtype


def _step(attrs: Attrs, axis: int, extent: int, size: int) -> np.float32:
    """The number of input elements for a result element, as torch's CPU kernels compute it: in float32, and exactly for
    factors 1 and 2."""
    if not attrs["exact"] and size in (extent, 2 * extent):
        return np.float32(extent / size)
    if attrs["size"][axis]:
        return np.float32(extent) / np.float32(size)
    return np.float32(1.0 / attrs["scale"][axis])


def _sources(call: Call, axis: int) -> NDArray[np.int64]:
    """The input index of every result index: floor(i * step), or floor((i + 0.5) * step) for nearest-exact."""
    extent, size = call.inputs[0].shape[axis - 2], call.output.shape[axis - 2]
    step, index = _step(call.attrs, axis, extent, size), np.arange(size)
    if call.attrs["exact"]:
        index, step = 2 * index + 1, step * np.float32(0.5)
    return np.asarray(np.minimum(np.floor(index.astype(np.float32) * step).astype(np.int64), extent - 1))


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return np.ascontiguousarray(arrays[0][..., _sources(call, 0)[:, None], _sources(call, 1)])


def _params(call: Call) -> Params:
    exact = call.attrs["exact"]
    half = np.float32(0.5 if exact else 1.0)
    (h, w), (rows, columns) = call.inputs[0].shape[-2:], call.output.shape[-2:]
    return {
        "factor": np.uint32(2 if exact else 1),
        "term": np.uint32(1 if exact else 0),
        "step_h": np.float32(_step(call.attrs, 0, h, rows) * half),
        "step_w": np.float32(_step(call.attrs, 1, w, columns) * half),
    }


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    """`Op.reads`. Only with an integer factor does a tile read the same elements as the whole image."""
    factor = call.attrs["scale"][axis - 2]
    sources = _sources(call, axis - 2)
    integer = factor == int(factor) and np.array_equal(sources, np.arange(len(sources)) // int(factor))
    return (first // int(factor), last // int(factor)) if integer and len(call.output.shape) == 4 else None


OPS = (
    Op(
        name="upsample_nearest",
        operands=(Operand("x", dtypes=ANY_DTYPE),),
        infer=_infer,
        reference=_reference,
        schema={**SIZES, "exact": Attr("bool")},
        kernels=(Kernel("upsample_nearest", ("upsample_nearest", "map"), (ANY,), ANY, params=_params),),
        int8=Moves(),
        reads=_reads,
        cases=(
            Case(((2, 5, 3, 7),), {"scale": (2.0, 2.0), "size": (0, 0), "exact": False}),
            Case(((1, 6, 4, 5),), {"scale": (1.0, 1.0), "size": (7, 13), "exact": False}),
            Case(((1, 6, 9, 5),), {"scale": (0.7, 2.3), "size": (0, 0), "exact": True}),
            Case(((2, 30, 5, 3),), {"scale": (2.0, 3.0), "size": (0, 0), "exact": False}),
            Case(((2, 5, 7),), {"scale": (1.0, 1.5), "size": (0, 0), "exact": False}),
            Case(((2, 5, 8, 8),), {"scale": (1.0, 1.0), "size": (3, 11), "exact": True}),
        ),
    ),
)
