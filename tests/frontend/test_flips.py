"""Choices that would flip more often than by the yardstick: what they follow from is not rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from testbed.noise import decibels
from testbed.yardstick import yardstick
from tests.precision_networks import WITHIN, quantized
from tests.quantizing import Plain, data

WHY = "since whole numbers follow from it"


def perceptron(*sizes: int) -> nn.Sequential:
    first, middle, last = sizes
    return nn.Sequential(nn.Linear(first, middle), nn.ReLU(), nn.Linear(middle, last))


def _experts(m: Any, x: Tensor) -> Tensor:
    """Mixes the two of four experts that a router prefers for a row."""
    shares, chosen = m.router(x).softmax(-1).topk(2, -1)
    weights = torch.zeros(len(x), 4).scatter(-1, chosen, shares / shares.sum(-1, keepdim=True))
    found: Tensor = m.head(sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(m.experts)))
    return found


def test_experts_change_no_more_often_than_by_the_yardstick() -> None:
    """One choice in seventy changed, and none of those that were simulated: 2 dB were lost."""
    torch.manual_seed(2)
    router, experts = nn.Linear(24, 4), nn.ModuleList(perceptron(24, 32, 24) for _ in range(4))
    module = Plain(_experts, router=router, experts=experts, head=nn.Linear(24, 6)).eval()
    every = [data(8, 24, seed=2000 + s) for s in range(532)]
    simulated, model = yardstick(module, every[:32]), q8.compile(quantized(module, every[:32]))
    session = q8.Session(model, "reference")
    with torch.no_grad():
        wanted, poor = (torch.cat([run(x) for x in every[32:]]).numpy() for run in (module, simulated))
    least, ours = decibels(wanted, poor), decibels(wanted, np.concatenate([session(x.numpy()) for x in every[32:]]))
    assert any(WHY in note for note in model.report().notes)
    assert least is not None
    assert ours is not None
    assert ours > least - WITHIN


FINITE: dict[str, Callable[[Tensor], Tensor]] = {
    "compared with infinity": lambda y: y.logsumexp(-1),
    "compared with itself": lambda y: torch.where(torch.isnan(y), 0.0, y).exp(),
}


@pytest.mark.parametrize("name", FINITE)
def test_whether_a_number_is_finite_does_not_follow_from_its_rounding(name: str) -> None:
    """So what is asked is rounded, and nothing is computed in float32."""
    torch.manual_seed(0)
    module = Plain(lambda m, x: FINITE[name](m.layers(x) ** 2), layers=perceptron(12, 16, 8)).eval()
    report = q8.compile(quantized(module, [data(16, 12, seed=s) for s in range(9)])).report()
    assert not report.float32
    assert not any(WHY in note for note in report.notes)


def test_an_order_that_is_an_output_follows_from_unrounded_scores() -> None:
    """Beside the scores themselves, which were as exact as they should be: no order of the simulated ones changed."""

    def ranked(m: Any, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.normalize(m.one(x), dim=-1) @ F.normalize(m.many(rows), dim=-1).T / 0.07
        return scores, scores.argsort(-1, descending=True)[:, :3]

    torch.manual_seed(0)
    module = Plain(ranked, one=perceptron(24, 64, 32), many=perceptron(16, 64, 32)).eval()
    items = [(data(1, 24, seed=s), data(20, 16, seed=1000 + s)) for s in range(32)]
    program = q8.quantize(module, items[0], calibration=items, progress=False)
    assert any(WHY in note for note in q8.compile(program).report().notes)


def test_values_that_are_unrounded_for_choices_have_the_order_of_the_graph() -> None:
    """The order of notes changed from run to run."""

    def forward(m: Any, *inputs: Tensor) -> Tensor:
        found: Tensor = m.head(torch.cat([torch.floor(4 * x) for x in inputs], -1))
        return found

    torch.manual_seed(0)
    items = [tuple(data(8, 6, seed=10 * s + i) for i in range(6)) for s in range(8)]
    module = Plain(forward, head=perceptron(36, 32, 4)).eval()
    report = q8.compile(q8.quantize(module, items[0], calibration=items, progress=False)).report()
    assert [note.split(":")[0] for note in report.notes if WHY in note] == [f"inputs_{i}" for i in range(6)]


_BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda h: h.where(h > 0, h.expm1()),
    "leaky": lambda h: torch.where(h > 0, h, 0.1 * h),
    "relu": lambda h: h * (h > 0),
    "abs": lambda h: torch.where(h > 0, h, -h),
}


@pytest.mark.parametrize("name", _BY_HAND)
@pytest.mark.parametrize("width", [48, 64])
def test_an_activation_by_hand_has_a_kink_and_no_choice_that_flips(name: str, width: int) -> None:
    """It was left unrounded, since the noise of a kink counted as that of flips."""
    torch.manual_seed(0)
    layers = {"first": perceptron(16, width, width), "head": nn.Linear(width, 6)}
    module = Plain(lambda m, x: m.head(_BY_HAND[name](m.first(x))), **layers).eval()
    report = q8.compile(quantized(module, [data(8, 16, seed=s) for s in range(32)])).report()
    assert not report.float32
    assert not any(WHY in note for note in report.notes)


def _splines(knots: Tensor, x: Tensor) -> Tensor:
    """The cubic splines between these knots, by the recursion of de Boor: (rows, inputs) -> (rows, inputs, splines)."""
    x = x[..., None]
    found = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
    for k in range(1, 4):
        rising = (x - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
        falling = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k])
        found = rising * found[..., :-1] + falling * found[..., 1:]
    return found


def test_an_interval_has_both_ends_unrounded_or_none() -> None:
    """One end was unrounded and the other not. Numbers between lay in two intervals or none, and 13 dB were lost."""
    knots = torch.arange(-3, 9) * 0.8 - 2.0

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer, splines in ((m.first, m.one), (m.second, m.two)):
            x = layer(F.silu(x)) + splines(_splines(knots, x).flatten(1))
        return x

    torch.manual_seed(0)
    layers = {"first": nn.Linear(6, 12), "second": nn.Linear(12, 3), "one": nn.Linear(48, 12), "two": nn.Linear(96, 3)}
    module = Plain(forward, **layers).eval()
    module.requires_grad_(False)
    for layer in layers.values():
        layer.weight.normal_(0.0, 0.5)
    every = [data(8, 6, seed=s) for s in range(16)]
    simulated, model = yardstick(module, every[:8]), q8.compile(quantized(module, every[:8]))
    session = q8.Session(model, "reference")
    wanted, poor = (torch.cat([run(x) for x in every[8:]]).numpy() for run in (module, simulated))
    least, ours = decibels(wanted, poor), decibels(wanted, np.concatenate([session(x.numpy()) for x in every[8:]]))
    assert least is not None
    assert ours is not None
    assert ours > least - WITHIN


def test_an_index_that_rounding_moves_out_of_range_is_clamped() -> None:
    """As a device does: how many scores share a sum follows from them. The simulation ended with torch's error."""

    def sparsemax(m: Any, x: Tensor) -> Tensor:
        scores = m.score(x)[..., 0]
        ordered = scores.sort(-1, descending=True).values
        sums = ordered.cumsum(-1)
        count = (1 + torch.arange(1.0, 17) * ordered > sums).sum(-1, keepdim=True)
        shares = F.relu(scores - (sums.gather(-1, count - 1) - 1) / count)
        found: Tensor = m.head((shares[..., None] * x).sum(1))
        return found

    torch.manual_seed(0)
    score = perceptron(8, 32, 1)
    module = Plain(sparsemax, score=score, head=nn.Linear(8, 3)).eval()
    every = [16 * data(8, 16, 8, seed=s) for s in range(16)]
    model = q8.compile(quantized(module, every[:8]))
    wanted, x = module(every[9]).detach().numpy(), every[9].numpy()
    ratio = decibels(wanted, q8.Session(model, "reference")(x))
    assert ratio is None or ratio > 20


@torch.no_grad()
def test_indices_of_several_dimensions_are_clamped_each_to_its_own() -> None:
    """The largest score gives the last row in float. Rounding makes it larger, and gives a row behind it."""

    def places(m: Any, x: Tensor, rows: int) -> Tensor:
        found: Tensor = rows * m.score(x)[..., 0] / m.largest - 1e-3
        return found.floor().long().clamp(min=0)

    def looked_up(m: Any, x: Tensor) -> Tensor:
        found: Tensor = m.head(m.table[:, places(m, x, 3), places(m, x, 5)].permute(1, 2, 0))
        return found

    torch.manual_seed(2)
    module: Any = Plain(looked_up, score=nn.Linear(8, 1), head=nn.Linear(4, 3)).eval()
    x = data(8, 16, 8)
    module.register_buffer("table", torch.randn(4, 3, 5))
    module.largest = float(module.score(x).max())
    assert quantized(module, [x] * 8)
