"""Signal-to-noise ratios for tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.quantization.parts import Judge


def decibels(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float | None:
    """Power of the expected values over that of the error, in dB; None if either is zero."""
    exact = expected.astype(np.float64)
    signal, error = float((exact**2).sum()), float(((exact - found) ** 2).sum())
    return 10 * float(np.log10(signal / error)) if signal and error else None


def worst_noise(expected: Sequence[np.ndarray[Any, Any]], found: Sequence[np.ndarray[Any, Any]]) -> float:
    """The noise to signal, as a ratio of powers, of one float output in several items: of the whole, or of its channels
    or items of like size where that is more, and at most 1 for these."""
    whole, *parts = Judge([[x] for x in expected]).noise([[x] for x in found])
    return max([whole, *(min(ratio, 1.0) for ratio in parts)])


def worst_decibels(expected: Sequence[np.ndarray[Any, Any]], found: Sequence[np.ndarray[Any, Any]]) -> float | None:
    """The signal to noise in dB of the part of an output that has most of it, as `worst_noise`; None if all is equal,
    or there is no signal."""
    if not any(x.any() for x in expected) or not (ratio := worst_noise(expected, found)):
        return None
    return -10 * math.log10(ratio)
