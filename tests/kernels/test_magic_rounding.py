"""Rounding by additions gives what the contract's definition gives: in numpy, step by step as the WGSL does it."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.arithmetic import FRACTION, OFFSET_LIMIT
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.kernels.epilogue import magic_rounding
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Residual


def _rounded(acc: Array, multiplier: Array, packed: Array, zero: int, added: Array, ends: tuple[int, int]) -> Array:
    """`requantized_by_magic` of kernels/epilogue/stages.wgsl. `added` is what `before_rounding` adds: with a residual
    the sum is clamped again."""
    offset, low, high, magic = packed[:, 0], *(packed[:, i].view(np.float32) for i in (1, 2, 3))
    with np.errstate(over="ignore"):
        t = np.clip(acc.astype(np.float32) * multiplier, low, high) + magic
        assert t.dtype == np.float32 and np.all((t >= 2**23) & (t < 2**24))
        v = t.view(np.int32) + offset + added.astype(np.int32)
        least, most = (np.float32(3 * 2**22 + ((end - zero) << FRACTION)) for end in ends)
        within = np.clip(v.view(np.float32), least, most) if added.any() else v.view(np.float32)
        whole = (within + np.float32(3 * 2**36)).view(np.int32)
    rounded: Array = whole - 0x52400300 + zero
    return rounded


def _accumulators(multiplier: Array, offset: Array, rng: np.random.Generator) -> Array:
    """Half of them near what gives an int8 value that does not saturate, the rest anywhere."""
    within = (rng.integers(-300, 300, offset.shape) * 2**13 - offset) / np.maximum(multiplier.astype(np.float64), 1e-30)
    anywhere = rng.integers(-(2**31), 2**31, offset.shape) >> rng.integers(0, 30, offset.shape)
    ends = 2.0**31 - 128
    return np.where(rng.random(offset.shape) < 0.5, np.clip(within, -ends, ends), anywhere).astype(np.int64)


@pytest.mark.parametrize("zero", [-128, -127, -1, 0, 5, 127])
@pytest.mark.parametrize(("lo", "hi"), [(-128, 127), (0, 127), (-3, 90), (7, 7)])
@pytest.mark.parametrize("residual", [0, 1, 9001, 16384])
def test_equals_the_definition(zero: int, lo: int, hi: int, residual: int) -> None:
    """Ties, saturation both ways, offsets up to their limit, products past 2^31 and past float32's range."""
    rng = np.random.default_rng((zero + 200, lo + 200, hi + 200, residual))
    count = 20_000
    halves = 2.0 ** rng.integers(-12, 16, count)
    multiplier = np.where(rng.random(count) < 0.5, halves, np.exp(rng.uniform(-20, 80, count))).astype(np.float32)
    limit = np.minimum(2.0 ** rng.integers(0, 30, count), float(OFFSET_LIMIT))
    offset = np.clip(rng.uniform(-1, 1, count) * limit * 1.5, -limit, limit).astype(np.int64)
    acc = _accumulators(multiplier, offset, rng)
    added = rng.integers(-128, 128, count) * residual
    stages = (Residual(residual), Requantize(lo, hi)) if residual else (Requantize(lo, hi),)
    assert Epilogue(stages).rounds_by_addition
    t = arithmetic.scaled_accumulator(acc, multiplier)
    expected = arithmetic.saturate(arithmetic.rte(t + offset + added, FRACTION), zero, lo, hi)
    lowest, highest = ((end - zero) << FRACTION for end in (lo, hi))
    packed = magic_rounding.pack(offset, lowest - 127 * residual, highest + 128 * residual)
    found = _rounded(acc, multiplier, packed.transpose(0, 2, 1).reshape(-1, 4), zero, added, (lo, hi))
    np.testing.assert_array_equal(found, expected)


def test_a_residual_too_large_is_not_rounded_by_additions() -> None:
    """Its interval has more whole numbers than floats between 2^23 and 2^24."""
    assert not Epilogue((Residual(20_000), Requantize(-128, 127))).rounds_by_addition
    assert Epilogue((Residual(20_000), Requantize(0, 0))).rounds_by_addition
