"""Arrays that commands make where none are given."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.commands.arguments import random_array
from q8ta_wgpu.model.model import Input


@pytest.mark.parametrize(
    ("dtype", "bounds", "found"),
    [("uint8", None, (0, 255)), ("int32", (1, 9), (1, 9)), ("bool", None, (0, 1)), ("int8", None, (-128, 127))],
)
def test_random_arrays_are_what_an_input_takes(
    dtype: str, bounds: tuple[int, int] | None, found: tuple[int, int]
) -> None:
    taken = Input((2, 3000), array_dtype=dtype, bounds=bounds)
    rows = random_array(taken, (5, 3000), np.random.default_rng(0))
    assert rows.dtype == dtype and rows.shape == (5, 3000) and (rows.min(), rows.max()) == found
