"""Outputs in which a low number stands for what is not allowed: it hides no noise of the others."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.quantization.parts import fill_of
from testbed.noise import decibels


class Policy(nn.Module):
    """Logits of a table's rows, of which some are not allowed."""

    def __init__(self, fill: float | None) -> None:
        super().__init__()
        self.fill = fill
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, x: Tensor, legal: Tensor) -> Tensor:
        y: Tensor = self.last(self.norm(self.first(x) ** 3))
        return y if self.fill is None else y.masked_fill(~legal, self.fill)


def _item(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    columns = torch.logspace(-2, 2, 16)
    return torch.randn(3, 16, generator=draw) * columns, torch.rand(3, 12, generator=draw) < 0.6


@pytest.mark.parametrize("fill", [-100.0, -1e9, float("-inf")])
def test_allowed_logits_are_as_exact_as_without_a_mask(fill: float) -> None:
    """They had 8 dB, and were predicted to have 91 to 120."""
    found = {}
    for number in (None, fill):
        torch.manual_seed(3)
        module, items = Policy(number).eval(), [_item(seed) for seed in range(64)]
        exported = q8.quantize(module, items[0], calibration=items, progress=False)
        model = q8.compile(exported)
        alone = re.findall(r"alone they would make ([\d.,e-]+) (% of|times) the noise", "".join(model.report().notes))
        assert alone and all(float(share) > 0.1 for share, of in alone if of != "times")  # 120 dB were nothing
        session, wanted, ours = q8.Session(model, "reference"), [], []
        for x, legal in (_item(1000 + i) for i in range(30)):
            wanted.append(module(x, legal)[legal].detach().numpy())
            ours.append(session(x, legal)[legal.numpy()])
        compared = q8.compare(module, exported, _item(7))
        assert compared.predicted is not None
        found[number] = decibels(np.concatenate(wanted), np.concatenate(ours)), compared.predicted
    (plain, foretold), (masked, predicted) = found[None], found[fill]
    assert plain is not None and masked is not None
    assert masked > plain - 3
    assert abs(predicted - foretold) < 3
    assert abs(predicted - masked) < 4


def test_what_stands_for_masked_elements() -> None:
    """Several equal numbers that are far from all others."""
    low, inf = np.array([-1e9, 3.0, -1e9, -2.0]), float("inf")
    assert fill_of([low]) == low.min()
    assert fill_of([np.array([-inf, 3.0]), np.array([1.0, -inf])]) == -inf
    assert fill_of([np.array([1e9, 3.0, 1e9])]) == 1e9
    for none in ([-1e9, 3.0], [-5.0, 3.0, -5.0], [1.0, 0.0, 1.0], [-7.0, -7.0], [255.0, 255.0, 1.0], []):
        assert fill_of([np.array(none)]) is None
    assert fill_of([np.array([-100, -100, 3])]) is None
