"""Linears of several rows that read the same value are one, where attention or one permute reads the merged result."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import data

WIDTH, HEADS = 48, 3


class Projections(nn.Module):
    """Queries, keys and values of a linear each; `turned` says whether all are turned by rotary angles."""

    def __init__(self, shared: int = HEADS, turned: bool = False, crossed: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.size, self.crossed = width // HEADS, crossed
        self.queries, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.keys, self.values = (nn.Linear(width, shared * self.size) for _ in range(2))
        self.angles = torch.arange(64)[:, None] * 0.3 ** torch.arange(self.size // 2).repeat(2) if turned else None

    def heads(self, x: Tensor) -> Tensor:
        x = x.view(*x.shape[:2], -1, self.size).transpose(1, 2)
        if self.angles is None:
            return x
        first, second = x.chunk(2, -1)
        angles = self.angles[: x.shape[-2]]
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        other = memory if self.crossed else x
        queries, keys, values = map(self.heads, (self.queries(x), self.keys(other), self.values(other)))
        found = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        result: Tensor = self.out(found.transpose(1, 2).flatten(2)) + memory.mean()
        return result


@functools.cache
def graph_of(module: nn.Module, batch: int, rows: int, width: int = WIDTH) -> q8.Model:
    x, memory = data(batch, rows, width), data(batch, rows, width, seed=1)
    quantizer = q8.Quantizer(precision="int8", fit_weights=False)
    program = q8.quantize(module.eval(), (x, memory), [(x, memory)], quantizer=quantizer, progress=False)
    return q8.compile(program)


def projections(graph: Graph, lowered: Graph) -> tuple[int, int]:
    """How many of the three linears there are after lowering, and how many there must be at least: one for each value
    that is read and each parity of zero points."""
    linears = [node for node in graph.nodes if node.op == "q8ta_linear"][:-1]
    kinds = {(node.inputs[0], q.zero % 2) for node in linears if (q := graph.types[node.output].q)}
    return [node.op for node in lowered.nodes].count("q8ta_linear") - 1, len(kinds)


def same(model: q8.Model, batch: int, rows: int, width: int, device: Device) -> None:
    x, memory = (data(batch, rows, width, seed=seed).numpy() for seed in (2, 3))
    with q8.Session(model, device) as session:
        found = session(x, memory)
    np.testing.assert_array_equal(found, q8.Session(model, "reference")(x, memory))


@pytest.mark.parametrize(
    ("module", "batch", "rows"),
    [
        (Projections(), 1, 7),
        (Projections(), 3, 5),
        (Projections(shared=1), 2, 6),
        (Projections(crossed=True), 2, 9),
    ],
    ids=["one batch", "three", "a head of keys for all queries", "keys and values of another value"],
)
def test_attention_reads_the_merged_result(module: nn.Module, batch: int, rows: int, device: Device) -> None:
    model = graph_of(module, batch, rows)
    lowered = lower(model.graph, BASELINE)
    there, least = projections(model.graph, lowered)
    assert there == least < 3
    assert not any(node.op in ("slice", "permute") for node in lowered.nodes)
    same(model, batch, rows, WIDTH, device)


TURNED = Projections(turned=True)


def test_heads_of_the_merged_result_are_moved_once(device: Device) -> None:
    """Rotary positions read matrices of heads: each linear's are a slice of all heads."""
    model = graph_of(TURNED, 1, 16)
    lowered = lower(model.graph, BASELINE)
    there, least = projections(model.graph, lowered)
    assert there == least < 3
    assert sum(node.op == "permute" for node in lowered.nodes) == least
    same(model, 1, 16, WIDTH, device)


@pytest.mark.parametrize(("batch", "rows"), [(2, 16), (1, 15)], ids=["slices apart", "slices that are not aligned"])
def test_heads_that_no_slice_holds_are_moved_one_by_one(batch: int, rows: int, device: Device) -> None:
    model = graph_of(TURNED, batch, rows)
    there, _ = projections(model.graph, lower(model.graph, BASELINE))
    assert there == 3
    same(model, batch, rows, WIDTH, device)


def test_weights_that_no_binding_holds_stay_apart() -> None:
    model = graph_of(Projections(), 1, 7)
    there, _ = projections(model.graph, lower(model.graph, Target(binding_size=4 * WIDTH * WIDTH - 1)))
    assert there == 3


def test_results_that_no_binding_holds_stay_apart() -> None:
    model = graph_of(Projections(), 1, 200)
    target = Target(binding_size=3 * 200 * WIDTH)
    assert target.binding_size > 2 * 3 * WIDTH * WIDTH
    assert projections(model.graph, lower(model.graph, target))[0] == 3


def test_a_result_that_is_given_out_stays() -> None:
    graph = graph_of(Projections(), 1, 7).graph.copy()
    linears = [node.output for node in graph.nodes if node.op == "q8ta_linear"][:-1]
    graph.outputs = [*graph.outputs, *linears]
    assert projections(graph, lower(graph, BASELINE))[0] == 3


def test_ties_are_rounded_as_before() -> None:
    """Sums of half a step of every linear, whose zero points differ by odd and even numbers."""
    graph = graph_of(Projections(), 1, 7).graph.copy()
    linears = [node for node in graph.nodes if node.op == "q8ta_linear"][:-1]
    for number, node in enumerate(linears):
        _, weight, _, offset, correction = node.inputs[:5]
        for name in (weight, correction):
            graph.constants[name] = np.zeros_like(graph.constants[name])
        steps = np.arange(len(graph.constants[offset])) - 20 + number
        graph.constants[offset] = ((steps << 14) + (1 << 13)).astype(np.int32)
    x = {name: data(1, 7, WIDTH, seed=seed).numpy() for seed, name in enumerate(graph.inputs)}
    expected, found = run(graph, x), run(lower(graph, BASELINE), x)
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name], expected[name])
