"""round_shares: the shares that a softmax gives, as an attention that is one operator has them.

No kernel computes it: it stands in graphs whose runs show how much noise the weights of attention make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import Attr, Op, Operand
from q8ta_wgpu.kernels.attention.attention import COARSE, EXCLUDED, FINE, powers

_AT_ONCE = 1 << 17
"""Elements that are rounded at once: they stay in a core's cache, and what is computed of them takes little memory
beside thousands of positions."""


def rounded_shares(shares: Array, bias: Array, fine: bool) -> Array:
    """Shares along the last dimension by weights of 8 or 14 bits, float32.

    Products and bias are rounded to steps one by one, then added. A constant that is added to a row changes nothing, so
    that shares tell their scores.

    Args:
        shares: (..., queries, keys).
        bias: what was added to the products, (batch, heads, queries, keys), some of them 1.
        fine: whether weights have 14 bits.
    """
    precision, shape = FINE if fine else COARSE, canonical(shares.shape)
    given, found = shares.reshape(shape), np.empty(shape, np.float32)
    added = np.where(bias * precision.steps > EXCLUDED, bias * precision.steps, 0.0).astype(np.float32)
    table = powers(precision).astype(np.float32)
    for rows in _blocks(shape):
        own = added[tuple(part if size > 1 else slice(None) for part, size in zip(rows, added.shape, strict=False))]
        _round(given[rows], own, precision.steps, table, found[rows])
    return found.reshape(shares.shape)


def _blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Slices of all dimensions but the last that hold about _AT_ONCE elements each."""
    axis = next((i for i in range(2) if math.prod(shape[i + 1 :]) <= _AT_ONCE), 2)
    step = max(1, _AT_ONCE // math.prod(shape[axis + 1 :]))
    for places in np.ndindex(shape[:axis]):
        for first in range(0, shape[axis], step):
            yield *(slice(i, i + 1) for i in places), slice(first, first + step)


def _round(shares: Array, added: Array, steps: int, table: Array, found: Array) -> None:
    """Writes the rounded shares of some rows to `found`."""
    np.divide(shares, np.maximum(shares.max(-1, keepdims=True), np.finfo(np.float32).tiny), out=found)
    with np.errstate(divide="ignore"):
        np.log(found, out=found)
    found *= np.float32(steps)
    if added.any():
        found -= added
    np.rint(found, out=found)
    if added.any():
        found += np.rint(added)
    with np.errstate(invalid="ignore"):  # rows without any weight
        np.subtract(found.max(-1, keepdims=True), found, out=found)
    np.fmin(found, len(table) - 1, out=found)  # the last distance also where no row has a weight, NaN
    np.take(table, found.astype(np.int16), out=found, mode="clip")
    found /= np.maximum(found.sum(-1, keepdims=True), np.float32(1))


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, bias = canonical(types[0].shape), types[1].shape
    if len(bias) != 4 or any(size not in (1, n) for size, n in zip(bias, shape, strict=True)):
        raise GraphError(f"shares of {types[0].shape} with a bias of {bias}, which does not broadcast to {shape}")
    return types[0].shape, types[0].dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return rounded_shares(arrays[0], arrays[1], call.attrs["fine"])


round_shares = Op(
    name="round_shares",
    operands=(Operand("x"), Operand("bias", constant=True)),
    infer=_infer,
    reference=_reference,
    schema={"fine": Attr("bool")},
)
