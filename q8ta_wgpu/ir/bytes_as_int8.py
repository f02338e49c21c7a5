"""How graphs store arrays of single bytes: uint8 as int8 that is 128 less, bools as int8 of 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def store(target: NDArray[Any], given: NDArray[Any]) -> None:
    """Writes an array as a graph stores it. The bytes of bools may be others than 0 and 1. Arrays of other dtypes are
    copied."""
    if given.dtype == np.uint8:
        np.bitwise_xor(given, 128, out=target.view(np.uint8))
    else:
        np.copyto(target, given)


def give(target: NDArray[np.uint8], stored: NDArray[Any]) -> None:
    """Writes the uint8 that int8 stands for. Both may be the same memory."""
    np.bitwise_xor(stored.view(np.uint8), 128, out=target)
