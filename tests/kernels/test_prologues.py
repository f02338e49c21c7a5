"""Prologues: products that read parts of tensors in place give the bytes of the moves and the convolution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Node, TensorType
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels.product.units import NVIDIA
from q8ta_wgpu.kernels.prologue.prologue import Part, Prologue
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.fold_moves import fold_moves
from q8ta_wgpu.passes.fold_producers import fold_stages
from q8ta_wgpu.runtime.device import Device
from testbed import harness, moved_graphs, op_graphs
from testbed.moved_graphs import MOVED, fused
from testbed.sample import EVERYTHING

TARGETS = tuple(replace(target, storage_buffers=10) for target in (BASELINE, SOFTWARE))
"""Three tensors and a residual are more than WebGPU's eight buffers."""

UNITS = replace(BASELINE, matrix_units=(NVIDIA,))

ZEROS = (0, 1, 2)
"""Settings with zero points in the middle and at both ends."""


@pytest.mark.parametrize("after", ["", "residual requantize", "requantize add dequantize"])
@pytest.mark.parametrize("name", MOVED)
def test_every_kernel(name: str, after: str, device: Device) -> None:
    """0 bytes differ, in the reference and on a device. A case meets every third tile, each zero point another one;
    fewer with more than rounding behind the sum."""
    for turn in ZEROS[:1] if after else ZEROS:
        graph, inputs = MOVED[name].graph(op_graphs.SETTINGS[turn], after)
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        parts = fused(graph, TARGETS[0])
        verify(parts, RUNNABLE)
        assert [node.op for node in parts.nodes] == ["q8ta_conv2d_parts"]
        np.testing.assert_array_equal(reference.run(parts, inputs)[parts.outputs[0]], expected)
        for place, (label, plan) in enumerate(harness.plans(parts, 0, TARGETS)):
            if not EVERYTHING and (place + turn + len(name) + len(after)) % (8 if after else 3):
                continue
            (found,) = harness.run_poisoned(parts, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=f"{label}, {turn}")


def test_a_value_that_something_else_reads_as_well(device: Device) -> None:
    """What a sigmoid reads is stored by one q8ta_take_channels; the convolution reads it, too."""
    graph, inputs = MOVED["shuffle"].graph(op_graphs.SETTINGS[1])
    graph.nodes.append(Node("dequantize", ("x0",), "other"))
    graph.types["other"] = TensorType(graph.types["x0"].shape)
    graph.outputs.append("other")
    expected = reference.run(graph, inputs)
    lowered = fused(graph, BASELINE)
    assert [node.op for node in lowered.nodes] == ["q8ta_take_channels", "q8ta_conv2d", "dequantize"]
    for found, name in zip(harness.run_poisoned(graph, inputs, None, device), graph.outputs, strict=True):
        np.testing.assert_array_equal(found, expected[name])


def test_two_halves_of_which_one_is_stored(device: Device) -> None:
    """As at the end of a stage of ShuffleNet: a convolution reads one half of a shuffle, an output is the other."""
    graph, inputs = MOVED["shuffle"].graph(op_graphs.SETTINGS[2])
    (whole,) = graph.nodes[-2].inputs
    first = {**graph.nodes[-2].attrs, "start": 0, "end": 10}
    graph.nodes.append(Node("slice", (whole,), "first", first))
    graph.types["first"] = graph.types["x0"]
    graph.outputs.append("first")
    expected = reference.run(graph, inputs)
    lowered = fused(graph, BASELINE)
    assert sorted(node.op for node in lowered.nodes) == ["q8ta_conv2d_parts", "q8ta_take_channels"]
    for found, name in zip(harness.run_poisoned(graph, inputs, None, device), graph.outputs, strict=True):
        np.testing.assert_array_equal(found, expected[name])


@pytest.mark.parametrize(
    ("name", "target", "pays"),
    [("upsample", SOFTWARE, False), ("halves", SOFTWARE, True), ("upsample", BASELINE, True)],
)
def test_where_several_tensors_are_read(name: str, target: Target, pays: bool) -> None:
    """On a CPU a window larger than 1x1 reads one tensor."""
    graph, _ = MOVED[name].graph(op_graphs.SETTINGS[0])
    operators = [node.op for node in graph.nodes]
    fold_moves(graph, target)
    assert [node.op for node in graph.nodes] == (["q8ta_conv2d_parts"] if pays else operators)


@pytest.mark.parametrize(
    ("name", "target", "pays"),
    [
        ("gate", SOFTWARE, True),
        ("gate of vectors", UNITS, True),
        ("gate of many", UNITS, False),
        ("gate of many", SOFTWARE, True),
        ("gate", BASELINE, False),
    ],
)
def test_where_gates_pay(name: str, target: Target, pays: bool) -> None:
    """Each tile of 16 or more channels computes the gate again."""
    graph, _ = MOVED[name].graph(op_graphs.SETTINGS[0])
    fold_stages(graph, target)
    assert [node.op for node in graph.nodes] == (["q8ta_conv2d_parts"] if pays else ["q8ta_mul", "q8ta_conv2d"])


def test_channels_in_any_order(device: Device) -> None:
    graph = moved_graphs.taken()
    verify(graph, RUNNABLE)
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(-128, 128, graph.types[name].shape).astype(np.int8) for name in graph.inputs}
    both = np.concatenate(list(inputs.values()), 1)
    (found,) = harness.run_poisoned(graph, inputs, None, device)
    np.testing.assert_array_equal(found, both[:, [9, 0, 16, 6, 3, 3, 12, 7, 1]])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "a prologue has 1 to 16 parts"),
        ((Part(1, 0, 1, 0),), "tensors 0, 1 and so on"),
        ((Part(0, 0, 0, 0),), "has vectors"),
        ((Part(0, 0, 1, 9),), "a shift of 0 to 8"),
    ],
)
def test_wrong_parts(parts: tuple[Part, ...], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Prologue(parts)
