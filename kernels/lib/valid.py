"""Functions for `Operand.valid`: what kernels require of the numbers in constant operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call

Valid = Callable[[Call, Sequence[Array | None]], str]


def finite(position: int, negative: bool = True) -> Valid:
    """The operand at a position must be finite, and not `negative` where that is False."""

    def valid(call: Call, arrays: Sequence[Array | None]) -> str:
        found = arrays[position]
        assert found is not None
        bad = found[~(np.isfinite(found) & (negative | (found >= 0)))]
        return f"must be finite{'' if negative else ' and not negative'}, found {bad[0]}" if bad.size else ""

    return valid


def within(position: int, limit: float) -> Valid:
    """The integers of the operand at a position must be in [-limit, limit]."""

    def valid(call: Call, arrays: Sequence[Array | None]) -> str:
        found = arrays[position]
        assert found is not None
        bad = found[(found < -limit) | (found > limit)]
        return f"must be in [{-limit:.0f}, {limit:.0f}], found {bad[0]}" if bad.size else ""

    return valid
