"""Attributes of tested calls with a number for each dimension."""

from __future__ import annotations

from typing import Any


def both(number: Any, count: int = 2) -> tuple[Any, ...]:
    """`number` if it is a tuple, else a tuple of `count` copies of it. For test cases."""
    return number if isinstance(number, tuple) else (number,) * count
