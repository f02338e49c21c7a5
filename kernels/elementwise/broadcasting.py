"""Operators of two tensors: the shape of their result."""

from __future__ import annotations

import math

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Attrs, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import one_dtype


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape of values of these shapes together. Raises GraphError unless they broadcast in the last three
    dimensions; a value of one element may have any shape."""
    try:
        shape = tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise GraphError(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from None
    lead = shape[: max(len(shape) - 3, 0)]
    if len(shape) > 4 and any(math.prod(s) > 1 and s[: len(s) - 3] != lead for s in shapes):
        raise GraphError(
            f"shapes {' and '.join(map(str, shapes))} broadcast in a dimension left of the last three; expand first"
        )
    return shape


def broadcast(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of float32 operators of two values. Raises GraphError as `broadcast_shape` does."""
    return broadcast_shape(types[0].shape, types[1].shape), FLOAT32


def broadcast_numbers(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators of two values of one dtype, float32 or int32. Raises GraphError as `broadcast` and
    `one_dtype` do."""
    return broadcast(types, attrs)[0], one_dtype(types, attrs)
