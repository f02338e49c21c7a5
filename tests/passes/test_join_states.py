"""The hidden states of a recurrent layer and its last state are made by one dispatch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.op_graphs import SETTINGS, float_ended, float_graph


def _with_state(cell: str, index: int, int8: bool) -> tuple[Graph, dict[str, Array]]:
    """A layer whose sequence and last state are both results."""
    op, setting = OPS[cell], replace(SETTINGS[0], dtypes=(INT8X4, INT8X4, INT8X4))
    case = op.cases[index]
    graph, inputs = float_ended(op, case, setting) if int8 else float_graph(op, case)
    layer = next(node for node in graph.nodes if node.op == cell)
    shape = layer.attrs["batch_first"], graph.types[layer.output].shape
    state = (shape[1][0] if shape[0] else shape[1][1], shape[1][2])
    graph.types["state"] = TensorType(state)
    graph.nodes.append(replace(layer, output="state", attrs={**layer.attrs, "result": "state"}))
    graph.outputs.append("state")
    return run_passes(graph), inputs


@pytest.mark.parametrize(("cell", "index"), [("lstm", 0), ("lstm", 1), ("gru", 1)])
@pytest.mark.parametrize("int8", [False, True])
def test_a_layer_runs_once(cell: str, index: int, int8: bool, vulkan: Device) -> None:
    """Case 1 has the batch first and runs backwards."""
    graph, inputs = _with_state(cell, index, int8)
    lowered = lower(graph, BASELINE)
    layers = [node for node in lowered.nodes if node.op in (cell, f"q8ta_{cell}")]
    assert [node.attrs["result"] for node in layers] == ["both"]
    assert (layers[0].op == cell) != int8
    expected, again = (reference.run(each, inputs) for each in (graph, lowered))
    found = harness.run_poisoned(lowered, inputs, None, vulkan)
    for before, after, ours in zip(graph.outputs, lowered.outputs, found, strict=True):
        np.testing.assert_array_equal(again[after], expected[before])
        if int8:
            np.testing.assert_array_equal(ours, expected[before])
        np.testing.assert_allclose(ours, expected[before], atol=1e-4)
