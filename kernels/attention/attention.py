"""q8ta_attention: softmax(q k^T + bias) v of int8, whose scores and weights are never rounded to int8 tensors.

One operator is more precise than a chain of three. Scores are rounded to steps that do not depend on their range.
Weights have eight or fourteen bits relative to the largest in their row. The context is divided by the sum of weights
once, instead of every weight. Queries, keys and values may be strided words of larger tensors, often heads side by side
in the result of one linear. docs/arithmetic.md has the full definition. kernels/attention/blocks.py has the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASKED
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import WIDE_RANGE, Attr, Op, Operand
from q8ta_wgpu.ir.target import LOOP_TURNS
from q8ta_wgpu.kernels.attention.blocks import KERNELS, row_iterations
from q8ta_wgpu.kernels.attention.shared import LEAST, macs
from q8ta_wgpu.kernels.attention.sizes import STRIDES, Sizes, operand_strides, result_strides, sizes, sizes_of
from q8ta_wgpu.kernels.lib.mask import EVEN, MASK, check_mask, shortened, spread
from q8ta_wgpu.kernels.linear.matmul import LONGEST


@dataclass(frozen=True)
class Precision:
    """The resolution of an attention's weights.

    Attributes:
        steps: steps of a score for 1.0: neighbouring weights differ by the factor e^(1/steps).
        levels: the largest weight of every row.
        distances: entries of the table of weights, one for each distance from the largest score of a row. Larger
            distances have the last weight, 0.
        reciprocal: fraction bits of the inverse of a row's sum.
        keys: the largest number of keys, limited by the integers that hold sums.
    """

    steps: int
    levels: int
    distances: int
    reciprocal: int
    keys: int


COARSE = Precision(steps=40, levels=255, distances=256, reciprocal=39, keys=LONGEST)
"""Weights of eight bits; the smallest above 0 is e^-6.2. Distances fit a byte."""

FINE = Precision(steps=96, levels=(1 << 14) - 1, distances=1024, reciprocal=47, keys=1 << 14)
"""Weights of fourteen bits; the smallest above 0 is e^-10.4. Products multiply by two halves of seven bits. It is for
rows in which one element has much of the weight and many elements share the rest."""

LOW_BITS = 7
"""Bits of the lower half of a fine weight."""

FARTHEST = 1 << 22
"""Scores are clamped to this many steps, so that they are exact integers in float32."""

EXCLUDED = -(1 << 15)
"""The bias that excludes an element."""

DEEPEST = 1024
"""The largest number of elements of a query. A thread of the kernel for CPUs holds them all. Mesa's compiler takes a
minute for 5,000 and four times that for twice as many."""

LARGEST = 1e29
"""The largest multiplier whose product with the inverse of a row's sum is a finite float32."""


# --- constants and attributes that `compile` writes ---


def powers(precision: Precision = COARSE) -> Array:
    """The weight at each distance, int32 (distances,)."""
    distances = np.arange(precision.distances)
    return np.asarray(np.rint(precision.levels * np.exp(-distances / precision.steps)), np.int32)


def rounding(
    q: QParams, k: QParams, v: QParams, factor: float, out: QParams, precision: Precision = COARSE
) -> dict[str, float] | None:
    """The attributes score_multiplier and multiplier of an attention, from the quantization of its operands and result
    and the factor of its scores. None where float32 cannot hold them."""
    fractions = arithmetic.fraction(out.dtype) - precision.reciprocal
    found = {
        "score_multiplier": float(np.float32(q.scale * k.scale * factor * precision.steps)),
        "multiplier": float(np.float32(v.scale / out.scale * 2.0**fractions)),
    }
    return found if max(found.values()) <= LARGEST else None  # false for NaN


def bias_of(numbers: Array, precision: Precision = COARSE) -> Array | None:
    """The bias in steps, int32, of floats (batch, heads, queries, keys) that are added to scores. Floats so low that
    the weight is 0 become EXCLUDED, and so do all of a row that has only -inf. None where floats are so large that
    scores would be lost beside them in float32."""
    largest = numbers.max(-1, keepdims=True)
    excluded = np.isneginf(largest) | (largest == MASKED)
    near = np.abs(largest) < -EXCLUDED / (2 * precision.steps)
    shift = np.where(near, 0.0, largest)  # a constant for a whole row changes nothing
    if (np.abs(shift) > FARTHEST / precision.steps)[~excluded].any() or np.isnan(numbers).any():
        return None
    with np.errstate(invalid="ignore"):
        steps = np.rint((numbers.astype(np.float64) - shift) * precision.steps)
    return np.where(excluded | (steps <= EXCLUDED), EXCLUDED, np.nan_to_num(steps)).astype(np.int32)


def takes(found: Sizes, precision: Precision = COARSE) -> bool:
    """Whether every target can run an attention of these extents: rows must be whole words, and int32 must hold the
    sums."""
    words = found.depth % 4 == 0 and found.width % 4 == 0
    return words and found.depth <= DEEPEST and found.keys <= precision.keys and row_iterations(found) <= LOOP_TURNS


def without_repeats(bias: Array) -> Array:
    """A bias with repeated dimensions reduced to extent 1. A bias that is the same for all keys becomes one 0, since it
    changes no weight."""
    same = (bias == bias[..., :1]).all() and (bias != EXCLUDED).all()
    return np.zeros((1, 1, 1, 1), np.int32) if same else shortened(bias)


# --- the definition ---


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shapes = q, k, v = tuple(t.shape for t in types[:3])
    if not attrs["sizes"]:
        alike = min(map(len, shapes)) >= 2 and q[:-2] == k[:-2] == v[:-2]
        if not alike or q[-1] != k[-1] or k[-2] != v[-2]:
            raise GraphError(f"attention of queries {q}, keys {k} and values {v}: their extents do not belong together")
    lengths = [len(attrs[name]) for name in ("sizes", *STRIDES)]
    if lengths not in ([0, 0, 0, 0], [7, 4, 4, 4]) or not all(shapes):
        raise GraphError(
            "attention needs seven sizes, and an offset and three strides of each operand, or none, "
            f"found {lengths} of {shapes}"
        )
    found = sizes_of(types, attrs)
    if found.heads % found.shared:
        raise GraphError(f"attention of {found.heads} heads cannot share {found.shared} heads of keys equally")
    for t, shape, (first, *steps) in zip(types, found.operands, operand_strides(found, attrs), strict=False):
        last = first + sum((n - 1) * step for n, step in zip(shape, steps, strict=False)) + shape[-1]
        if last > t.numel or any(n % 4 for n in (first, *steps, shape[-1], t.shape[-1])):
            raise GraphError(f"attention reads rows of whole words of {t.shape}, found {(first, *steps)} of {shape}")
    most = precision_of(types).keys
    if found.depth > DEEPEST or found.keys > most:
        raise GraphError(f"attention takes {DEEPEST} elements a query and {most} keys, found {found}")
    _check_constants(types[3].shape, types[4].shape, found)
    for t in types[5:]:
        shape = canonical(t.shape) if len(t.shape) <= 4 else t.shape
        check_mask("attention of scores", replace(t, shape=shape), found.scores)
    if attrs["sizes"]:
        return (found.batch, found.queries, found.heads * found.width), INT8X4
    return (*q[:-1], v[-1]), INT8X4


def precision_of(types: Sequence[TensorType]) -> Precision:
    """The precision of a call with operands of these types: that of its weights."""
    return FINE if types[3].shape == (FINE.distances,) else COARSE


def _check_constants(table: Shape, bias: Shape, found: Sizes) -> None:
    if table not in ((COARSE.distances,), (FINE.distances,)):
        raise GraphError(f"attention has weights of {COARSE.distances} or {FINE.distances} distances, found {table}")
    broadcasts = all(n in (1, extent) for n, extent in zip(bias[1:], found.scores[1:], strict=False))
    fits = len(bias) == 4 and broadcasts and found.batch % bias[0] == 0 and bias[3] == found.keys
    if not fits and bias != (1, 1, 1, 1):
        raise GraphError(f"attention of scores {found.scores} with a bias of {bias} that repeats among its keys")


def _valid_powers(call: Call, arrays: Sequence[Array | None]) -> str:
    table = arrays[3]
    assert table is not None
    precision = precision_of(call.inputs)
    levels, needed = precision.levels, FINE if call.output.dtype == INT16X4 else precision
    if precision is not needed:
        return f"must be weights at {needed.distances} distances for an int16 result"
    valid = table[0] == levels and table[-1] == 0 and table.min() >= 0 and table.max() <= levels
    return "" if valid else f"must be weights of 0 to {levels}, the first of them {levels} and the last 0"


def _valid_bias(call: Call, arrays: Sequence[Array | None]) -> str:
    bias = arrays[4]
    assert bias is not None
    if bias.size == 1 and bias.any() and sizes(call).keys > 1:
        return "has one element, which is not 0"
    return "" if (bias >= EXCLUDED).all() and (bias < -EXCLUDED).all() else "must be of 16 bits"


def _operand(array: Array, strides: Sequence[int], shape: Shape) -> Array:
    """An operand in the shape (batch, heads, rows, columns), int64."""
    flat = np.ascontiguousarray(array).reshape(-1)[strides[0] :]
    return np.lib.stride_tricks.as_strided(flat, shape, (*strides[1:], 1), writeable=False).astype(np.int64)


def weights(sums: Array, multiplier: float, bias: Array, table: Array, mask: Array, even: bool = False) -> Array:
    """The weights of integer sums, int64 (batch, heads, queries, keys).

    Args:
        sums: products of queries and keys.
        multiplier: from a sum to a score in steps.
        bias: in steps, EXCLUDED for excluded elements.
        table: the weight at each distance from the largest score of a row.
        mask: True for elements that are not masked.
        even: whether all masked elements of a row have the same weight if there are no others.
    """
    scaled = np.rint(sums.astype(np.float32) * np.float32(multiplier))
    steps = np.clip(scaled, -FARTHEST, FARTHEST).astype(np.int64)
    bias = spread(bias, sums.shape)
    score = np.where(mask, np.where(bias != EXCLUDED, steps + bias, 2 * LEAST), LEAST if even else 2 * LEAST)
    included, largest = score > 2 * LEAST, np.maximum(score.max(-1, keepdims=True), LEAST)
    return np.where(included, table[np.clip(largest - score, 0, len(table) - 1)], 0).astype(np.int64)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    found, attrs = sizes(call), call.attrs
    q, k, v = (
        (_operand(a, strides, shape) - zero).astype(np.float64)  # exact: every partial sum is below 2^53
        for a, strides, shape, zero in zip(
            arrays, operand_strides(found, attrs), found.operands, call.zeros, strict=False
        )
    )
    k, v = (np.repeat(x, found.heads // found.shared, 1) for x in (k, v))
    sums = (q @ np.swapaxes(k, -1, -2)).astype(np.int64)
    mask = np.ones((), bool)
    if len(arrays) > 5:
        mask = spread(arrays[5].reshape(canonical(arrays[5].shape)) != 0, sums.shape)
    weight = weights(sums, attrs["score_multiplier"], arrays[4], arrays[3], mask, attrs["even"])
    precision = precision_of(call.inputs)
    # The maximum counts only in rows whose elements are all masked: their sums are 0.
    total = np.maximum(weight.sum(-1, keepdims=True), precision.levels)
    by = np.float32(attrs["multiplier"]) * ((1 << precision.reciprocal) // total).astype(np.float32)
    if precision is FINE:
        high, low = ((half.astype(np.float64) @ v).astype(np.int64) for half in np.divmod(weight, 1 << LOW_BITS))
        scaled = arithmetic.scaled_term(high, by * np.float32(1 << LOW_BITS)) + arithmetic.scaled_term(low, by)
    else:
        scaled = arithmetic.scaled_accumulator((weight.astype(np.float64) @ v).astype(np.int64), by)
    rounded = arithmetic.rte(scaled, arithmetic.fraction(call.q.dtype))
    context = np.ascontiguousarray(arithmetic.stored(call, rounded))
    out = np.empty(call.output.shape, DTYPES[call.q.dtype])
    byte_strides = [stride * out.itemsize for stride in (*result_strides(found, attrs)[1:], 1)]
    np.lib.stride_tricks.as_strided(out.reshape(-1), context.shape, byte_strides)[...] = context
    return out


_STRIDES = Attr("ints", low=0, high=1 << 31)
_NUMBER = Attr("float", low=0, high=LARGEST)


q8ta_attention = Op(
    name="q8ta_attention",
    operands=(
        Operand("q", dtypes=(INT8X4,)),
        Operand("k", dtypes=(INT8X4,)),
        Operand("v", dtypes=(INT8X4,)),
        Operand("powers", constant=True, dtypes=(INT32,), valid=_valid_powers),
        Operand("bias", constant=True, dtypes=(INT32,), valid=_valid_bias),
        MASK,
    ),
    infer=_infer,
    results=(INT16X4,),
    reference=_reference,
    schema={
        **WIDE_RANGE,
        **EVEN,
        "sizes": Attr("ints", low=1),
        **dict.fromkeys(STRIDES, _STRIDES),
        **dict.fromkeys(("score_multiplier", "multiplier"), _NUMBER),
    },
    kernels=KERNELS,
    macs=macs,
    work=macs,
)
