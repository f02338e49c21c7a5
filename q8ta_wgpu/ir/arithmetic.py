"""The integer arithmetic that all int8 operators share, in numpy. It defines the contract of docs/arithmetic.md.

real = scale * (q - zero). Rounding is half to even everywhere. kernels/lib/arithmetic.wgsl computes the same bytes.
Multipliers are made here in float64, once, at compile time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, Array, Call, QParams

FRACTION = 14
"""Fraction bits of a convolution's result at the output's scale."""

INT16_FRACTION = 10
"""Fraction bits for an int16 result: 2^16 steps must fit as well, and a float32 product has no more bits there."""

TERM_LIMIT = 2.0**29 - 2.0**14
"""Bound of a scaled operand. Two of them and the rounding stay in int32, as does one beside T_LIMIT and
OFFSET_LIMIT."""

STEPS_LIMIT = 2.0**18
"""In steps of a result: beyond it every int8 and int16 saturates, whatever the zero point."""

INT32_MAX = 2**31 - 1
T_LIMIT = 2.0**30
OFFSET_LIMIT = 2.0**29
SMALLEST_SHIFT = 8
"""Fewest fraction bits that an add's multipliers may have."""

GROUPS = (32, 64, 128)
"""Inputs that may share a factor in a weight of 4 bits."""

STEPS, FACTORS = (-8, 7), (-127, 127)
"""Smallest and largest number of 4 bits, and factor of a group of them."""

LARGEST_OF_4_BITS = 1024
"""Bound of every number of 4 bits times an int8."""

Int64 = NDArray[np.int64]


def rte(v: Int64, k: int) -> Int64:
    """v / 2^k rounded half to even. v is int64, k >= 0."""
    rounded: Int64 = (v + ((1 << (k - 1)) - 1) + ((v >> k) & 1)) >> k if k else v
    return rounded


def quantize(x: Array, q: QParams, lo: int = -128, hi: int = 127) -> Array:
    """float32 to the dtype of `q`: rint(x * f32(1/scale)) + zero, clamped to [lo, hi]. NaN gives zero, infinities
    saturate."""
    inverse, limit = np.float32(1.0 / q.scale), np.float32(2**18)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.clip(np.rint(np.asarray(x, np.float32) * inverse), -limit, limit)
    steps = np.where(np.isnan(scaled), np.float32(0), scaled).astype(np.int64)
    return saturate(steps, q.zero, lo, hi, q.dtype)


def quantize_fields(q: QParams, lo: int, hi: int) -> dict[str, np.float32 | np.int32]:
    """The uniform fields of kernels/border/quantize.wgsl, for `quantize` with the same arguments."""
    return {
        "inverse_scale": np.float32(1.0 / q.scale),
        "int8_zero": np.int32(q.zero),
        "steps_lo": np.float32(lo - q.zero),
        "steps_hi": np.float32(hi - q.zero),
    }


def dequantize(v: Array, q: QParams) -> NDArray[np.float32]:
    """int8 or int16 to float32: (v - zero) * scale, one float32 multiplication."""
    real: NDArray[np.float32] = (v.astype(np.int32) - np.int32(q.zero)).astype(np.float32) * np.float32(q.scale)
    return real


def as_float32(acc: Int64) -> NDArray[np.float32]:
    """A sum as float32, rounded half to even below 2^40; beyond, f32(acc >> 16) is rounded before."""
    found: NDArray[np.float32] = (acc >> 16).astype(np.float32) * np.float32(65536) + (acc & 65535).astype(np.float32)
    return found


def scaled_accumulator(acc: Int64, multiplier: NDArray[np.float32]) -> Int64:
    """The accumulator in 2^-14 output steps: i32(clamp(rint(f32(acc) * multiplier), -2^30, 2^30))."""
    with np.errstate(over="ignore"):
        product: NDArray[np.float32] = np.rint(as_float32(acc) * multiplier)
    return np.clip(product, np.float32(-T_LIMIT), np.float32(T_LIMIT)).astype(np.int64)


def fraction(dtype: str) -> int:
    """Fraction bits of a sum before it is rounded to a dtype."""
    return INT16_FRACTION if dtype == INT16X4 else FRACTION


def scaled_term(steps: Int64, multiplier: Array | float) -> Int64:
    """An operand of a sum in its fraction bits: i32(clamp(rint(f32(steps) * multiplier), -TERM_LIMIT, TERM_LIMIT))."""
    with np.errstate(over="ignore"):
        product: NDArray[np.float32] = np.rint(steps.astype(np.float32) * np.asarray(multiplier, np.float32))
    return np.clip(product, np.float32(-TERM_LIMIT), np.float32(TERM_LIMIT)).astype(np.int64)


def ratio(x: QParams, y: QParams) -> float | None:
    """The float32 ratio of two scales; None where it is not finite."""
    found = float(np.float32(x.scale / y.scale))
    return found if np.isfinite(found) else None


def terms_fit(a: float, b: float) -> bool:
    """Whether a sum of terms up to |a| and |b| is right although each saturates at TERM_LIMIT. It is where neither
    saturates, or where the smaller is so far below the larger that the result saturates either way."""
    smaller, larger = sorted((abs(a), abs(b)))
    return larger <= TERM_LIMIT or (smaller <= TERM_LIMIT / 2 and larger < 3e38)


FLOAT_UNIT = 2.0**-32
"""The unit of the scales of float32 rows. Rows of larger values than 2^75 saturate."""

ROW_LIMIT = 2.0**107
"""The largest magnitude of a row, in units, that its scale follows."""

LARGEST_ROW_MULTIPLIER = 2.0**24
"""Bound of a multiplier that is multiplied with the scales of rows: the product stays a normal float32."""


def row_unit(x: QParams | None) -> QParams:
    """The quantization of int8 rows of what is quantized as `x`, or float32, but for the scales of the rows."""
    return QParams(x.scale if x else FLOAT_UNIT, 0)


def row_scale(largest: Array) -> NDArray[np.float32]:
    """The scale of rows whose largest magnitudes these are, in units: the smallest r * 2^e >= largest/127 with a whole
    r of 64..127, at least 1."""
    bits = np.clip(np.asarray(largest, np.float32), 127, ROW_LIMIT).astype(np.float32).view(np.uint32).astype(np.int64)
    mantissa, exponent = bits & 0x7FFFFF | 0x800000, bits >> 23
    r = -(-mantissa // (127 << 10))
    up = r > 127
    found = np.where(up, -(-mantissa // (127 << 11)), r)
    scale: NDArray[np.float64] = np.ldexp(found.astype(np.float64), (exponent - 140 + up).astype(np.int32))
    return scale.astype(np.float32)


def _row_parts(scale: Array) -> tuple[Int64, NDArray[np.int32]]:
    """r and e of scales r * 2^e of rows. Of other numbers what the kernels take them for."""
    bits = np.ascontiguousarray(scale, np.float32).view(np.uint32).astype(np.int64)
    r = (bits & 0x7FFFFF | 0x800000) >> 17
    return r, (np.clip(bits >> 23 & 255, 127, 227) - 133).astype(np.int32)


def row_inverse(scale: Array) -> NDArray[np.float32]:
    """What values are multiplied with instead of divided by the scales of rows: floor(2^30/r) * 2^(-30-e)."""
    r, e = _row_parts(scale)
    inverse: NDArray[np.float64] = np.ldexp(((1 << 30) // r).astype(np.float64), -30 - e)
    return inverse.astype(np.float32)


def row_multiplier(multiplier: Array, scale: Array) -> NDArray[np.float32]:
    """The product of multipliers with the scales of rows, rounded once to float32."""
    r, e = _row_parts(scale)
    product: NDArray[np.float64] = np.ldexp(r.astype(np.float64), e) * multiplier.astype(np.float64)
    return product.astype(np.float32)


def round_rows(x: Array, unit: float) -> NDArray[np.float32]:
    """Real numbers rounded as rows in int8 with scales of their own: multiples of the unit, as int16 stores them, or
    with FLOAT_UNIT any float32."""
    with np.errstate(over="ignore"):
        steps = np.nan_to_num(x.astype(np.float64) / unit, nan=0.0)
        steps = (steps if unit == FLOAT_UNIT else np.rint(steps)).astype(np.float32)
        scale = row_scale(np.abs(steps).max(-1, keepdims=True))
        rounded = np.rint(np.clip(steps * row_inverse(scale), np.float32(-127), np.float32(127)))
    real: NDArray[np.float64] = rounded.astype(np.float64) * (scale.astype(np.float64) * unit)
    return real.astype(np.float32)


def saturate(v: Int64, zero: int, lo: int, hi: int, dtype: str = INT8X4) -> Array:
    """clamp(v + zero, lo, hi) in a dtype of activations."""
    return np.clip(v + zero, lo, hi).astype(DTYPES[dtype])


def stored(call: Call, steps: Int64) -> Array:
    """Steps of a call's result as it is stored: with its zero point, within the call's attributes lo..hi."""
    return saturate(steps, call.q.zero, call.attrs["lo"], call.attrs["hi"], call.q.dtype)


def stored_fields(call: Call) -> dict[str, np.int32]:
    """The uniform fields of what `stored` adds and clamps to."""
    return {"zero": np.int32(call.q.zero), **{end: np.int32(call.attrs[end]) for end in ("lo", "hi")}}


def scaled_steps(v: Int64, factor: Array | float) -> Int64:
    """i32(clamp(rint(f32(v) * factor), -STEPS_LIMIT, STEPS_LIMIT)): whole numbers in steps of a result."""
    with np.errstate(over="ignore"):
        product: NDArray[np.float32] = np.rint(v.astype(np.int32).astype(np.float32) * np.asarray(factor, np.float32))
    return np.clip(product, np.float32(-STEPS_LIMIT), np.float32(STEPS_LIMIT)).astype(np.int64)


def table(function: Array, out: QParams, lo: int = -128, hi: int = 127) -> Array:
    """The table for `function`, the float64 values of a function at every q of its operand, in the dtype of `out`.
    Rounded exactly, half to even; a NaN becomes the zero point."""
    ratio = np.nan_to_num(np.asarray(function, np.float64) / out.scale, nan=0.0)
    steps: NDArray[np.float64] = np.rint(np.clip(ratio, -STEPS_LIMIT, STEPS_LIMIT))
    return np.clip(steps + out.zero, lo, hi).astype(DTYPES[out.dtype])


def sum_fits(a: int, b: int, shift: int) -> bool:
    """Whether an add fits int32: 255 steps of both operands by the multipliers a and b, and the rounding term."""
    return 255 * (abs(a) + abs(b)) + (1 << (shift - 1)) <= INT32_MAX


def levels(q: QParams) -> NDArray[np.float64]:
    """The real values of every q of a dtype, from the smallest, in float64."""
    low, high = q.range
    return (np.arange(low, high + 1, dtype=np.float64) - q.zero) * q.scale


def clamp_bounds(q: QParams, low: float, high: float, lo: int, hi: int) -> tuple[int, int]:
    """The int8 range [lo, hi] narrowed to the quantized bounds of the real interval [low, high].

    Quantization is monotonic, so clamping before it equals clamping its result to the quantized bounds. The bounds are
    rounded as `quantize` rounds, in float32.
    """
    ends = quantize(np.array([low, high], np.float32), q, lo, hi)
    return int(ends[0]), int(ends[1])
