"""Networks that keep something are as near to their float module after many calls as the yardstick is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from testbed.noise import decibels
from testbed.yardstick import yardstick
from tests.quantizing import Plain, data

CALLS, ANGLES = 100, torch.linspace(0.02, 1, 16)


def _keeping(forward: Callable[..., object], states: dict[str, Tensor], **modules: nn.Module) -> nn.Module:
    module = Plain(forward, **{"first": nn.Linear(8, 16), "last": nn.Linear(16, 4), **modules})
    for name, value in states.items():
        module.register_buffer(name, value)
    return module.eval()


def _moments(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    m.mean = 0.998 * m.mean + 0.002 * y
    m.variance = 0.998 * m.variance + 0.002 * (y - m.mean) ** 2
    found: Tensor = m.last((y - m.mean) / torch.sqrt(m.variance + 1e-5))
    return found


def _turning(m: Any, x: Tensor) -> Tensor:
    """Complex numbers that turn and fade, as in a state space layer."""
    u = m.first(x)
    m.real, m.other = m.cos * m.real - m.sin * m.other + 0.02 * u, m.cos * m.other + m.sin * m.real
    found: Tensor = m.last(F.gelu(m.real + m.other + u))
    return found


def _average(m: Any, x: Tensor) -> Tensor:
    y = m.first(x).tanh()
    m.count, m.total = m.count + 1, m.total + y
    found: Tensor = m.last(y - m.total / m.count)
    return found


def _attention(m: Any, x: Tensor) -> Tensor:
    """Linear attention, whose sums grow."""
    q, k, v = m.first(x).repeat(1, 3).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    m.pairs, m.keys = m.pairs + k[..., None] * v[:, None], m.keys + k
    found: Tensor = m.last((q[:, None] @ m.pairs)[:, 0] / (q * m.keys).sum(-1, keepdim=True))
    return found


def _place(m: Any, x: Tensor) -> Tensor:
    angles = m.count * torch.exp(-torch.arange(8.0))
    m.count = m.count + 1
    found: Tensor = m.last(F.relu(m.first(x) + torch.cat([angles.sin(), angles.cos()])))
    return found


def _last_answer(m: Any, x: Tensor) -> Tensor:
    m.answer = m.answer + 0.1 * m.layers(torch.cat([x, m.answer], -1))
    found: Tensor = m.answer
    return found


def _delta(m: Any, x: Tensor) -> Tensor:
    """Rows that are added to a state so that it answers keys better, as in a DeltaNet."""
    q, k, v = m.layers(x).view(3, 2, 1, 8).unbind()
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    m.pairs = m.pairs + m.share(x).sigmoid().view(2, 1, 1) * (k.mT @ (v - k @ m.pairs))
    found: Tensor = m.last((q @ m.pairs).view(1, 16))
    return found


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "moments": (lambda: _keeping(_moments, {"mean": _zeros(1, 16), "variance": torch.ones(1, 16)}), CALLS, 1),
    "turning": (
        lambda: _keeping(
            _turning,
            {"real": _zeros(1, 16), "other": _zeros(1, 16), "cos": 0.99 * ANGLES.cos(), "sin": 0.99 * ANGLES.sin()},
        ),
        CALLS,
        1,
    ),
    "delta rule": (
        lambda: _keeping(_delta, {"pairs": _zeros(2, 8, 8)}, layers=nn.Linear(8, 48), share=nn.Linear(8, 2)),
        CALLS,
        2,
    ),
    "sums of few calls": (lambda: _keeping(_average, {"count": _zeros(1), "total": _zeros(1, 16)}), 16, 6),
    "attention of few calls": (
        lambda: _keeping(_attention, {"pairs": _zeros(1, 16, 16), "keys": _zeros(1, 16)}),
        16,
        6,
    ),
    "places of few calls": (lambda: _keeping(_place, {"count": _zeros(1)}), 16, 6),
    "last answer": (
        lambda: _keeping(
            _last_answer,
            {"answer": _zeros(1, 4)},
            layers=nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4)),
        ),
        16,
        6,
    ),
}
"""Each with how many calls a sequence of its calibration has, and how many dB below the yardstick it may be. Of few
calls, what is no state reaches further later on."""


def _sequence(count: int, seed: int) -> list[Tensor]:
    """Inputs that are like the ones before."""
    found = [data(1, 8, seed=seed)]
    for noise in data(count - 1, 1, 8, seed=seed + 100):
        found.append(0.7 * found[-1] + math.sqrt(1 - 0.7**2) * noise)
    return found


class _Anew:
    """Items of several sequences, each of which begins with the module's first states."""

    def __init__(self, module: nn.Module, states: dict[str, Tensor], sequences: Sequence[Sequence[Tensor]]) -> None:
        self.module, self.states, self.sequences = module, states, sequences

    def __iter__(self) -> Iterator[Tensor]:
        for sequence in self.sequences:
            self.reset()
            yield from sequence

    def reset(self) -> None:
        for name, value in self.states.items():
            setattr(self.module, name, value.clone())


class _WithStates(nn.Module):
    """A module that takes its states last, and gives them behind its result."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, list(names)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        for name, value in zip(self.names, states, strict=True):
            setattr(self.module, name, value)
        return (self.module(x), *(getattr(self.module, name).clone() for name in self.names))


def _simulated(items: _Anew, calls: Sequence[Tensor]) -> list[Tensor]:
    """What the yardstick gives, which keeps states in float."""
    module, names, met = items.module, list(items.states), []
    with torch.no_grad():
        for x in items:
            met.append((x, *(module.get_buffer(name).clone() for name in names)))
            module(x)
        items.reset()
        run, states, found = yardstick(_WithStates(module, names), met), list(items.states.values()), []
        for x in calls:
            y, *states = run(x, *states)
            found.append(y)
    items.reset()
    return found


def ratios(name: str) -> tuple[float, float]:
    """Signal to noise of a network's outputs over many calls: of the yardstick, and of integers."""
    build, length, _ = NETWORKS[name]
    torch.manual_seed(0)
    module = build()
    before = {name: value.clone() for name, value in module.named_buffers()}
    with torch.no_grad():
        for x in _sequence(2, 0):
            module(x)
    states = {name: value for name, value in before.items() if not module.get_buffer(name).equal(value)}
    items = _Anew(module, states, [_sequence(length, seed) for seed in range(1, 1 + max(3, 128 // length))])
    calls = _sequence(CALLS, 99)
    items.reset()
    with torch.no_grad():
        wanted = torch.stack([module(x).clone() for x in calls]).numpy()
    items.reset()
    least = decibels(wanted, torch.stack(_simulated(items, calls)).numpy())
    program = q8.quantize(module, (calls[0],), items, progress=False)
    session = q8.Session(q8.compile(program), "reference")
    ours = decibels(wanted, np.stack([session(x.numpy()) for x in calls]))
    assert least is not None
    assert ours is not None
    return least, ours


@pytest.mark.parametrize("name", NETWORKS)
def test_errors_of_states_do_not_add_up_to_more_than_the_yardsticks(name: str) -> None:
    least, ours = ratios(name)
    assert least - NETWORKS[name][2] < ours, (least, ours)


def _halves(m: Any, x: Tensor) -> Tensor:
    m.total = m.total + m.first(x)
    first, second = m.total.chunk(2, -1)
    found: Tensor = m.last(torch.cat([first.sin(), second.cos()], -1))
    return found


def test_a_running_sum_may_be_divided() -> None:
    """What grows is followed through calls that give several tensors."""
    torch.manual_seed(0)
    module, calls = _keeping(_halves, {"total": _zeros(1, 16)}), _sequence(16, 1)
    model = q8.compile(q8.quantize(module, (calls[0],), calls, progress=False))
    assert "sin" in model.report().float32


class _Overstated:
    """Three items that say they are a hundred."""

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[Tensor]:
        return iter(_sequence(3, 1))


def _rows(m: Any, x: Tensor) -> Tensor:
    m.rows = torch.cat([m.rows[:, 1:], m.first(x)[:, None]], 1)
    found: Tensor = m.last(m.rows.mean(1))
    return found


def test_a_calibration_may_end_early() -> None:
    torch.manual_seed(0)
    module = _keeping(_rows, {"rows": _zeros(1, 4, 16)})
    x = data(1, 8)
    program = q8.quantize(module, (x,), _Overstated(), progress=False)
    assert q8.Session(q8.compile(program), "reference")(x.numpy()).shape == (1, 4)
