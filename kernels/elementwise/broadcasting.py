"""Operators of two tensors: the shape of their result, and how their calls are imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Attrs, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Builder, Import, one_dtype


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


def number_of(b: Builder, operand: Any, other: str) -> float | None:
    """The number that an operand is: a Python number, or a constant of one element that adds no dimensions to the value
    `other`. None for other operands."""
    if not isinstance(operand, str):
        return float(operand)
    array = b.array(operand)
    fits = array is not None and array.size == 1 and array.ndim <= len(b.type(other).shape)
    return float(array.reshape(())) if array is not None and fits else None


def spread(b: Builder, left: str, right: str) -> tuple[str, str]:
    """Two values expanded so that they broadcast in the last three dimensions only, as kernels require."""
    shapes = [b.type(name).shape for name in (left, right)]
    shape = np.broadcast_shapes(*shapes)
    if len(shape) <= 4 or shapes[0][:-3] == shapes[1][:-3]:
        return left, right
    first, second = (
        name if found == shape else b.aten("aten.expand.default", {"self": name, "size": shape})
        for name, found in zip((left, right), shapes, strict=True)
    )
    return first, second


def onnx_rule(aten: str, **arguments: Any) -> Import:
    """The importer of an ONNX operator of one or more operands, as the aten operator of two, applied from the left."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        first, *others = map(str, args["inputs"])
        for other in others:
            first = b.aten(aten, {"self": first, "other": other, **arguments})
        return first

    return rule
