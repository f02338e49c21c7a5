"""Signal-to-noise ratios for tables."""

from __future__ import annotations

from typing import Any

import numpy as np


def decibels(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float | None:
    """Power of the expected values over that of the error, in dB; None if either is zero."""
    exact = expected.astype(np.float64)
    signal, error = float((exact**2).sum()), float(((exact - found) ** 2).sum())
    return 10 * float(np.log10(signal / error)) if signal and error else None
