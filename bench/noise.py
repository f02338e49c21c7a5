"""How far a result is from what was expected, for tables."""

from __future__ import annotations

from typing import Any

import numpy as np


def decibels(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float | None:
    """Power of what was expected over that of the error; None where either is nothing but zeros."""
    exact = expected.astype(np.float64)
    signal, error = float((exact**2).sum()), float(((exact - found) ** 2).sum())
    return 10 * float(np.log10(signal / error)) if signal and error else None
