"""Weights of 4 bits with a factor for each group of inputs: what the graph stores, and what kernels read.

A weight is w = f * n: n of 4 bits, -8..7, and f an int8 for each group of 32, 64 or 128 inputs of each output. So a sum
of products with w is a whole number, as with int8 weights, and everything behind it is the same. The graph stores
(outputs, groups, 1 + group / 2) int8: a factor, then two n a byte, the first in the low bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.arithmetic import FACTORS, GROUPS, STEPS
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape

_PAIR = 32
"""Inputs whose n are read together: kernels take vectors of 16, two at a time."""


def is_grouped(call: Call) -> bool:
    """Whether the weight of a linear has 4 bits."""
    return len(call.inputs[1].shape) == 3


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


def pack(values: Array) -> NDArray[np.int8] | None:
    """Whole numbers (outputs, inputs) as they are stored, in the longest groups of which they are products; None where
    they are none."""
    if values.ndim != 2:
        return None
    for group in (g for g in GROUPS[::-1] if g < values.shape[1] + GROUPS[0]):
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % group)))
        split = padded.reshape(len(values), -1, group)
        factor = _factors(split)
        if factor is not None:
            steps = (split // factor[..., None]).astype(np.uint8) & 15
            pairs = (steps[..., ::2] | steps[..., 1::2] << 4).view(np.int8)
            return np.concatenate([factor[..., None].astype(np.int8), pairs], axis=-1)
    return None


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


def row_words(call: Call) -> int:
    """Words of int8 in a row that a linear reads."""
    return -(-call.inputs[0].shape[-1] // 4)


def words(call: Call) -> int:
    """Words of int8 along k of a linear's weight, which has whole pairs of vectors where it has 4 bits."""
    return -(-row_words(call) // 8) * 8 if is_grouped(call) else row_words(call)


def packed(order: Callable[[Call, Array], Array], columns: int) -> Callable[[Call, Array], Array]:
    """`Kernel.prepack` of a weight of either form: `order` gives the words of (outputs, inputs) int8 in rows of
    `columns` vectors of 16. With 4 bits the factors come first, as words of four outputs, then rows: two are one, the
    first in the high bits of its bytes."""

    def pack_weight(call: Call, weight: Array) -> Array:
        if not is_grouped(call):
            return order(call, weight)
        steps, factors = parts(weight, call.inputs[0].shape[-1])
        quads = np.pad(factors, ((0, -len(factors) % 4), (0, 0))).reshape(-1, 4, factors.shape[1])
        first = np.ascontiguousarray(quads.transpose(0, 2, 1)).reshape(-1).view(np.uint8)
        rows = order(call, np.pad(steps, ((0, 0), (0, -steps.shape[1] % _PAIR)))).view(np.uint8)
        rows = np.pad(rows, (0, -rows.size % (32 * columns))).reshape(-1, 2, 16 * columns)
        pairs = (rows[:, 0] << 4 | rows[:, 1] & 15).reshape(-1)
        return np.concatenate([np.pad(first, (0, -first.size % 16)), pairs]).view("<u4")

    return pack_weight


def params(call: Call) -> Params:
    """The uniform fields of kernels/product/weights.wgsl: vectors of factors before the weights, and groups."""
    if not is_grouped(call):
        return {}
    outputs, groups, _ = call.inputs[1].shape
    return {"factors": np.uint32(-(-(-(-outputs // 4) * groups) // 4)), "groups": np.uint32(groups)}


def constants(call: Call, columns: int) -> dict[str, int]:
    """The constants of kernels/product/weights.wgsl, for rows of `columns` vectors."""
    return {"COLUMNS": columns, "GROUP_VECTORS": group_of(call.inputs[1].shape) // 16} if is_grouped(call) else {}


def source(call: Call) -> tuple[str, ...]:
    """What is linked to read a weight: nothing for int8."""
    return ("load_w=load_w4", "weight_factor=weight_factor4", "add_products=add_group") if is_grouped(call) else ()
