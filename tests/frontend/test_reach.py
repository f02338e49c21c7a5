"""Ranges of few values that matter: results are at most a decibel below the yardstick's, on other inputs as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from bench.noise import decibels
from bench.yardstick import yardstick
from tests.quantizing import Plain, data

Item = tuple[Tensor, ...]


def _ratios(module: nn.Module, calibration: Sequence[Item], judged: Sequence[Item]) -> tuple[float, float]:
    """Signal to noise in dB of the int8 module and of the yardstick."""
    program = q8.quantize(module, calibration[0], calibration=calibration, progress=False)
    session, simulated = q8.Session(q8.compile(program), "reference"), yardstick(module, calibration)
    with torch.no_grad():
        wanted = np.stack([module(*item).numpy() for item in judged])
        other = np.stack([simulated(*item).numpy() for item in judged])
    ours = np.stack([session(*(x.numpy() for x in item)) for item in judged])
    found = decibels(wanted, ours), decibels(wanted, other)
    assert found[0] is not None and found[1] is not None
    return found[0], found[1]


def _clouds(seed: int, size: float = 1.0) -> Item:
    return (size * data(1, 256, 3, seed=seed),)


@pytest.mark.parametrize(("seed", "size"), [(2, 2.0), (3, 1.5)])
def test_what_a_maximum_leaves_out_sets_no_range(seed: int, size: float) -> None:
    """The values of which few are kept are many. Clipping few of them clipped most that were kept of the largest cloud:
    6 dB less than the yardstick had."""
    torch.manual_seed(seed)
    layers = {"points": nn.Linear(3, 32), "more": nn.Linear(32, 64), "head": nn.Linear(64, 8)}
    module = Plain(lambda m, x: m.head(m.more(m.points(x).relu()).amax(1)), **layers).eval().requires_grad_(False)
    clouds = [*(_clouds(100 * seed + i) for i in range(14)), _clouds(100 * seed + 15, size)]
    ours, other = _ratios(module, clouds, clouds)
    assert ours > other - 1


@pytest.mark.parametrize("seed", [4, 6])
def test_few_values_have_room_for_other_inputs(seed: int) -> None:
    """A matrix of nine numbers turns all points. Eight clouds tell little of its range: other clouds had 2 dB and 7 dB
    less than the yardstick."""

    def forward(m: Plain, x: Tensor) -> Tensor:
        turn = m.get_submodule("turn")(m.get_submodule("points")(x).relu().amax(1))
        return torch.bmm(x, turn.view(-1, 3, 3) + torch.eye(3))

    def cloud(i: int) -> Item:
        sizes = 0.5 + torch.rand(3, generator=torch.Generator().manual_seed(i + 7))
        return (sizes * _clouds(1000 * seed + i)[0],)

    torch.manual_seed(seed)
    layers = {"points": nn.Linear(3, 64), "turn": nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 9))}
    module = Plain(forward, **layers).eval().requires_grad_(False)
    ours, other = _ratios(module, list(map(cloud, range(8))), list(map(cloud, range(500, 548))))
    assert ours > other - 1
