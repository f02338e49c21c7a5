"""The integer arithmetic of norms: normalized numbers of a row, computed without floats and in any order.

For a row of C elements with x' = x - zero: d = C x' - sum x' and V = C sum x'^2 - (sum x')^2, both exact. (For a root
mean square, d = C x' and V = C sum x'^2.) The normalized x is d / sqrt(V + C^2 eps). Rounding the mean first, as I-BERT
and FQ-ViT do, changes the bytes of more than a third of all elements.

kernels/lib/inverse_root.wgsl and kernels/norm/q8ta_norm.wgsl compute the same.
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
"""The most elements of a row. Its largest normalized number is the square root of that, which in 2^-NORMAL is at most
2^30."""


def normal_bits(length: int, dtype: str) -> int:
    """The number of fraction bits of the normalized numbers of a row of `length` elements: NORMAL for an int8 result;
    for an int16 result as many as keep the largest number within 2^30."""
    return 30 - -(-(length - 1).bit_length() // 2) if dtype == INT16X4 else NORMAL


MOST_FRACTION = 16
VARIANCE_LIMIT = 1 << 62

UInt64 = NDArray[np.uint64]


@dataclass(frozen=True)
class Variance:
    """The fixed-point form of V + C^2 eps: V * 2^fraction / 4^dropped + epsilon, below 2^63.

    Attributes:
        fraction: an even number.
        epsilon: C^2 eps in the same form.
        dropped: low bits of d that are dropped, so that it fits int32. It is 0 except for int16 rows of more than 2^15
            elements.
    """

    fraction: int
    epsilon: int
    dropped: int = 0


def variance(length: int, largest: int, eps: float) -> Variance | None:
    """The fixed-point form of a row's variance.

    Args:
        length: elements of a row.
        largest: the largest magnitude of x - zero.
        eps: in squared steps of x.

    Returns:
        None where 64 bits are not enough.
    """
    fraction, most = MOST_FRACTION, max((length * largest) ** 2, float(length) ** 2 * eps)
    while fraction > 0 and most * 2.0**fraction >= VARIANCE_LIMIT:
        fraction -= 2
    dropped = max((length * largest + 4).bit_length() - 31, 0)
    fits = most * 2.0**fraction < VARIANCE_LIMIT * 4.0**dropped and length <= LONGEST
    return Variance(fraction, round(float(length) ** 2 * eps * 2.0**fraction / 4.0**dropped), dropped) if fits else None


def inverse_root(v: UInt64) -> tuple[Int64, Int64]:
    """(factor, shift) with 1 / sqrt(v) = factor / 2^shift, accurate to 28 bits. factor has at most 31 bits. v = 0
    counts as 1."""
    v = np.maximum(v, np.uint64(1))
    bits = np.frexp(v.astype(np.longdouble))[1].astype(np.int64) - 1
    bits -= (v >> bits.astype(np.uint64)) == 0  # where a longdouble of 53 bits was rounded up to a power of two
    t = bits // 2 - 15
    right, left = np.maximum(2 * t, 0).astype(np.uint64), np.maximum(-2 * t, 0).astype(np.uint64)
    m = ((v >> right) << left).astype(np.int64)
    root = np.sqrt(m.astype(np.float64)).astype(np.int64)  # m has 32 bits: its root in float64 is never rounded up
    start = np.minimum((1 << 31) // root, 0xFFFF)
    gap = (1 << 30) - (m.astype(np.uint64) * (start * start).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    return start * (1 << 15) + (start * (gap >> 2) >> 14), 46 + t


def normalized(x: Int64, form: Variance, centered: bool, bits: int = NORMAL) -> Int64:
    """Normalized numbers.

    Args:
        x: int64 (rows, length), differences from the zero point.
        form: the form of their variance.
        centered: whether the mean is subtracted; not for a root mean square.
        bits: fraction bits of the result.

    Returns:
        int64 (rows, length), in 2^-bits, rounded toward 0.
    """
    length = x.shape[1]
    sums = x.sum(1, keepdims=True) if centered else np.zeros((len(x), 1), np.int64)
    dropped, squares = form.dropped, (x * x).sum(1, keepdims=True)
    if dropped:  # products do not fit int64: they are Python's integers
        v = ((length * squares.astype(object) - sums.astype(object) ** 2) >> 2 * dropped).astype(np.uint64)
    else:
        v = (length * squares - sums * sums).astype(np.uint64)
    factor, shift = inverse_root((v << np.uint64(form.fraction)) + np.uint64(form.epsilon))
    d = (length >> dropped) * x + ((length & ((1 << dropped) - 1)) * x >> dropped) - (sums >> dropped)
    size = np.abs(d).astype(np.uint64) * factor.astype(np.uint64)
    magnitude: Int64 = (size >> (shift - form.fraction // 2 - bits).astype(np.uint64)).astype(np.int64)
    return np.where(d < 0, -magnitude, magnitude)
