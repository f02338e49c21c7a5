"""Linears of one row that read the same value are one, and what each gives is a part of one buffer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.arithmetic import FRACTION
from q8ta_wgpu.ir.graph import QParams
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import data


class Parts(nn.Module):
    """Softmax of each of several linears of one value, whose results differ in size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(64, size) for size in sizes)
        for number, linear in enumerate(self.linears):
            torch.nn.init.uniform_(linear.bias, number, 2 * number + 1)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> list[Tensor]:
        return [linear(x).unflatten(-1, (4, -1)).softmax(-1) for linear in self.linears]


@functools.cache
def compiled(sizes: tuple[int, ...], rows: int, **options: Any) -> q8.Model:
    x = data(rows, 64)
    quantizer = q8.Quantizer(**{"precision": "int8", "fit_weights": False, **options})
    return q8.compile(q8.quantize(Parts(sizes).eval(), (x,), [x, 0.7 * x], quantizer=quantizer, progress=False))


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": "int4", "group": 32}, {"activations": "dynamic"}, {"precision": "int16"}],
    ids=["8 bits", "4 bits", "a scale a row", "results of 16 bits"],
)
def test_they_are_one_dispatch(options: dict[str, Any], device: Device) -> None:
    """One of a size that no part begins behind comes last, another stays by itself; scales and zero points differ."""
    model = compiled((256, 36, 512, 20), 1, **options)
    x = data(1, 64, seed=4).numpy()
    with q8.Session(model, device) as session:
        found, dispatches = session(x), session.program.dispatches
    assert sum("ta_linear" in d.kernel for d in dispatches) == 2
    assert not any(d.kernel.startswith(("slice", "q8ta_clone")) for d in dispatches)
    size = 2 if options.get("precision") == "int16" else 1
    assert sorted(offset for d in dispatches for offset in d.offsets if offset) == [256 * size, 768 * size]
    for y, wanted in zip(found, q8.Session(model, "reference")(x), strict=True):
        np.testing.assert_array_equal(y, wanted)


def test_of_several_rows_each_has_its_own() -> None:
    graph = lower(compiled((256, 512), 2).graph, BASELINE)
    assert [node.op for node in graph.nodes].count("q8ta_linear") == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_that_is_given_out_is_copied(policy: str) -> None:
    """It is no part of a buffer that is read from its first byte; nor is one of an input."""
    graph = lower(compiled((256, 512), 1).graph, BASELINE)
    parts = [node.output for node in graph.nodes if node.op == "slice"]
    assert set(sync_layouts(graph, BASELINE, policy).offsets) == {parts[1]}
    graph.outputs = [*graph.outputs, parts[1]]
    assert not sync_layouts(graph, BASELINE, policy).offsets


@pytest.mark.parametrize("zero", [-3, -2])
def test_a_tie_is_rounded_as_before(zero: int) -> None:
    """Sums of half a step, which are even where each linear rounds its own: an odd difference of zero points would make
    them odd."""
    graph = compiled((256, 512), 1).graph.copy()
    linears = [node for node in graph.nodes if node.op == "q8ta_linear"]
    for node, own in zip(linears, (0, zero), strict=True):
        _, weight, _, offset, correction = node.inputs[:5]
        for name in (weight, correction):
            graph.constants[name] = np.zeros_like(graph.constants[name])
        steps = np.arange(len(graph.constants[offset])) % 100 - 50
        graph.constants[offset] = ((steps << FRACTION) + (1 << FRACTION - 1)).astype(np.int32)
        graph.types[node.output] = replace(graph.types[node.output], q=QParams(1.0, own))
    lowered, x = lower(graph, BASELINE), {graph.inputs[0]: data(1, 64).numpy()}
    expected, found = run(graph, x, keep=True), run(lowered, x, keep=True)
    for node in linears:
        np.testing.assert_array_equal(found[node.output], expected[node.output])
    assert [node.op for node in lowered.nodes].count("q8ta_linear") == 1 + zero % 2
