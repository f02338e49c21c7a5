"""What is simulated to choose bits: the noise of each value, how many runs that takes, on which items and ranges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate import simulated_noise
from q8ta_wgpu.frontend.calibrate.held_back import HeldBack
from q8ta_wgpu.frontend.calibrate.need import SIGNS, Reading, needs, needs_apart
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver
from q8ta_wgpu.frontend.calibrate.precision import Precision, Precisions
from q8ta_wgpu.frontend.calibrate.rounder import Rounder
from q8ta_wgpu.frontend.calibrate.simulate import Run
from q8ta_wgpu.frontend.calibrate.simulated_noise import SimulatedNoise
from q8ta_wgpu.frontend.notes import PRECISION
from q8ta_wgpu.quantization.parts import decibels as decibels_of
from q8ta_wgpu.quantization.stored import ROLES, Width
from testbed.standins import noted
from tests.precision_networks import NETWORKS, WITHIN, norms, quantized
from tests.quantizing import Plain, choosing, data


def test_fewer_parts_are_tried_of_a_large_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its signal stays within half a decibel of the yardstick's, on what is simulated."""
    runs = list[int]()
    torch.manual_seed(0)
    module = Plain(norms, heads=nn.ModuleList(nn.Linear(12, 3) for _ in range(6))).eval()
    batches = [290 + data(32, 12, seed=s) for s in range(1, 9)]
    simulated = noted(monkeypatch, SimulatedNoise, "_outputs")
    for large in (math.inf, 0.0):
        monkeypatch.setattr(simulated_noise, "_LARGE", large)
        simulated.clear()
        program = quantized(module, batches)
        runs.append(len(simulated))
        *_, least, int8, predicted = program.graph_module.meta["custom"][PRECISION]
        assert int8 < least - WITHIN < least - 0.6 < predicted
    assert runs[1] <= 0.75 * runs[0], runs


def test_the_measure_is_what_is_found_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of one value rounded alone, within 3 dB of its first order."""
    seen: list[tuple[float, float]] = []

    def choose(self: Precisions) -> Precision:
        for reading, amount in self.simulated.needs([0]).items():
            every: dict[Reading, Width] = {(s, role): "float32" for s in self.storage.stored for role in ROLES}
            every.update({(softmax, "others"): "int16" for softmax in self.storage.attention})
            every.pop(reading)
            seen.append((decibels_of(amount), decibels_of(self._noise(every)[-len(self._parts)])))
        return Precision()

    choosing(monkeypatch, choose)
    monkeypatch.setattr(SimulatedNoise, "_weight", lambda self, node, value, reader: value)
    build, given = NETWORKS["attention behind a sink"]
    torch.manual_seed(0)
    q8.quantize(
        build().eval(),
        (given(0),),
        [given(s) for s in range(8)],
        q8.Quantizer(fit_weights=False),
        progress=False,
    )
    assert len(seen) > 4
    for predicted, measured in seen:
        assert predicted == pytest.approx(measured, abs=3), seen


def test_two_ways_to_round_share_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the yardstick asks of ranges that clip and of whole ones: each as by itself, where steps differ."""
    backward = noted(monkeypatch, torch.autograd, "grad")

    def choose(self: Precisions) -> Precision:
        known, stored = self.simulated._ranges[-1], frozenset(self.storage.stored)
        rounders = [Rounder(known, {}, whole) for whole in (stored, frozenset[Any]())]
        backward.clear()
        weights = self.simulated.judge.weights(dict.fromkeys([0], 1.0))
        apart = needs_apart(self.storage, rounders, self.simulated.calls, weights)
        assert len(backward) == SIGNS * len(self.simulated.calls)
        alone = [needs(self.storage, rounder, self.simulated.calls, weights) for rounder in rounders]
        differ = {reading for reading, amount in alone[0].items() if amount != alone[1][reading]}
        assert 0 < len(differ) < len(alone[0])
        for shared, own in zip(apart, alone, strict=True):
            assert shared == pytest.approx({reading: own[reading] for reading in differ}, rel=1e-5)
        return Precision()

    monkeypatch.setattr(RangeObserver, "_best_range", lambda self, low, high: (max(low, -2.0), high))  # not of tanh
    choosing(monkeypatch, choose)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
    items = [data(16, 8, seed=s) for s in range(8)]
    q8.quantize(module, (items[0],), items, progress=False)
    assert backward


@pytest.mark.parametrize(("large", "signs"), [(math.inf, SIGNS), (0.0, SIGNS // 2)])
def test_ranges_of_a_large_network_are_compared_with_half_the_signs(
    large: float, signs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def counted(storage: Any, rounders: Any, calls: Any, outputs: Any, signs: int = SIGNS) -> Any:
        used.append(signs)
        return needs_apart(storage, rounders, calls, outputs, signs)

    monkeypatch.setattr(RangeObserver, "_best_range", lambda self, low, high: (max(low, -0.1), high))
    monkeypatch.setattr(simulated_noise, "needs_apart", counted)
    monkeypatch.setattr(simulated_noise, "_LARGE", large)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
    items = [data(16, 8, seed=s) for s in range(8)]
    q8.quantize(module, (items[0],), items, progress=False)
    assert {*used} == {signs}


def test_a_run_begins_where_it_first_differs_from_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before a value that is stored in another way is not computed again, and the noise is the same."""
    nodes, runs = noted(monkeypatch, Run, "run_node"), list[int]()

    def choose(self: Precisions) -> Precision:
        every = [(stored, role) for stored in self.storage.stored for role in ROLES if stored.readers(role)]
        last, before = every[-1], every[-2]
        choices: list[dict[Reading, Width]] = [
            {last: "int16"},
            {last: "float32"},
            {before: "int16"},
            {every[0]: "int16"},
        ]
        found = []
        for kept in (True, False):
            monkeypatch.setattr(simulated_noise, "_KEPT", 2**29 if kept else 0)
            vars(self.simulated).pop("_runs", None)
            self.simulated._simulated.clear()
            runs.clear()
            for choice in choices:
                nodes.clear()
                found.append(self._noise(choice))
                runs.append(len(nodes))
            assert all(b < runs[0] / 2 for b in runs[1:3]) if kept else len(set(runs)) == 1, runs
        assert found[:4] == found[4:]
        return Precision()

    choosing(monkeypatch, choose)
    torch.manual_seed(0)
    layers = (layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh()))
    q8.quantize(nn.Sequential(*layers).eval(), (data(4, 8),), [data(4, 8, seed=s) for s in range(4)], progress=False)
    assert runs


def _graph(module: nn.Module, *inputs: Tensor) -> GraphModule:
    graph = torch.export.export(module, inputs).module()
    assert isinstance(graph, GraphModule)
    return graph


@pytest.mark.parametrize(("count", "ranges"), [(11, 1), (12, 2), (67, 2), (68, 1)])
def test_ranges_of_few_inputs_are_tried_with_and_without_those_that_are_simulated(count: int, ranges: int) -> None:
    """As a gate or a place that has one number for an input, which others exceed: of many inputs they do not."""
    back = HeldBack(_graph(nn.Linear(4, 32), data(1, 4)), (data(1, 4),))
    order = [index for index, _ in back.order([(data(1, 4),)] * count)]
    assert order == [*range(4, count), *range(4)]
    assert len(back.ranges) == ranges


@pytest.mark.parametrize(("rows", "held"), [(1, 8), (4, 8), (64, 1)])
def test_more_inputs_are_simulated_where_each_gives_few_numbers(rows: int, held: int) -> None:
    """Until a result has 32 of them: the noise of fewer is by chance some decibels more or less."""
    back = HeldBack(_graph(nn.Linear(4, 1), data(rows, 4)), (data(rows, 4),))
    list(back.order([(data(rows, 4, seed=s),) for s in range(20)]))
    assert len(back.items) == held


@pytest.mark.parametrize(("total", "held"), [(8, 2), (16, 4), (64, 6)])
def test_a_quarter_of_the_inputs_is_simulated_until_results_have_256_numbers(total: int, held: int) -> None:
    """The others say what ranges are: with all inputs simulated, none of these would be clipped."""
    back = HeldBack(_graph(nn.Linear(4, 6), data(8, 4)), (data(8, 4),), total=total)
    list(back.order([(data(8, 4, seed=s),) for s in range(total)]))
    assert len(back.items) == held
