"""Attributes of windows with a number for each dimension, or one number for all dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def repeated(numbers: Sequence[Any], count: int) -> tuple[Any, ...]:
    """`numbers` repeated to `count` entries: in aten a number may stand for all dimensions, or for both sides of
    one."""
    return tuple(numbers) * (count // len(numbers))


def both(number: Any, count: int = 2) -> tuple[Any, ...]:
    """`number` if it is a tuple, else a tuple of `count` copies of it. For test cases."""
    return number if isinstance(number, tuple) else (number,) * count
