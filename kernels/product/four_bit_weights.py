"""Weights of 4 bits with a factor for each group of inputs (q8ta_wgpu/ir/bits.py), as the kernels of products read
them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.bits import group_of, parts
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import Params

_PAIR = 32
"""Inputs that kernels read at a time: two vectors of 16."""


def is_grouped(call: Call) -> bool:
    """Whether the weight of a linear has 4 bits, in groups."""
    return len(call.inputs[1].shape) == 3


def row_words(call: Call) -> int:
    """Words of int8 in a row of a linear's input."""
    return -(-call.inputs[0].shape[-1] // 4)


def words(call: Call) -> int:
    """Words of int8 along k of a linear's weight. A weight of 4 bits is padded to whole pairs of vectors."""
    return -(-row_words(call) // 8) * 8 if is_grouped(call) else row_words(call)


def packed(order: Callable[[Call, Array], Array], columns: int) -> Callable[[Call, Array], Array]:
    """`Kernel.prepack` of a weight of 8 or 4 bits.

    A weight of 4 bits becomes its factors, in words of four outputs, and then its rows. Two rows are packed into one:
    the first is in the high bits of the bytes, the second in the low bits.

    Args:
        order: orders a weight int8 (outputs, inputs) as words, in rows of `columns` vectors of 16.
        columns: vectors in a row.
    """

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
    """The uniform fields of kernels/product/weights_4.wgsl: the number of vectors with factors, and of groups."""
    if not is_grouped(call):
        return {}
    outputs, groups, _ = call.inputs[1].shape
    return {"factors": np.uint32(-(-(-(-outputs // 4) * groups) // 4)), "groups": np.uint32(groups)}


def constants(call: Call, columns: int) -> dict[str, int]:
    """The constants of kernels/product/weights_4.wgsl, for rows of `columns` vectors."""
    return {"COLUMNS": columns, "GROUP_VECTORS": group_of(call.inputs[1].shape) // 16} if is_grouped(call) else {}


def unit_parts(call: Call) -> int:
    """The number of int8 that a weight becomes on matrix units (kernels/product/unit_weights_4.wgsl)."""
    return 2 if is_grouped(call) else 1


def source(call: Call, stem: str) -> tuple[str, ...]:
    """The WGSL that reads a weight of 8 or 4 bits: `stem` is 'weights', or that of a body that reads them in another
    way."""
    return (f"{stem}_{4 if is_grouped(call) else 8}",)
