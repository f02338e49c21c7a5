"""Numbers of windows, given for each dimension or once for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def repeated(numbers: Sequence[Any], count: int) -> tuple[Any, ...]:
    """`count` numbers. aten gives one for all dimensions, or one for both sides of each dimension, which is
    repeated."""
    return tuple(numbers) * (count // len(numbers))


def both(number: Any, count: int = 2) -> tuple[Any, ...]:
    """`count` numbers of a test case, which may give one for all."""
    return number if isinstance(number, tuple) else (number,) * count
