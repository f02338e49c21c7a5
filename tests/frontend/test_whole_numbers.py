"""Divisions and other functions of one value before what jumps: floor, comparisons, conversions to integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, data

JUMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor of a quotient": lambda x: torch.floor(x / 49),
    "floor of a quotient by a tensor": lambda x: torch.floor(x / torch.tensor(49.0)),
    "floor of a product": lambda x: torch.floor(x * (1 / 41)),
    "floor of a product and a sum": lambda x: torch.floor(x * 0.1 - 7.3),
    "ceil by a number float32 rounds": lambda x: torch.ceil(x / 3.3),
    "floor division": lambda x: x // 3.3,
    "round": lambda x: torch.round(x / 10 - 3.5),
    "clamped and moved": lambda x: torch.floor(x / 10).clamp(1, 20).reshape(16, 16).t(),
    "compared": lambda x: (x + 3) / 50 >= 1,
    "compared with a tensor": lambda x: (x + 3) / 50 < torch.tensor(3.0),
    "integers": lambda x: ((x + 3) / 50).long(),
    "more integers than int8 has": lambda x: (x * 10.3 + 0.7).int(),
    "integers of whole numbers": lambda x: torch.floor(x / 37).long(),
}


@pytest.mark.parametrize("name", JUMPS)
def test_what_jumps_is_torchs(name: str, vulkan: Device) -> None:
    """Of every uint8 the number that torch gives: nothing is rounded to int8 on the way that could pass a jump."""
    module = Plain(lambda _, x: JUMPS[name](x.float())).eval()
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 256)
    model = q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False))
    expected = JUMPS[name](x.float()).numpy()
    np.testing.assert_array_equal(q8.Session(model, "reference")(x), expected)
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(x), expected)


def test_a_float_becomes_integers_unrounded(vulkan: Device) -> None:
    module = Plain(lambda _, x: (x * 100).long()).eval()
    x = data(1, 999)
    model = q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False))
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(x), module(x))


@pytest.mark.parametrize("function", [lambda x: torch.floor(x * 1000), lambda x: torch.floor(x * 20) / 8])
def test_what_int8_holds_no_step_for_is_rounded_by_its_range(function: Callable[[Tensor], Tensor]) -> None:
    """Whole numbers beyond int8, and what is made of whole numbers and is none."""
    x = data(1, 4096)
    module = Plain(lambda _, x: function(x)).eval()
    found = q8.Session(q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False)), "reference")(x)
    expected = function(x).numpy()
    assert np.abs(found - expected).max() <= np.ptp(expected) / 255 * 3
