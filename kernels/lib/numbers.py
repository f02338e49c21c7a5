"""Numbers of windows, one for each dimension or fewer that stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def repeated(numbers: Sequence[Any], count: int) -> tuple[Any, ...]:
    """`count` numbers: what aten gives as one for all dimensions, or as one for both sides of each, is repeated."""
    return tuple(numbers) * (count // len(numbers))


def both(number: Any, count: int = 2) -> tuple[Any, ...]:
    """What a test case gives: `count` numbers, or one that stands for all."""
    return number if isinstance(number, tuple) else (number,) * count
