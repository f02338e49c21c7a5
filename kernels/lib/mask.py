"""Masks of bools: the optional operand `mask` of softmax and attention, read by mask.wgsl."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Operand

MASK = Operand("mask", dtypes=(INT8X4,), optional=True)
"""Bools as int8: an element of a row counts where its mask is not 0. It may be an input, a computed value or a
constant."""

EVEN: Mapping[str, Attr] = {"even": Attr("bool")}
"""Whether the weights of a row whose mask is all 0 are equal; otherwise they are zeros."""


def check_mask(what: str, mask: TensorType, shape: Shape) -> None:
    """Raises GraphError unless a mask has bools and broadcasts to `shape`.

    Each dimension is 1 or that of the shape. The first of four dimensions may also divide the shape's. Of more than
    four, the dimensions before the last three are all 1 or all the shape's.

    Args:
        what: the operator, for the message.
        mask: type of the mask.
        shape: shape of the operator's operand.
    """
    if mask.q != BOOL:
        raise GraphError(f"the mask of {what} must be bools, at scale 1 and zero point 0, found {mask}")
    lead = max(len(shape) - 3, 0)
    fits = len(mask.shape) == len(shape)
    for dim, (n, whole) in enumerate(zip(mask.shape, shape, strict=False)):
        fits &= n in (1, whole) or (dim == 0 and len(shape) == 4 and whole % n == 0)
    if not fits or (lead > 1 and math.prod(mask.shape[:lead]) not in (1, math.prod(shape[:lead]))):
        raise GraphError(
            f"{what} of {shape} with a mask of {mask.shape}: each dimension must be 1 or that of {shape}, the first of "
            "four may divide it, and the dimensions left of the last three must be all 1 or all equal"
        )


def spread(mask: Array, shape: Shape) -> Array:
    """A mask or a bias broadcast to a shape. The first dimension is tiled, the others are broadcast."""
    return np.broadcast_to(np.concatenate([mask] * (shape[0] // len(mask))), shape)


def shortened(mask: Array) -> Array:
    """A mask or a bias without repetitions, the inverse of `spread`. Dimensions along which it is constant get extent
    1, except the last. The first of four dimensions is reduced to its period (windows of images)."""
    lead = tuple(range(max(mask.ndim - 3, 0)))
    for axes in (lead, *((axis,) for axis in range(len(lead), mask.ndim - 1))):
        first = mask[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(mask.ndim))]
        if np.array_equal(np.broadcast_to(first, mask.shape), mask):
            mask = first
    divisors = (n for n in range(2, len(mask)) if len(mask) % n == 0) if mask.ndim == 4 else ()
    periods = (n for n in divisors if np.array_equal(np.tile(mask[:n], (len(mask) // n, 1, 1, 1)), mask))
    return mask[: next(periods, len(mask))]
