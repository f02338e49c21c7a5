"""The integers of a norm: from differences of a row to normalized numbers, without floats and in any order.

With x' = x - zero over a row of C elements: d = C x' - sum x', V = C sum x'^2 - (sum x')^2, both exact. (A root mean
square takes d = C x' and V = C sum x'^2.) The normalized x is d / sqrt(V + C^2 eps). Rounding the mean first, as I-BERT
and FQ-ViT do, gives other bytes for a third of all elements and more. kernels/lib/inverse_root.wgsl and
kernels/norm/q8ta_norm.wgsl compute the same. `largest` depends on the width of x, `normal_bits` on that of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.arithmetic import Int64
from q8ta_wgpu.ir.graph import INT16X4

NORMAL = 20
"""Fraction bits of a normalized number for an int8 result."""

LONGEST = 1 << 20
"""Most elements of a row: its largest normalized number is their root, which stays within 2^30 in 2^-NORMAL."""


def normal_bits(length: int, dtype: str) -> int:
    """Fraction bits of the normalized numbers of a row of `length` elements: NORMAL for an int8 result, for int16 as
    many as leave their largest within 2^30."""
    return 30 - -(-(length - 1).bit_length() // 2) if dtype == INT16X4 else NORMAL


MOST_FRACTION = 16
VARIANCE_LIMIT = 1 << 62

UInt64 = NDArray[np.uint64]


@dataclass(frozen=True)
class Variance:
    """How V + C^2 eps is stored: V * 2^fraction / 4^dropped + epsilon, below 2^63; fraction is even. d is stored
    without its `dropped` low bits, which int16 has too many of in rows of more than 2^15 elements."""

    fraction: int
    epsilon: int
    dropped: int = 0


def variance(length: int, largest: int, eps: float) -> Variance | None:
    """The form for rows of `length` differences of at most `largest`, eps in squared steps of x. None where two words
    are too few."""
    fraction, most = MOST_FRACTION, max((length * largest) ** 2, float(length) ** 2 * eps)
    while fraction > 0 and most * 2.0**fraction >= VARIANCE_LIMIT:
        fraction -= 2
    dropped = max((length * largest + 4).bit_length() - 31, 0)
    fits = most * 2.0**fraction < VARIANCE_LIMIT * 4.0**dropped and length <= LONGEST
    return Variance(fraction, round(float(length) ** 2 * eps * 2.0**fraction / 4.0**dropped), dropped) if fits else None


def inverse_root(v: UInt64) -> tuple[Int64, Int64]:
    """(factor, shift) with 1 / sqrt(v) = factor / 2^shift to 28 bits; factor has at most 31 bits. 0 counts as 1."""
    v = np.maximum(v, np.uint64(1))
    bits = np.frexp(v.astype(np.longdouble))[1].astype(np.int64) - 1  # exact: a longdouble or 53 bits, see below
    bits -= (v >> bits.astype(np.uint64)) == 0  # a float rounded up to the next power of two
    t = bits // 2 - 15
    right, left = np.maximum(2 * t, 0).astype(np.uint64), np.maximum(-2 * t, 0).astype(np.uint64)
    m = ((v >> right) << left).astype(np.int64)
    root = np.sqrt(m.astype(np.float64)).astype(np.int64)  # m has 32 bits: its root in float64 is never rounded up
    start = np.minimum((1 << 31) // root, 0xFFFF)
    gap = (1 << 30) - (m.astype(np.uint64) * (start * start).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    return start * (1 << 15) + (start * (gap >> 2) >> 14), 46 + t


def normalized(x: Int64, spread: Variance, centered: bool, bits: int = NORMAL) -> Int64:
    """Normalized numbers in 2^-bits, cut toward 0, of differences (rows, length)."""
    length = x.shape[1]
    sums = x.sum(1, keepdims=True) if centered else np.zeros((len(x), 1), np.int64)
    dropped, squares = spread.dropped, (x * x).sum(1, keepdims=True)
    if dropped:  # products past int64, as Python's integers
        v = ((length * squares.astype(object) - sums.astype(object) ** 2) >> 2 * dropped).astype(np.uint64)
    else:
        v = (length * squares - sums * sums).astype(np.uint64)
    factor, shift = inverse_root((v << np.uint64(spread.fraction)) + np.uint64(spread.epsilon))
    d = (length >> dropped) * x + ((length & ((1 << dropped) - 1)) * x >> dropped) - (sums >> dropped)
    size = np.abs(d).astype(np.uint64) * factor.astype(np.uint64)
    cut: Int64 = (size >> (shift - spread.fraction // 2 - bits).astype(np.uint64)).astype(np.int64)
    return np.where(d < 0, -cut, cut)
