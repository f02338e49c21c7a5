"""The range that an activation gets: as good as torchao's own histogram search, but that little gains do not clip."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e import HistogramObserver

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.pt2e.observers import RangeObserver
from q8ta_wgpu.passes.plan.storage import INT16
from q8ta_wgpu.quantization import ranges
from q8ta_wgpu.quantization.ranges import OF_ZEROS, Range
from q8ta_wgpu.quantization.tuned import WORTH
from testbed.standins import noted

INT8: dict[str, Any] = {
    "dtype": torch.int8,
    "quant_min": -128,
    "quant_max": 127,
    "qscheme": torch.per_tensor_affine,
}


def heavy_tails(generator: torch.Generator) -> Tensor:
    return torch.randn(20000, generator=generator) / torch.rand(20000, generator=generator).sqrt()


VALUES: dict[str, Callable[[torch.Generator], Tensor]] = {
    "normal": lambda g: torch.randn(20000, generator=g),
    "relu": lambda g: torch.randn(20000, generator=g).relu(),
    "mostly zeros": lambda g: (torch.randn(20000, generator=g) - 2).relu(),
    "hardswish": lambda g: torch.nn.functional.hardswish(2 * torch.randn(20000, generator=g)),
    "outliers": lambda g: torch.cat([torch.randn(20000, generator=g), torch.tensor([40.0, -3.0])]),
    "heavy tails": heavy_tails,
    "far from zero": lambda g: 5 + torch.randn(20000, generator=g) / 10,
    "tiny": lambda g: torch.randn(20000, generator=g) / 1000,
    "many": lambda g: torch.randn(150000, generator=g),
    "few": lambda g: torch.randn(30, generator=g),
}


def qparams(observer: Any) -> tuple[Tensor, Tensor]:
    scale, zero = observer.calculate_qparams()
    return scale, zero


def error(observer: HistogramObserver, x: Tensor) -> float:
    """The squared error of fake quantization after calibration with two batches."""
    observer(x)
    observer(x * 0.8)
    scale, zero = qparams(observer)
    y = torch.fake_quantize_per_tensor_affine(x, scale.float().reshape(()), zero.int().reshape(()), -128, 127)
    return float(((x - y) ** 2).mean())


@pytest.mark.parametrize("name", VALUES)
def test_range(name: str) -> None:
    x = VALUES[name](torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "eps": 2.0**-20}
    ours, theirs = (
        error(observer(qscheme=torch.per_tensor_affine, **options), x)
        for observer in (RangeObserver, HistogramObserver)
    )
    assert ours <= 1.21 * theirs, "beyond what clipping must be worth"


@pytest.mark.parametrize("name", VALUES)
def test_values_are_counted_as_torchao_counts_them(name: str) -> None:
    """In ranges that stay and that grow, also from one value on."""
    generator = torch.Generator().manual_seed(1)
    x = VALUES[name](generator).reshape(2, -1)
    met = Range("int8")
    theirs = HistogramObserver(**INT8)
    for batch in (x[:1, :1], x[:1, :1], 0.5 * x, x.mT, 0.7 * x, 3 * x, x[:, :0]):
        met.meet(batch.numpy())
        theirs(batch)
        assert (met.low, met.high) == (float(theirs.min_val), float(theirs.max_val))
        np.testing.assert_array_equal(met._counts.astype(np.float32), theirs.histogram.numpy())


def test_a_range_is_found_once_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is met later changes it."""
    tried = noted(monkeypatch, ranges, "best_range")
    given, observer = torch.linspace(-1, 1, 500), RangeObserver(**INT8)
    observer(given)
    first = qparams(observer)
    assert qparams(observer) == first
    observer(3 * given)
    assert float(qparams(observer)[0]) > 2 * float(first[0])
    assert [high for _, _, high, _ in tried] == [1.0, 3.0]


def test_zeros_alone() -> None:
    observer = RangeObserver(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine)
    observer(torch.zeros(7))
    scale, zero = qparams(observer)
    assert float(scale) > 0
    assert -128 <= int(zero) <= 127


def _error_on_others(observer: RangeObserver, others: torch.Tensor) -> float:
    scale, zero = observer.calculate_qparams()
    rounded = ((others / scale).round() + zero).clamp(-128, 127).sub(zero) * scale
    return float((rounded - others).square().mean())


def test_few_small_inputs_leave_room_for_others() -> None:
    """Of 32 inputs the next one reaches further once in 33 times. Many tensors of one item say nothing of it."""
    random = torch.Generator().manual_seed(0)
    given, others = torch.randn(32, 16, generator=random), torch.randn(4000, 16, generator=random)
    given, others = (x * x.abs().mean(1, keepdim=True) for x in (given, others))
    roomy, narrow = RangeObserver(**INT8), RangeObserver(**INT8)
    for observer in (roomy, narrow):
        for x in given:
            observer(x)
            if observer is roomy:
                observer.met.peaks.end_item()
    assert _error_on_others(roomy, others) < 0.8 * _error_on_others(narrow, others)


@pytest.mark.parametrize(("inputs", "values"), [(8, 16), (32, 20000)])
def test_a_range_is_what_was_met(inputs: int, values: int) -> None:
    given, observer = torch.rand(inputs, values, generator=torch.Generator().manual_seed(0)), RangeObserver(**INT8)
    for x in given:
        observer(x)
        observer.met.peaks.end_item()
    assert float(observer.calculate_qparams()[0]) == pytest.approx(float(given.max()) / 255, rel=1e-6)


class Columns(nn.Module):
    """Puts the columns of its input together in another order: all are stored at one scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(torch.cat([x[:, i : i + 1] for i in reversed(range(32))], 1))
        return y


def test_many_tensors_of_one_item_are_one_item() -> None:
    """Their largest values lie far apart, and say nothing of other items."""
    x = torch.linspace(-1, 1, 32)[None] ** 3
    exported = q8.quantize(Columns().eval(), (x,), calibration=[x], progress=False)
    found = q8.compile(exported).graph.types["cat"].q
    assert found is not None and found.scale == pytest.approx(2 / 255, rel=1e-5)


def test_where_clipping_gains_little_it_loses_on_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand numbers the largest are clipped only if that is sure to lower the error of others."""
    others, errors = np.random.default_rng(0).laplace(size=100_000), {WORTH: 0.0, math.inf: 0.0}
    for seed, worth in itertools.product(range(1, 21), errors):
        met = Range("int8")
        met.meet(np.random.default_rng(seed).laplace(size=1000).astype(np.float32))
        monkeypatch.setattr(ranges, "WORTH", worth)
        q = met.stored("int8")
        real = np.clip(np.rint(others / q.scale), -128 - q.zero, 127 - q.zero) * q.scale
        errors[worth] += float(((real - others) ** 2).mean())
    clipped, whole = errors.values()
    assert clipped <= whole


SPREADS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "normal numbers": (lambda x: x, 2.0, 2.3),
    "far from zero": (lambda x: 290 + x, 2.0, 2.0),
    "within bounds": (torch.sigmoid, 2.0, 2.0),
    "squares": (torch.square, 3.0, 4.0),
    "quotients": (lambda x: x / x.roll(1), 4.0, 4.0),
    "zeros": (torch.zeros_like, OF_ZEROS * 32767.5 / 1e-9, OF_ZEROS * 32767.5 / 1e-9),
    "few squares": (lambda x: x[:2] ** 2, 4.0, 4.0),
    "few far from zero": (lambda x: 290 + x[:2], 2.0, 2.0),
}


@pytest.mark.parametrize("name", SPREADS)
def test_16_bits_have_more_room_where_few_values_are_far_larger(name: str) -> None:
    """However the values are met: for 16 bits, or for 8."""
    function, least, most = SPREADS[name]
    torch.manual_seed(0)
    items = [function(torch.randn(40, 50)).numpy() for _ in range(8)]
    largest = max(float(np.abs(item).max()) for item in items)
    for met in (Range(INT16), Range("int8")):
        for item in items:
            met.meet(item)
        assert least <= met.stored(INT16).scale * 32767.5 / max(largest, 1e-9) * (1 + 1e-5) <= most * (1 + 1e-4)
