"""Weights of 4 bits with a factor for each group of inputs, as graphs and files hold them.

A weight is w = f * n: n of 4 bits, -8..7, and f an int8 for each group of 32, 64 or 128 inputs of each output. So a sum
of products with w is a whole number, as with int8 weights, and everything behind it is the same. Stored are (outputs,
groups, 1 + group / 2) int8: a factor, then two n a byte, the first in the low bits.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.arithmetic import FACTORS, GROUPS, INT32_MAX, STEPS
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.layout import Shape


def group_of(weight: Shape) -> int:
    """Inputs that share a factor."""
    return 2 * (weight[2] - 1)


def check(weight: Shape, depth: int) -> Shape:
    """(outputs, inputs) of a stored weight for inputs of this length. Raises GraphError for any other shape."""
    group = group_of(weight)
    if group not in GROUPS or weight[1] != -(-depth // group):
        sizes = ", ".join(map(str, GROUPS))
        raise GraphError(
            f"a weight of 4 bits is (outputs, groups of {sizes} inputs, 1 + half a group), found {weight} for {depth} "
            "inputs"
        )
    return weight[0], depth


def largest_factor(inputs: int) -> int:
    """Up to which factors a sum of so many products stays in int32, whatever the weights: 256 steps of an input and its
    zero point, times 8 of a weight."""
    return max(1, min(FACTORS[1], INT32_MAX // (256 * -STEPS[0] * inputs)))


def pack(values: Array, whole: bool = False) -> NDArray[np.int8] | None:
    """Whole numbers (outputs, inputs) as they are stored, in the longest groups of which they are products; None where
    they are none. With `whole` groups alone none is shorter than others. Equal numbers share what is stored."""
    if values.ndim != 2:
        return None
    key = hashlib.sha256(np.ascontiguousarray(values).data).digest(), values.shape, values.dtype.str, whole
    if (found := _stored.get(key)) is not None:
        return found
    for group in (g for g in GROUPS[::-1] if g < values.shape[1] + GROUPS[0] and not (whole and values.shape[1] % g)):
        found = _packed(values, group)
        if found is not None:
            _stored[key] = found
            return found
    return None


_AT_ONCE = 1 << 20
"""Weights that are packed at a time, which stay in a cache."""

_stored: WeakValueDictionary[Any, NDArray[np.int8]] = WeakValueDictionary()
"""What `pack` returned, as long as a graph holds it: a network of any length is lowered at several lengths."""


def _packed(values: Array, group: int) -> NDArray[np.int8] | None:
    """Whole numbers as they are stored in groups of one size; None where a group has no factor."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % group)))
    split = padded.reshape(len(values), -1, group)
    count = max(1, _AT_ONCE // max(1, padded.shape[1]))
    made = np.empty((*split.shape[:2], 1 + group // 2), np.int8)
    for some, stored in ((x[i : i + count] for x in (split, made)) for i in range(0, len(split), count)):
        factor = _factors(some)
        if factor is None:
            return None
        steps = (some // factor[..., None]).astype(np.uint8) & 15
        stored[..., 0] = factor
        stored[..., 1:] = (steps[..., ::2] | steps[..., 1::2] << 4).view(np.int8)
    return made


def _factors(split: Array) -> Array | None:
    """For each group a factor of all its numbers that leaves steps of 4 bits; None where a group has none."""
    common = np.gcd.reduce(split, axis=-1).astype(np.int32)
    most, least = split.max(-1), split.min(-1)
    found = np.where(common == 0, 1, 0)
    for share in range(1, 1 - STEPS[0]):
        whole = np.where(common % share == 0, common // share, 0)
        for factor in (whole, -whole):
            ends = np.sort(np.stack([most, least]) // np.where(factor == 0, 1, factor), axis=0)
            fits = (factor != 0) & (np.abs(factor) <= FACTORS[1]) & (ends[0] >= STEPS[0]) & (ends[1] <= STEPS[1])
            found = np.where((found == 0) & fits, factor, found)
    return found if found.all() else None


def parts(weight: NDArray[np.int8], depth: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """n (outputs, inputs) and factors (outputs, groups) of a stored weight."""
    pairs = weight[..., 1:].view(np.uint8)
    steps = np.stack([pairs << 4, pairs & 0xF0], axis=-1).view(np.int8) >> 4
    return steps.reshape(len(weight), -1)[:, :depth], weight[..., 0]


def values(weight: NDArray[np.int8], depth: int) -> NDArray[np.int16]:
    """Weights (outputs, inputs) of a stored weight."""
    steps, factors = parts(weight, depth)
    each: NDArray[np.int16] = np.repeat(factors.astype(np.int16), group_of(weight.shape), axis=1)[:, :depth] * steps
    return each
