"""Outputs are judged by their parts: what joins them, channels and items of like size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.limits import allowed, low_signal, wanted
from q8ta_wgpu.quantization.parts import Judge, are_apart
from q8ta_wgpu.quantization.tuned import FAIR
from testbed.yardstick import yardstick
from tests.quantizing import Plain, conv, data


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def test_small_channels_and_items_have_a_noise_of_their_own() -> None:
    sizes = np.array([100.0, 90.0, 0.1, 0.09]).reshape(1, 4, 1)
    exact = [[_random(2, 4, 16, seed=seed) * sizes * (1e-4 if seed else 1)] for seed in range(2)]
    judge = Judge(exact)
    assert [part.kind for part in judge.parts] == [
        "whole",
        *["channels"] * 2,
        *["items"] * 2,
        *["channels of items"] * 3,
    ]
    found = [[x + 0.01 * _random(2, 4, 16, seed=9) for x in each] for each in exact]
    whole, large, small, *_ = judge.noise(found)
    assert whole < 1e-7
    assert large == pytest.approx(0.01**2 / 95**2 * 2, rel=0.5)  # of the sums over both items
    assert small > 1e-3


def test_channels_of_like_size_are_not_judged_apart() -> None:
    assert len(Judge([[_random(8, 16)] for _ in range(4)]).parts) == 1
    assert len(Judge([[_random(1, 1000) * np.geomspace(1, 1e-3, 1000)]]).parts) == 1  # a value a channel says nothing
    assert len(Judge([[np.arange(12)]]).parts) == 1


def test_few_values_of_very_different_sizes_are_one_part() -> None:
    sizes = np.array([100, 0.1]).reshape(1, 2, 1)
    assert [part.kind for part in Judge([[_random(1, 2, 8) * sizes]]).parts] == ["whole", "channels"]


def test_what_was_joined_is_judged_by_itself() -> None:
    exact = [[_random(1, 3, 6, seed=seed)] for seed in range(2)]
    judge = Judge(exact, [(np.array([0, 7, 7]).reshape(1, 3, 1), [f"p{i}" for i in range(8)])])
    assert [part.name for part in judge.parts] == ["", "p0", "p7"]
    found = [[x + np.array([0, 1, 1]).reshape(1, 3, 1)] for (x,) in exact]
    whole, first, second = judge.noise(found)
    assert first == 0
    assert second > whole > 0


def test_weights_of_squared_errors_add_up_to_the_noise() -> None:
    exact = [[_random(2, 3, 8, seed=s) * np.array([100, 1, 0.01]).reshape(3, 1), _random(5, seed=s)] for s in range(3)]
    judge, found = Judge(exact), [[x + 0.01 * _random(*x.shape, seed=5) for x in each] for each in exact]
    noise = judge.noise(found)
    assert len(noise) == 5
    for chosen in ([0], [1], [4], [0, 2, 3]):
        total = sum(
            float((w * (x - y) ** 2).sum())
            for ws, xs, ys in zip(judge.weights(dict.fromkeys(chosen, 1.0)), exact, found, strict=True)
            for w, x, y in zip(ws, xs, ys, strict=True)
        )
        assert total == pytest.approx(sum(noise[i] for i in chosen))


def test_a_black_picture_among_others_asks_for_no_more_than_the_yardstick_leaves() -> None:
    whole, _, black, *_ = Judge([[_random(1, 64) * size] for size in (1.0, 1e-3)]).parts
    assert black.kind == "items"
    assert wanted(allowed(0.3, black), 0.5, black) == math.inf
    assert wanted(allowed(0.3, whole), 0.5, whole) == FAIR
    assert wanted(allowed(1e-3, black), 0.5, black) == pytest.approx(1e-3, rel=0.2)


def test_without_noise_in_the_yardstick_20_decibels_are_wanted() -> None:
    whole, silent = Judge([[_random(8, 64), _random(8, 64) * 0]]).parts
    assert (allowed(0.0, whole), allowed(0.0, silent)) == (FAIR, math.inf)
    assert low_signal("", 18.2, 120.0, "").endswith("compare names them")
    assert "loses nothing" in low_signal("", 18.2, 120.0, "")
    assert not low_signal("", 20.5, 120.0, "")


def test_inputs_are_apart_where_an_output_of_their_kind_would_be_judged_apart() -> None:
    """A table of numbers nearly always was, since each number alone was taken for a channel of its row."""
    rows, units = _random(64, 16).astype(np.float32), np.geomspace(1, 1e4, 16)
    assert not are_apart(rows)
    assert not are_apart(rows * units.astype(np.float32))  # columns of different units, in all rows alike
    assert are_apart(rows * np.geomspace(1, 1e3, 64, dtype=np.float32)[:, None])
    assert not are_apart(rows[:, :4] * np.geomspace(1, 1e3, 64, dtype=np.float32)[:, None])  # few numbers say nothing
    series = _random(2, 24, 48).astype(np.float32) * np.geomspace(1, 1e3, 24, dtype=np.float32)[:, None]
    assert are_apart(series)
    assert not are_apart(np.arange(64).reshape(8, 8))


class Forecaster(nn.Module):
    """Takes mean and deviation out of each series and gives them back (RevIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        deviation = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        y: Tensor = self.net((x - mean) / deviation) * deviation + mean
        return y


def _series(seed: int, channels: bool, fixed: bool) -> Tensor:
    """24 series of four decades, which are items or channels of one."""
    decades = torch.linspace(-2, 2, 24) if fixed else data(24, seed=seed + 50).sigmoid() * 4 - 2
    x = (data(24, 48, seed=seed) + 2 * data(24, 1, seed=seed + 100)) * 10 ** decades[:, None]
    return x[None] if channels else x


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("channels", [True, False])
def test_small_series_keep_as_much_as_large_ones(channels: bool, fixed: bool) -> None:
    torch.manual_seed(0)
    module = Forecaster().eval()
    items = [_series(seed, channels, fixed) for seed in range(8)]
    x = _series(20, channels, fixed)
    model = q8.compile(q8.quantize(module, (items[0],), items, progress=False))
    wanted = module(x).detach().numpy().reshape(24, 16)

    def worst(found: Array) -> float:
        return float((10 * np.log10((wanted**2).sum(1) / ((found.reshape(24, 16) - wanted) ** 2).sum(1))).min())

    simulated = yardstick(module, items)(x).numpy()
    assert worst(q8.Session(model, "reference")(x.numpy())) > worst(simulated) - 1.6


def test_the_warning_names_the_part() -> None:
    torch.manual_seed(0)
    module = Plain(
        lambda s, x: torch.cat([s.a(x) * 40, torch.sin(3000 * s.b(x))], 1), a=conv(3, 4), b=conv(3, 4)
    ).eval()
    items = [data(1, 3, 12, 12, seed=seed) for seed in range(4)]
    with pytest.warns(UserWarning, match=r"^sin of the output is predicted to keep"):
        q8.quantize(module, (items[0],), items, progress=False)


def test_weights_of_a_number_are_a_number() -> None:
    """They had one dimension, and quantize of a module with such an output raised torch's RuntimeError."""
    ((found,),) = Judge([[np.float32(2.0) * np.ones((), np.float32)]]).weights(dict.fromkeys([0], 1.0))
    assert found.shape == ()
    assert found == 0.25
