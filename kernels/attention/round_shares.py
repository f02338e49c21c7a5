"""round_shares: the shares that a softmax gives, as an attention that is one operator has them.

No kernel computes it: it stands in graphs whose runs show how much noise the weights of attention make.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import Attr, Op, Operand
from q8ta_wgpu.kernels.attention.attention import COARSE, EXCLUDED, FINE, powers

_AT_ONCE = 1 << 17
"""Elements that are looked up at once: their indices take twice the memory of the shares, which may be gigabytes."""


def rounded_shares(shares: Array, bias: Array, fine: bool) -> Array:
    """Shares along the last dimension by weights of 8 or 14 bits, float32.

    Products and bias are rounded to steps one by one, then added. A constant that is added to a row changes nothing, so
    that shares tell their scores.

    Args:
        shares: (..., queries, keys).
        bias: what was added to the products, (batch, heads, queries, keys), some of them 1.
        fine: whether weights have 14 bits.
    """
    precision = FINE if fine else COARSE
    added = np.where(bias * precision.steps > EXCLUDED, bias * precision.steps, 0.0).astype(np.float32)
    table, found = powers(precision).astype(np.float32), shares.reshape(canonical(shares.shape)).astype(np.float32, "C")
    found /= np.maximum(found.max(-1, keepdims=True), np.finfo(np.float32).tiny)
    with np.errstate(divide="ignore"):
        np.log(found, out=found)
    found *= np.float32(precision.steps)
    found -= added
    np.rint(found, out=found)
    found += np.rint(added)
    with np.errstate(invalid="ignore"):  # rows without any weight
        np.subtract(found.max(-1, keepdims=True), found, out=found)
    np.fmin(found, len(table) - 1, out=found)  # the last distance also where no row has a weight, NaN
    flat = found.reshape(-1)
    for part in (flat[first : first + _AT_ONCE] for first in range(0, flat.size, _AT_ONCE)):
        np.take(table, part.astype(np.int16), out=part, mode="clip")
    found /= np.maximum(found.sum(-1, keepdims=True), np.float32(1))
    return found.reshape(shares.shape)


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
