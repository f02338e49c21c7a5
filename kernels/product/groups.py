"""Weights of 4 bits (q8ta_wgpu/ir/bits.py) as the kernels of products read them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.bits import group_of, parts
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import Params

_PAIR = 32
"""Inputs whose n are read together: kernels take vectors of 16, two at a time."""


def is_grouped(call: Call) -> bool:
    """Whether the weight of a linear has 4 bits."""
    return len(call.inputs[1].shape) == 3


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
    return (
        ("load_w=load_w4", "weight_factor=weight_factor4", "add_products=add_group", "add_sum=add_sum_of_group")
        if is_grouped(call)
        else ()
    )
