"""Rotary positions are one operator in whatever spelling: rounded once, with cosines and sines of 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Graph
from q8ta_wgpu.passes.plan.spellings import combine
from q8ta_wgpu.runtime.device import Device
from testbed.op_graphs import extremes, rng
from testbed.states import turned as state_of_turned
from tests.quantizing import check, data, ops

Rotary = Callable[[Tensor, Tensor, Tensor], Tensor]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def _turned_half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def _apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = _halves(x)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _mixed(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = _halves(x)
    return x * cos.repeat(1, 2) + torch.cat((b * -1.0, a), -1) * torch.cat((sin, sin), -1)


def _side_by_side(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _every_two(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos.repeat_interleave(2, -1) + turned * sin.repeat_interleave(2, -1)


SPELLINGS: dict[str, tuple[bool, Rotary]] = {
    "transformers": (False, lambda x, cos, sin: (x * cos.repeat(1, 2)) + (_turned_half(x) * sin.repeat(1, 2))),
    "sines first": (False, lambda x, cos, sin: sin.repeat(1, 2) * _turned_half(x) + cos.repeat(1, 2) * x),
    "halves": (False, _apart),
    "factors": (False, _mixed),
    "pairs": (True, _side_by_side),
    "every two": (True, _every_two),
}

OTHERS: dict[str, Rotary] = {
    "reflected": lambda x, c, s: x * c.repeat(1, 2) + torch.cat(_halves(x)[::-1], -1) * s.repeat(1, 2),
    "turned back": lambda x, c, s: x * c.repeat(1, 2) - _turned_half(x) * s.repeat(1, 2),
    "three angles": lambda x, c, s: x * c.repeat(1, 2) + _turned_half(x) * s.repeat(1, 2) * c.repeat(1, 2),
    "read twice": lambda x, c, s: (t := _turned_half(x)) * s.repeat(1, 2) + x * c.repeat(1, 2) + t.exp(),
    "another dimension": lambda x, c, s: x * c.repeat(1, 2) + torch.cat((-x[:, 1:], x[:, :1]), 1) * s.repeat(1, 2),
}


class Turned(nn.Module):
    """A rotary operator behind a function, with angles of 5 positions, computed or given."""

    def __init__(self, function: Rotary) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("angles", torch.arange(5.0)[:, None] / 10 ** (torch.arange(4) / 4))

    def forward(self, x: Tensor) -> Tensor:
        angles = self.get_buffer("angles")
        return self.function(x.tanh(), angles.cos(), angles.sin())


def _found(function: Rotary) -> Graph:
    graph = import_float(Traceable(Turned(function).eval(), (data(1, 2, 5, 8),)).graph()).graph
    combine(graph)
    return graph


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_operator(name: str) -> None:
    pairs, function = SPELLINGS[name]
    graph = _found(function)
    assert [node.op for node in graph.nodes] == ["tanh", "rotary"]
    assert graph.nodes[1].attrs["pairs"] == pairs


@pytest.mark.parametrize("name", OTHERS)
def test_what_turns_no_pairs_stays(name: str) -> None:
    assert "rotary" not in {node.op for node in _found(OTHERS[name]).nodes}


@pytest.mark.parametrize("name", ["transformers", "halves", "pairs"])
def test_it_is_rounded_once(name: str, vulkan: Device) -> None:
    """Angles in 16 bits leave the noise of the operand and of the result: 45 dB."""
    module, x = Turned(SPELLINGS[name][1]).eval(), data(1, 2, 5, 8)
    model = check(module, [x], vulkan)
    assert ops(model) == ["q8ta_table", "q8ta_rotary"]
    rotary = next(node for node in model.graph.nodes if node.op == "q8ta_rotary")
    types = [model.graph.types[name].dtype for name in (*rotary.inputs, rotary.output)]
    assert types == [INT8X4, INT16X4, INT16X4, INT8X4]
    with torch.no_grad():
        wanted = module(x).numpy()
    error = q8.Session(model, "reference")(x.numpy()) - wanted
    assert 10 * np.log10((wanted**2).mean() / (error**2).mean()) > 40


def test_a_program_that_rounds_within_keeps_its_roundings() -> None:
    quantized = torch.ops.quantized_decomposed

    def rounded(y: Tensor) -> Tensor:
        steps = quantized.quantize_per_tensor(y, 2**-6, 0, -128, 127, torch.int8)
        result: Tensor = quantized.dequantize_per_tensor(steps, 2**-6, 0, -128, 127, torch.int8)
        return result

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, cos, sin = rounded(x), rounded(cos.repeat(1, 2)), rounded(sin.repeat(1, 2))
        return rounded(rounded(x * cos) + rounded(rounded(_turned_half(x)) * sin))

    model = q8.compile(torch.export.export(Turned(turned).eval(), (data(1, 2, 5, 8),)))
    assert {"q8ta_mul", "q8ta_add"} <= set(ops(model)) and "q8ta_rotary" not in ops(model)


@pytest.mark.parametrize("width", [6, 16])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("dtype", [INT8X4, INT16X4])
def test_rows_are_turned_while_they_are_written(dtype: str, pairs: bool, width: int, device: Device) -> None:
    """At places that others are written over, and outside."""
    model, draw = state_of_turned(dtype, pairs, width), rng("turned", dtype, pairs, width)
    exact = q8.Session(model, "reference")
    with q8.Session(model, device) as session:
        assert [dispatch.kernel for dispatch in session.program.dispatches] == ["q8ta_rotary_update"]
        for place in ([3, 0], [6, 6], [-1, 2], [7, 4]):
            types = [model.graph.types[name] for name in ("x", "cos", "sin")]
            arrays = [extremes(draw, t.shape, t.dtype) for t in types]
            arrays.append(np.array(place, np.float32))
            np.testing.assert_array_equal(session(*arrays), exact(*arrays))
            np.testing.assert_array_equal(session.state["a"], exact.state["a"])
