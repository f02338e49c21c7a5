"""Operators of two tensors: the shape of their result, and how their calls are imported."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Attrs, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import one_dtype


def broadcast(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of float32 operators of two values. Raises GraphError unless they broadcast in the last three
    dimensions."""
    a, b = types[0].shape, types[1].shape
    try:
        shape = np.broadcast_shapes(a, b)
    except ValueError:
        raise GraphError(f"shapes {a} and {b} do not broadcast") from None
    if len(shape) > 4 and a[: len(a) - 3] != b[: len(b) - 3]:
        raise GraphError(f"shapes {a} and {b} broadcast in a dimension left of the last three; expand first")
    return tuple(shape), FLOAT32


def broadcast_numbers(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators of two values of one dtype, float32 or int32. Raises GraphError as `broadcast` and
    `one_dtype` do."""
    return broadcast(types, attrs)[0], one_dtype(types, attrs)
