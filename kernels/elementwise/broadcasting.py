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
    """The shape rule of float32 operators of two values."""
    a, b = types[0].shape, types[1].shape
    try:
        shape = np.broadcast_shapes(a, b)
    except ValueError:
        raise GraphError(f"shapes {a} and {b} do not broadcast") from None
    if len(shape) > 4 and a[: len(a) - 3] != b[: len(b) - 3]:
        raise GraphError(f"shapes {a} and {b} broadcast in a dimension left of the last three; expand first")
    return tuple(shape), FLOAT32


def broadcast_numbers(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators of two values of one dtype."""
    return broadcast(types, attrs)[0], one_dtype(types, attrs)


def number_of(b: Builder, operand: Any, other: str) -> float | None:
    """A Python number, or the value of a one-element constant that adds no dimensions to `other`; else None."""
    if not isinstance(operand, str):
        return float(operand)
    array = b.array(operand)
    fits = array is not None and array.size == 1 and array.ndim <= len(b.type(other).shape)
    return float(array.reshape(())) if array is not None and fits else None


def spread(b: Builder, left: str, right: str) -> tuple[str, str]:
    """Two values whose shapes broadcast in the last three dimensions only."""
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
    """The importer of an ONNX operator of two or more operands, each joined to the ones before it."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        first, *others = map(str, args["inputs"])
        for other in others:
            first = b.aten(aten, {"self": first, "other": other, **arguments})
        return first

    return rule
