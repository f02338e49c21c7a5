"""What calibration finds at values that cannot be rounded."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import Array


class ValueFaultError(InputError):
    """A value that is NaN or infinite, or so close to zero that it has no scale.

    Attributes:
        value: its name in the float graph.
        item: the index of the calibration's item; None where it is so in all.
        said: what is wrong with its range; or in which rows it is not finite, empty where it is so in all.
    """

    def __init__(self, value: str, item: int | None, said: str) -> None:
        self.value, self.item, self.said = value, item, said
        leads = (
            f"item {item} of the calibration leads to NaN or an infinity at {value}{said}: clean the calibration data"
        )
        super().__init__(f"the value {value} {said}" if item is None else leads)


def rows_not_finite(array: Array) -> str:
    """In which rows, along the first dimension, a value is not finite; empty if it is so in all."""
    wrong = ~np.isfinite(array).reshape(len(array), -1).all(1) if array.ndim > 1 else np.ones(1, bool)
    if wrong.all():
        return ""
    first, *others = np.flatnonzero(wrong).tolist()
    return f" (in row {first}{f' and {len(others)} more' if others else ''} of {len(array)})"
