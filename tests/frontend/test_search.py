"""Which steps are taken, where each takes a known part of the noise away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.search import Search
from q8ta_wgpu.frontend.calibrate.simulate import Stored, Width
from q8ta_wgpu.frontend.calibrate.steps import Step

COUNT, GAIN, COST = 40, 0.02, 100.0
NOISE = 1.0
"""Of int8 everywhere; each step takes GAIN of it away, all of them 0.8."""


def _steps(cost: float = COST) -> list[Step]:
    observer = torch.nn.Identity()
    return [Step((Stored(observer), "others"), "int16", GAIN, GAIN, cost) for _ in range(COUNT)]


def _search(wanted: float, few: bool, traffic: float = 1.0, true: float = 1.0) -> tuple[Search, list[int]]:
    """Where `true` of what is said to be gained is; how many values each run has widened."""
    runs: list[int] = []

    def noise(chosen: Mapping[Reading, Width]) -> list[float]:
        runs.append(len(chosen))
        return [NOISE - true * GAIN * len(chosen)]

    return Search(noise, [wanted], [wanted], traffic, few), runs


def _noise(steps: Sequence[Step], true: float = 1.0) -> float:
    return NOISE - true * GAIN * len(steps)


@pytest.mark.parametrize("few", [False, True])
def test_as_few_as_suffice(few: bool) -> None:
    search, _ = _search(0.7, few)
    steps = search.enough(_steps())
    assert 0.7 - 4 * GAIN < _noise(steps) <= 0.7
    assert len(steps) < COUNT / 2


def test_the_noise_that_was_found_says_how_many_a_large_network_takes() -> None:
    """None of the runs has more than these; parts that cost next to nothing are not tried without."""
    search, runs = _search(0.7, few=True, traffic=COUNT * COUNT * COST)
    steps = search.enough(_steps())
    assert runs == [0, len(steps)]


def test_twice_as_many_are_taken_where_the_first_do_not_suffice() -> None:
    search, runs = _search(0.7, few=True, traffic=COUNT * COUNT * COST, true=0.6)
    steps = search.enough(_steps())
    assert _noise(steps, 0.6) <= 0.7
    assert runs == [0, len(steps) // 2, len(steps)]


@pytest.mark.parametrize("few", [False, True])
def test_out_of_reach_comes_near_to_all(few: bool) -> None:
    search, _ = _search(0.05, few)
    steps = search.enough(_steps())
    assert _noise(steps) <= 1.2 * _noise(_steps())
