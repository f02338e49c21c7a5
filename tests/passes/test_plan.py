"""The plan: how many bits a value gets, by what reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT8X4
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, check, conv, data, ops

INT8 = q8.Quantizer(precision="int8")
"""What the plan says, whatever is chosen for need."""


def table() -> list[Tensor]:
    """Columns of a table around 290, as physical quantities are."""
    return [data(2048, 16, seed=seed) + 290 for seed in range(4)]


def _layers(first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def _batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    with torch.no_grad():
        norm(torch.cat(table() * 40))
    assert norm.running_mean is not None
    norm.running_mean.fill_(290)
    return norm


FIRST: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": _batch_norm,
    "written": lambda: Plain(lambda _, x: (x - torch.full((16,), 290.0)) / torch.linspace(0.5, 1.5, 16)),
}


@pytest.mark.parametrize("name", FIRST)
def test_an_input_is_not_rounded_to_8_bits_before_its_mean_is_taken_out(name: str) -> None:
    """A step of 8 bits is 1.1 there, as much as a column varies."""
    module, items = _layers(FIRST[name]()).eval(), table()
    model = q8.compile(q8.quantize(module, (items[0],), items, INT8, progress=False))
    assert model.report().exact
    with torch.no_grad():
        wanted = module(items[1]).numpy()
    error = q8.Session(model, "reference")(items[1].numpy()) - wanted
    assert 10 * np.log10(((wanted - wanted.mean(0)) ** 2).mean() / (error**2).mean()) > 33


def test_what_others_read_too_keeps_8_bits(device: Device) -> None:
    """An input that a norm and a sum read is stored once."""
    forward = lambda s, x: s.a(s.n(x)) + s.b(x)  # noqa: E731
    module = Plain(forward, a=nn.Linear(16, 4), b=nn.Linear(16, 4), n=nn.LayerNorm(16))
    graph = check(module, [data(3, 16) + 2], device).graph
    assert [graph.types[node.output].dtype for node in graph.nodes if node.inputs[0] in graph.inputs] == [INT8X4]


def _normalized(s: Any, x: Tensor) -> object:
    x = s.a(x).relu()
    return s.b(x / (x.pow(2).mean((1, 2, 3), keepdim=True) + 1e-6))


AVERAGED: dict[str, Callable[[Any, Tensor], object]] = {
    "mean of squares": _normalized,
    "standard deviation": lambda s, x: s.b((y := s.a(x)) / y.std((2, 3), keepdim=True)),
    "products": lambda s, x: (s.a(x) * s.c(x)).mean((2, 3)),
    "length": lambda s, x: s.b((y := s.a(x)) * (g := y.norm(dim=(2, 3), keepdim=True)) / (g.mean(1, True) + 1e-6)),
    "sum of exponentials": lambda s, x: torch.logsumexp(s.a(x), (2, 3)),
}


@functools.cache
def averaging(name: str) -> tuple[nn.Module, list[Tensor], q8.Model]:
    torch.manual_seed(0)
    module = Plain(AVERAGED[name], a=conv(3, 8), b=conv(8, 4), c=conv(3, 8)).eval()
    items = [data(1, 3, 12, 12, seed=seed) for seed in range(4)]
    return module, items, q8.compile(q8.quantize(module, (items[0],), items, INT8, progress=False))


@pytest.mark.parametrize("name", AVERAGED)
def test_what_is_averaged_is_not_rounded_to_8_bits_first(name: str, device: Device) -> None:
    """Nor is the average that others are divided by."""
    module, items, model = averaging(name)
    assert model.report().exact
    assert model.report().int16 > 0
    noise, signal = 0.0, 0.0
    for x in items:
        with torch.no_grad():
            wanted = module(x).numpy()
        found = q8.Session(model, "reference")(x.numpy())
        with q8.Session(model, device) as session:
            np.testing.assert_array_equal(session(x.numpy()), found)
        noise, signal = noise + ((found - wanted) ** 2).sum(), signal + (wanted**2).sum()
    assert 10 * np.log10(signal / noise) > 30


def test_averages_of_what_a_convolution_gives_read_8_bits() -> None:
    """With what joins it: it is stored for other readers as well."""
    forms = {"a": conv(3, 8), "b": conv(8, 8, 1)}
    module = Plain(lambda s, x: (y := F.hardswish(s.a(x))) * s.b(y.mean((2, 3), True)).sigmoid(), **forms)
    model = q8.compile(q8.quantize(module.eval(), (data(1, 3, 6, 6),), [data(1, 3, 6, 6)], INT8, progress=False))
    assert model.report().int16 == 0


SCALED: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[str]]] = {
    "behind an activation": (lambda m, x: m.second(F.silu(m.first(x)) * 1.7), ["linear"] * 2),
    "of low rank": (lambda m, x: m.second(x) + x @ m.down.weight.mT @ m.up.weight.mT * 2.0, ["linear"] * 3),
    "of an operand of a product": (
        lambda m, x: (F.silu(m.first(x)) * 0.25) @ m.second(x).mT,
        ["linear", "linear", "matmul"],
    ),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("choice", ["int8", "int16"])
def test_a_factor_behind_a_weighted_sum_is_part_of_its_rounding(name: str, choice: str, vulkan: Device) -> None:
    """It was a table, and in 16 bits a batch norm, of what had been rounded before."""
    torch.manual_seed(0)
    forward, wanted = SCALED[name]
    low = {"down": nn.Linear(16, 4, bias=False), "up": nn.Linear(4, 16, bias=False)}
    module = Plain(forward, first=nn.Linear(16, 16), second=nn.Linear(16, 16), **low)
    model = check(module, [data(2, 8, 16)], vulkan, q8.Quantizer(precision=choice))
    computed = [name for _, kind, name in (op.partition("ta_") for op in ops(model)) if kind and name != "requantize"]
    assert sorted(computed) == sorted(wanted)
