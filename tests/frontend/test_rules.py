"""Every rule has a guard: a network that loses without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.quantization.rules import RULES, left_out
from testbed.noise import decibels
from tests.frontend.test_flips import perceptron
from tests.frontend.test_kept_errors import ratios
from tests.frontend.test_reach import below, boxes, turned
from tests.precision_networks import NETWORKS
from tests.quantizing import Plain, data

LEAST = 0.5
"""What a guard loses without its rule, in dB, or in percent of orders that change."""


def _soft_argmax(m: Any, x: Tensor) -> Tensor:
    weights = (40 * m.heat(x)).flatten(2).softmax(-1).reshape(-1, 5, 32, 32)
    places = torch.linspace(-1, 1, 32)
    return torch.stack([(weights.sum(2) * places).sum(-1), (weights.sum(3) * places).sum(-1)], -1)


def a_soft_argmax() -> float:
    """dB below the yardstick: the mean position in heat maps, weighted by a softmax."""
    torch.manual_seed(0)
    heat = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 3, padding=1))
    items = [(_shapes(i),) for i in range(8)]
    return below(Plain(_soft_argmax, heat=heat).eval().requires_grad_(False), items[:2], items[2:])


def _shapes(seed: int) -> Tensor:
    """Images of coarse and fine shapes, in 0..1."""
    random = torch.Generator().manual_seed(seed)
    parts = [
        F.interpolate(torch.rand(8, 3, size, size, generator=random), (32, 32), mode="bilinear") / size**0.5
        for size in (3, 7, 32)
    ]
    return sum(parts[1:], parts[0]) / sum(parts[1:], parts[0]).amax((1, 2, 3), keepdim=True)


def an_order_of_scores() -> float:
    """Percent of the three best of 20 rows that are others than in float: of those that are simulated, few or none
    change."""

    def ranked(m: Any, x: Tensor, rows: Tensor) -> Tensor:
        scores = F.normalize(m.one(x), dim=-1) @ F.normalize(m.many(rows), dim=-1).T / 0.07
        return scores.argsort(-1, descending=True)[:, :3]

    torch.manual_seed(0)
    module = Plain(ranked, one=perceptron(24, 64, 32), many=perceptron(16, 64, 32)).eval()
    items = [(data(1, 24, seed=s), data(20, 16, seed=1000 + s)) for s in range(232)]
    model = q8.compile(q8.quantize(module, items[0], calibration=items[:32], progress=False))
    session = q8.Session(model, "reference")
    with torch.no_grad():
        changed = [np.asarray(session(*(x.numpy() for x in i))) != module(*i).numpy() for i in items[32:]]
    return 100 * float(np.mean(changed))


def infinities_that_are_replaced() -> float:
    """dB that are lost where an input holds an infinity that the module replaces."""
    torch.manual_seed(0)
    module = Plain(lambda m, x: m.layer(torch.where(x == float("inf"), 2.0, x)), layer=nn.Linear(8, 4)).eval()
    items, x = [data(4, 8, seed=i) for i in range(9)], data(4, 8, seed=20)
    x[1, 2] = float("inf")
    session = q8.Session(q8.compile(q8.quantize(module, (items[0],), items, progress=False)), "reference")
    with torch.no_grad():
        return -(decibels(module(x).numpy(), session(x.numpy())) or 120.0)


def shares_of_next_to_nothing() -> float:
    """dB below the yardstick: of two powers each, of which both may be nearly nothing."""
    build, given = NETWORKS["shares of next to nothing"]
    torch.manual_seed(0)
    return below(build().eval(), [(given(s),) for s in range(1, 5)], [(given(9),)])


GUARDS: dict[str, Callable[[], float]] = {
    "infinities that are replaced": infinities_that_are_replaced,
    "an order of scores": an_order_of_scores,
    "a soft argmax": a_soft_argmax,
    "sizes of boxes": lambda: below(*boxes(5, 8)),
    "shares of next to nothing": shares_of_next_to_nothing,
    "a delta rule": lambda: -ratios("delta rule")[1],
    "a matrix that turns points": lambda: below(*turned(6)),
}
"""By name: what a network loses, larger is worse."""


@pytest.mark.filterwarnings("ignore:.*predicted to keep")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_a_guard_that_loses_without_it(rule: Any) -> None:
    found = GUARDS[rule.guard]()
    with left_out(rule.name):
        assert GUARDS[rule.guard]() > found + LEAST


def test_a_rule_that_is_not_there_cannot_be_left_out() -> None:
    with (
        pytest.raises(q8.InputError, match="no rule is called 'scroes': there are asked, choices, scores"),
        left_out("scroes"),
    ):
        pass
