"""Which steps are taken, where each takes a known part of the noise away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.search import Search
from q8ta_wgpu.frontend.calibrate.steps import Step
from q8ta_wgpu.frontend.calibrate.stored import Stored
from q8ta_wgpu.quantization.stored import Width

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


def test_where_all_that_is_foretold_is_too_little_one_more_run_tells_how_many() -> None:
    """Besides those of none and of all: noise falls between them as the gains say, only more."""
    search, runs = _search(0.15, few=True, traffic=COUNT * COUNT * COST, true=1.2)
    steps = search.enough(_steps())
    assert list(dict.fromkeys(runs)) == [0, COUNT, len(steps)]
    assert 0.15 - 2 * GAIN < _noise(steps, 1.2) <= 0.15


def test_a_group_that_gains_far_more_than_can_be_spared_is_not_tried() -> None:
    """Where runs take time. As many steps are taken as where every group is tried."""
    wanted, found = 0.6401 * 10**0.03, list[tuple[int, int]]()
    for traffic in (1.0, 1e9):
        seen = set[frozenset[Reading]]()

        def noise(chosen: Mapping[Reading, Width], seen: set[frozenset[Reading]] = seen) -> list[float]:
            seen.add(frozenset(chosen))
            return [NOISE - GAIN * len(chosen)]

        steps = Search(noise, [wanted], [wanted], traffic, few_runs=False).enough(_steps())
        found.append((len(steps), len(seen)))
    (brief, all_runs), (slow, runs) = found
    assert brief == slow == 18
    assert runs <= all_runs - 5


def test_gains_that_tell_nothing_do_not_keep_the_search_from_its_end() -> None:
    """One step takes nearly all the noise away, and is said to gain as little as each of the others."""
    every = _steps()
    needed, runs = every[-9].reading, list[int]()

    def noise(chosen: Mapping[Reading, Width]) -> list[float]:
        runs.append(len(chosen))
        return [0.1 + 0.9 * (needed not in chosen) - 0.001 * len(chosen)]

    steps = Search(noise, [0.15], [0.15], COUNT * COUNT * COST, few_runs=True).enough(every)
    assert needed in [step.reading for step in steps]
    assert len(steps) <= COUNT - 9 + 1 + COUNT // 8
    assert len(dict.fromkeys(runs)) <= 7


@pytest.mark.parametrize("few", [False, True])
def test_out_of_reach_comes_near_to_all(few: bool) -> None:
    search, _ = _search(0.05, few)
    steps = search.enough(_steps())
    assert _noise(steps) <= 1.2 * _noise(_steps())


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("bad", [[3], [0, 17, 39], []])
def test_what_costs_next_to_nothing_is_left_in_8_bits_where_16_make_noise(few: bool, bad: list[int]) -> None:
    """A value that calibration met once lies on a step of int8, and between two of int16."""
    every, others = _steps(), _steps()
    worse = {others[i].reading for i in bad}

    def noise(chosen: Mapping[Reading, Width]) -> list[float]:
        return [NOISE - GAIN * len([r for r in chosen if r not in worse]) + len(worse & chosen.keys())]

    search = Search(noise, [0.7], [0.7], 1.0, few, lambda _: others)
    steps = search.enough(every)
    found = {step.reading for step in search.with_others(steps)}
    assert found.isdisjoint(worse) and found.issuperset(step.reading for step in steps)
    assert len(found) >= len(steps) + COUNT - len(bad) * (COUNT // 4)
