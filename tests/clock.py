"""A clock of made-up times, which stands in for the timer that tuning asks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from q8ta_wgpu.ir.graph import Array, Call, Graph
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import tuner as tune

INFO = {"device": "A GPU (1.0/x)", "backend_type": "Vulkan", "description": "driver 5"}
Price = Callable[[Call, Variant], float]


class Clock:
    """Stands in for the timer: times are what `price` says, and every candidate asked for is noted."""

    def __init__(self, price: Price) -> None:
        self.price = price
        self.asked: list[tuple[Call, Variant]] = []
        self.copies = 0

    def __call__(self, device: Device) -> Clock:
        return self

    def copy(self) -> float:
        self.copies += 1
        return 1e6  # a kilobyte a microsecond

    def times(
        self,
        call: Call,
        constants: Mapping[int, Array],
        candidates: Sequence[Variant],
        known: Mapping[Variant, float],
    ) -> list[float]:
        self.asked += [(call, way) for way in candidates]
        return [self.price(call, way) for way in candidates]


def by_estimate(call: Call, way: Variant) -> float:
    """The times that the cost model expects, at a kilobyte a microsecond."""
    return cost.dispatch_cost(way, call) / 1e3


def drawn(seed: int) -> Price:
    """Times without rhyme or reason, the same for equal dispatches."""
    return lambda call, way: random.Random(f"{seed} {way} {call.output.shape}").uniform(1, 1000)


def clocked(monkeypatch: pytest.MonkeyPatch, price: Price) -> Clock:
    """A clock in the place of the timer."""
    clock = Clock(price)
    monkeypatch.setattr(tune, "Timer", clock)
    return clock


def tuned(
    graph: Graph,
    monkeypatch: pytest.MonkeyPatch,
    price: Price,
    policy: str = "optimal",
    target: Target = BASELINE,
    others: Sequence[Graph] = (),
) -> Any:
    """A tuning of a graph with made-up times, and of its other forms, and the clock that was asked."""
    clock = clocked(monkeypatch, price)
    device: Any = SimpleNamespace(name="a GPU", timestamps=True, target=target, info=INFO)
    return tune.tune([graph, *others], device, policy), clock
