"""Elements that a where leaves out reach no result. They may be NaN, infinite, or far larger than the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from testbed.harness import flat
from tests.quantizing import INT8, Plain, conv, data

FORMS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "root": (lambda x: torch.where(x > 0, x.sqrt(), -x), 28),
    "root or 0": (lambda x: torch.where(x > 0, x.sqrt(), 0.0), 28),
    "second operand": (lambda x: torch.where(x <= 0, 0.25 * x, x.sqrt()), 28),
    "masked_fill": (lambda x: x.sqrt().masked_fill(x <= 0, 0.0), 28),
    "an island": (lambda x: torch.where(x.relu() > 0.25, 0.25 / x.relu(), 1.0), 28),
    "far larger": (lambda x: torch.where(x.abs() > 0.25, 0.0625 / (x * x + 1e-9), 1.0), 22),
    "through a product": (lambda x: torch.where(x > 0, x.sqrt() * x.roll(1, 1), 0.0), 28),
    "through a quotient": (lambda x: torch.where(x > 0, x.sqrt() / (1 + x).log(), 1.0).clamp(max=1.0), 22),
    "bools behind": (lambda x: (s := x.sqrt(), torch.where(x > 0, s, 0.0))[1], 28),
    "two choices": (lambda x: torch.where(x > 0, s := x.sqrt(), -x) + torch.where(x > 1, s, x.clamp(max=1)), 28),
    "nested": (lambda x: torch.where(x < 1, torch.where(x > 0, x.sqrt(), 0.0), 1.0), 28),
    "sizes": (
        lambda x: (
            torch.where(x > 0, (s := x[:, :1, :1, :1].exp()), x) + torch.where(x[..., :3] > 0, s, 0.0).sum(-1, True)
        ),
        22,
    ),
    "an average": (lambda x: torch.where(x < 0, x * F.avg_pool2d((2 * x).exp(), 3, 1, 1), 0.0), 28),
    "an average of rows": (lambda x: torch.where((s := x[:, :, 0]) < 0, s * x.exp().mean(-1), 0.0)[..., None], 28),
    "rows": (lambda x: torch.where(x[:, :1] > 0, x[:, :1].sqrt() * torch.ones(8, 1, 1), 0.0), 28),
}


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return Plain(lambda s, x: s.after(function(s.before(x))), before=conv(3, 8), after=conv(8, 8)).eval()


def decibels(module: nn.Module, model: q8.Model, x: Tensor) -> float:
    wanted = module(x).detach()
    (found,) = flat(q8.Session(model, "reference")(x.numpy()))
    return float(10 * torch.log10(wanted.square().sum() / (torch.from_numpy(found) - wanted).square().sum()))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_out_has_no_part_in_ranges(form: str, vulkan: Device) -> None:
    function, least = FORMS[form]
    module, x = between(function), data(2, 3, 8, 8)
    model = q8.compile(q8.quantize(module, (x,), [x, 0.7 * x], INT8, progress=False))
    (found,), (expected,) = (flat(q8.Session(model, device)(x.numpy())) for device in (vulkan, "reference"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if model.report().islands else 0)
    assert decibels(module, model, x) > least


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > -0.5, x.sqrt(), 0.0),
        lambda x: torch.where(x > 0, s := x.sqrt(), 0.0) + s,
        lambda x: torch.where(x > 0, s := x.sqrt(), 0.0) + torch.where(x > 0, 0.0, s),
    ],
)
def test_what_is_taken_has_to_be_finite(function: Callable[[Tensor], Tensor]) -> None:
    x = data(2, 3, 8, 8)
    with pytest.raises(q8.InputError, match=r"the value of \w*sqrt\w* .* is NaN or infinite on calibration item 0"):
        q8.quantize(between(function), (x,), [x], INT8, progress=False)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (FORMS["through a product"][0], "before: is stored in int16 since 8 bits are too few: here alone"),
        (lambda x: torch.where(x > 0.2, 0.2 / (x * x), 0.0), "mul: is not rounded since what is divided by comes near"),
    ],
)
@pytest.mark.filterwarnings("ignore:the outputs are predicted")
def test_what_else_is_stored_finely(function: Callable[[Tensor], Tensor], said: str) -> None:
    """The slope of a root is NaN for what is left out, and zeros hide neither an exponential nor a divisor."""
    x = data(2, 3, 8, 8)
    model = q8.compile(q8.quantize(between(function), (x,), [x, 0.7 * x, x.flip(0)], progress=False))
    assert any(note.startswith(said) for note in model.report().notes), model.report().notes
    assert not any("nan" in note for note in model.report().notes)
