"""Bias correction: rounded weights do not move what a layer gives on average."""

from __future__ import annotations

import torch
from torch import nn

import q8ta_wgpu as q8
from tests.quantizing import Plain, data


def moved(correct: bool) -> list[float]:
    """By how much each of three layers' channels move on average, in all, against the float module."""
    torch.manual_seed(0)
    module = Plain(
        lambda s, x: (s.a(x), s.b(x), s.c(x)),
        a=nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        b=nn.ConvTranspose2d(6, 4, 2, 2, groups=2),
        c=nn.Linear(5, 7),
    ).eval()
    x = data(4, 6, 5, 5).abs() + 2
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    program = q8.quantize(module, (x,), [x], q8.Quantizer(correct_biases=correct), progress=False)
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    # A linear's outputs are its last dimension; what rounding the input changes is the same for both.
    with torch.no_grad():
        pairs = zip(program.module()(x), module(x), ((0, 2, 3), (0, 2, 3), (0, 1, 2)), strict=True)
        return [float((found - exact).mean(axes).abs().sum()) for found, exact, axes in pairs]


def test_biases_take_back_what_rounding_weights_moves() -> None:
    for corrected, plain in zip(moved(True), moved(False), strict=True):
        assert corrected < plain / 5
