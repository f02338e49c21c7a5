"""A depthwise convolution that makes its image by the 1x1 convolution before it gives the bytes of the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Node, TensorType
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.fold_producers import EXPANDED, fold_expansions
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.expanded_graphs import EXPANSIONS, Expansion
from testbed.op_graphs import SETTINGS

TARGET = replace(BASELINE, storage_buffers=10)
"""For what follows in the dispatch: without that, eight buffers are enough."""

TWO = ["q8ta_conv2d", "q8ta_conv2d"]


@pytest.mark.parametrize("after", ["", "residual requantize", "requantize add dequantize"])
@pytest.mark.parametrize("name", EXPANSIONS)
def test_bytes(name: str, after: str, device: Device) -> None:
    """0 bytes differ, in the reference and on a device, with zero points at both ends, ties and saturation, too."""
    for setting in SETTINGS[:1] if after else SETTINGS:
        graph, inputs = EXPANSIONS[name].graph(setting, after)
        assert [node.op for node in graph.nodes] == TWO
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        assert len(np.unique(expected)) > 1
        fold_expansions(graph, TARGET)
        graph.prune()
        verify(graph, RUNNABLE)
        assert [node.op for node in graph.nodes] == [EXPANDED]
        np.testing.assert_array_equal(reference.run(graph, inputs)[graph.outputs[0]], expected)
        for label, plan in harness.plans(graph, 0, (TARGET,)):
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=f"{label}, {setting}")


@pytest.mark.parametrize(
    ("expansion", "target"),
    [
        (EXPANSIONS["words, stride 2"], SOFTWARE),
        (EXPANSIONS["words, stride 2"], replace(BASELINE, packed_dot=False)),
        (EXPANSIONS["words, stride 2"], replace(BASELINE, prologues=False)),
        (Expansion((1, 8, 9, 9), 8, stride=3), BASELINE),
        (Expansion((1, 8, 9, 9), 8, padding=(2, 2, 2, 2), window=5), BASELINE),
        (Expansion((1, 512, 48, 32), 48), BASELINE),
    ],
    ids=["CPU", "no packed dots", "not wanted", "stride 3", "window of 5x5", "many products"],
)
def test_where_two_dispatches_stay(expansion: Expansion, target: Target) -> None:
    graph, _ = expansion.graph(SETTINGS[0])
    fold_expansions(graph, target)
    assert [node.op for node in graph.nodes] == TWO


def test_an_image_with_another_reader_is_stored() -> None:
    graph, _ = EXPANSIONS["words, stride 2"].graph(SETTINGS[0])
    graph.nodes.append(Node("dequantize", ("x0",), "other"))
    graph.types["other"] = TensorType(graph.types["x0"].shape)
    graph.outputs.append("other")
    fold_expansions(graph, BASELINE)
    assert [node.op for node in graph.nodes] == [*TWO, "dequantize"]


def test_an_image_that_is_added_to_the_result_is_made_once() -> None:
    graph, _ = EXPANSIONS["vectors, rows and columns beyond a workgroup"].graph(SETTINGS[0], "residual requantize")
    graph.nodes[1] = replace(graph.nodes[1], inputs=(*graph.nodes[1].inputs[:-1], "x0"))
    fold_expansions(graph, TARGET)
    assert [node.op for node in graph.nodes] == TWO


def test_operands_that_do_not_fit_are_named() -> None:
    graph, _ = EXPANSIONS["words, stride 2"].graph(SETTINGS[0])
    fold_expansions(graph, BASELINE)
    (node,) = graph.nodes
    types = [graph.types[name] for name in node.inputs]
    with pytest.raises(GraphError, match="three for each of 20 channels, found"):
        OPS[EXPANDED].check((*types[:6], replace(types[6], shape=(3, 19))), node.attrs)
    with pytest.raises(GraphError, match="must be depthwise with a window of 3x3, found"):
        OPS[EXPANDED].check(tuple(types), {**node.attrs, "dilation": (2, 1)})


def test_numbers_that_are_wrong_are_named() -> None:
    """A file may hold the operator: what the kernel relies on is checked."""
    graph, _ = EXPANSIONS["words, stride 2"].graph(SETTINGS[0])
    fold_expansions(graph, BASELINE)
    graph.prune()
    stored = graph.constants[graph.nodes[0].inputs[6]]
    stored[2, 5] += 1
    with pytest.raises(GraphError, match="have a row for the correction, which must be the zero point"):
        verify(graph, RUNNABLE)
    stored[2, 5] -= 1
    stored[0, 3] = np.float32(np.nan).view(np.int32)
    with pytest.raises(GraphError, match="have a row for the multiplier, which"):
        verify(graph, RUNNABLE)
