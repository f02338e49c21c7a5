"""Ranges of few values that matter: results are at most a decibel below the yardstick's, on other inputs as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from testbed.noise import decibels
from testbed.yardstick import yardstick
from tests.precision_networks import ENOUGH
from tests.quantizing import Plain, data

Item = tuple[Tensor, ...]


def below(module: nn.Module, calibration: Sequence[Item], judged: Sequence[Item]) -> float:
    """By how many dB the int8 module's output that is farthest below the yardstick's is below it."""
    program = q8.quantize(module, calibration[0], calibration=calibration, progress=False)
    session, simulated = q8.Session(q8.compile(program), "reference"), yardstick(module, calibration)
    with torch.no_grad():
        wanted = [_arrays(module(*item)) for item in judged]
        other = [_arrays(simulated(*item)) for item in judged]
    ours = [_arrays(session(*(x.numpy() for x in item))) for item in judged]
    found = [[np.stack(each) for each in zip(*items, strict=True)] for items in (wanted, ours, other)]
    ratios = ((decibels(exact, x) or ENOUGH, decibels(exact, y) or ENOUGH) for exact, x, y in zip(*found, strict=True))
    return max(min(least, ENOUGH) - ratio for ratio, least in ratios)


def _arrays(found: object) -> list[Any]:
    return [np.asarray(x) for x in pytree.tree_leaves(found)]


def _cloud(seed: int) -> Item:
    return (data(1, 256, 3, seed=seed),)


def turned(seed: int) -> tuple[nn.Module, list[Item], list[Item]]:
    """A network in which a matrix of nine numbers turns all points; eight clouds to calibrate with, and others."""

    def forward(m: Plain, x: Tensor) -> Tensor:
        turn = m.get_submodule("turn")(m.get_submodule("points")(x).relu().amax(1))
        return torch.bmm(x, turn.view(-1, 3, 3) + torch.eye(3))

    def cloud(i: int) -> Item:
        sizes = 0.5 + torch.rand(3, generator=torch.Generator().manual_seed(i + 7))
        return (sizes * _cloud(1000 * seed + i)[0],)

    torch.manual_seed(seed)
    layers = {"points": nn.Linear(3, 64), "turn": nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 9))}
    module = Plain(forward, **layers).eval().requires_grad_(False)
    return module, list(map(cloud, range(8))), list(map(cloud, range(500, 548)))


@pytest.mark.parametrize("seed", [4, 6])
def test_few_values_have_room_for_other_inputs(seed: int) -> None:
    """Eight clouds tell little of a matrix's range: other clouds had 2 dB and 7 dB less than the yardstick."""
    assert below(*turned(seed)) < 1


class Boxes(nn.Module):
    """A detector of which a head gives a box at each of 64 places: its position, its size and its classes, or all of
    them in one result, with logits of the classes."""

    grid: Tensor
    anchor: Tensor

    def __init__(self, joined: bool = False) -> None:
        super().__init__()
        self.joined = joined
        self.first, self.second, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 7, 1)
        self.head.weight.data *= 6
        self.register_buffer("grid", torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)))
        self.register_buffer("anchor", torch.tensor([10.0, 13.0]))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = self.head(self.second(self.first(x).relu()).relu()).view(1, 7, 64).transpose(1, 2)
        positions, sizes = found[..., :2].sigmoid() + self.grid, found[..., 2:4].exp() * self.anchor
        if self.joined:
            return torch.cat([positions, 4 * sizes, found[..., 4:]], -1)
        return positions, sizes, found[..., 4:].sigmoid()


def _image(seed: int) -> Item:
    return (nn.functional.interpolate(data(1, 3, 8, 8, seed=seed), scale_factor=4.0, mode="bilinear"),)


def boxes(seed: int, count: int) -> tuple[nn.Module, list[Item], list[Item]]:
    """A detector, images to calibrate with, and others."""
    torch.manual_seed(seed)
    images = [_image(1000 * seed + 10 * i) for i in range(count)]
    return Boxes().eval().requires_grad_(False), images, [_image(1000 * seed + 7000 + 10 * i) for i in range(24)]


@pytest.mark.parametrize(("seed", "count"), [(0, 9), (5, 8)])
def test_sizes_that_are_exponentials_have_room_for_other_inputs(seed: int, count: int) -> None:
    """Few boxes are far larger than the others. They were clipped: 4 dB less than the yardstick had."""
    assert below(*boxes(seed, count)) < 1


@pytest.mark.parametrize("seed", [1, 4])
def test_an_exponential_reads_finely_what_shares_a_scale_with_its_result(seed: int) -> None:
    """A cat has one scale: steps that are fine enough for sizes of boxes were far too coarse for their logarithms."""
    torch.manual_seed(seed)
    images = [_image(1000 * seed + 10 * i) for i in range(12)]
    assert below(Boxes(joined=True).eval().requires_grad_(False), images, images) < 1


EXPONENTIALS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a stream behind one": lambda m, x: m.last(m.more(m.first(x).exp()) + m.first(x).exp() + m.more(x)),
    "none above 1": lambda m, x: m.last(m.more(x) * (-nn.functional.softplus(m.first(x))).exp() + x),
    "of negative squares": lambda m, x: m.last(m.more(x) * (-(m.first(x) ** 2)).exp() + x),
}


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_what_an_exponential_does_not_widen(name: str) -> None:
    """A decay of at most 1, and a residual stream behind an exponential: int8 is enough, and stays."""
    torch.manual_seed(0)
    layers = {each: nn.Linear(16, 16) for each in ("first", "more", "last")}
    module = Plain(EXPONENTIALS[name], **layers).eval()
    items = [data(64, 16, seed=i) for i in range(20)]
    report = q8.compile(q8.quantize(module, (items[0],), items, progress=False)).report()
    assert not [note for note in report.notes if "exponential" in note and "add" in note.split(":")[0]]
    if name != "a stream behind one":
        assert not [note for note in report.notes if "exponential" in note], report.notes
