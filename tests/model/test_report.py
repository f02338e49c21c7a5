"""What a report says: how much of the work is int8, and why each island is none of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import q8ta_wgpu as q8


def test_work_and_the_reason_of_every_island() -> None:
    middle = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(4)))
    module = nn.Sequential(nn.Conv2d(3, 4, 1), middle, nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    report = q8.compile(q8.quantize(module, (x,), [x], quantizer=q8.Quantizer(skip=["1"]), progress=False)).report()
    assert "\n4 float islands between" in str(report)
    assert "\n1 float island between" in str(replace(report, islands=report.islands[:1]))
    assert report.macs == (25 * (3 * 4 + 4 * 2), 25 * (3 * 4 + 4 * 4 * 4 + 4 * 2))
    assert len(report.islands) == 4
    cause = "conv2d stays in float32: Quantizer(skip=...) names its module, or an index or a comparison depends on it"
    assert {reason: len(notes) for reason, notes in report.reasons.items()} == {cause: 4}
    assert {note.partition(": ")[0] for note in report.reasons[cause]} == set(report.islands)
    text = str(report)
    assert "23.8 % of 2.1 k multiply-adds in int8" in text
    assert f"conv2d_1: {cause} (1.0)" in text
    assert text.count(cause) == 1 and text.endswith("), and 3 more")


def test_a_model_without_products_says_nothing_of_them() -> None:
    x = torch.ones(1, 4)
    text = str(q8.compile(q8.quantize(nn.ReLU().eval(), (x,), [x], progress=False)).report())
    assert "multiply-adds" not in text


def test_products_of_activations_have_no_weights_of_4_bits() -> None:
    """Their second operand has three dimensions, as weights of 4 bits have."""

    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x @ y

    x, y = (torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    report = q8.compile(q8.quantize(Product().eval(), (x, y), [(x, y)], progress=False)).report()
    assert any("matmul" in name for name in report.int8)
    assert "4 bits" not in str(report)
