"""Kernels of int16 activations give what the reference gives, for sums past int32, too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import harness, int16_graphs
from testbed.sample import EVERYTHING

EVERY = 12
"""Of the kernels of a graph, one in twelve runs, and the general one of every third graph; test_wgsl.py compiles
all."""

DEEP = 100
"""A product of two activations with sums of more elements than this runs on every kernel: a tile takes several steps
for them."""


def _operator(name: str) -> str:
    """The operator of a graph."""
    return GRAPHS[name][0].nodes[0].op


GRAPHS = {name: (graph, inputs) for name, graph, inputs in int16_graphs.single_nodes()}
BY_OPERATOR = [
    (name, index)
    for _, names in itertools.groupby(sorted(GRAPHS, key=_operator), _operator)
    for index, name in enumerate(names)
]
"""Each graph, and its index among those of its operator: a sampled backend meets one in so many (testbed/sample.py)."""
SUMS = {
    name: (graph, inputs)
    for name, _, graph, inputs in (
        *itertools.islice(int16_graphs.sums_of_int16(), 0, None, 4),
        *itertools.islice(int16_graphs.products_of_int16(), 0, None, 3),
    )
}


@pytest.mark.parametrize(("name", "index"), BY_OPERATOR)
def test_kernels(name: str, index: int, device: Device) -> None:
    """0 mismatches."""
    graph, inputs = GRAPHS[name]
    assert not graph.notes, graph.notes
    assert len(graph.nodes) == 1
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    by_kernel = [
        (kernel, next(plans))
        for kernel, plans in itertools.groupby(harness.plans(graph, 0), lambda item: item[1].steps[0].variant.kernel)
    ]
    turn, node = list(GRAPHS).index(name), graph.nodes[0]
    deep = node.op == "q16ta_matmul" and graph.types[node.inputs[0]].shape[-1] > DEEP
    for place, (_, (what, plan)) in enumerate(by_kernel):
        general = place == len(by_kernel) - 1 and turn % 3 == 0
        if general or deep or (place + turn) % EVERY == 0 or EVERYTHING:
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=what)


@pytest.mark.parametrize("name", SUMS)
def test_weighted_sums_of_int16(name: str, device: Device) -> None:
    """A weighted sum of int16 is one node, as a product of activations: 0 mismatches."""
    unfused, inputs = SUMS[name]
    graph = run_passes(unfused)
    assert not graph.notes, graph.notes
    assert [node.op for node in graph.nodes] == [f"q16ta_{name.split()[0]}"]
    (found,) = harness.run_poisoned(graph, inputs, None, device)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)[graph.outputs[0]])


def _long(depth: int, rows: int, zero: int) -> tuple[Graph, dict[str, Array]]:
    """A linear of int16 with extreme values and weights whose float32 result is its sum."""
    graph = Graph(["x"], ["y"])
    graph.types = {
        "x": TensorType((rows, depth), INT16X4, QParams(1.0, zero, INT16X4)),
        "real": TensorType((rows, depth)),
    }
    graph.nodes = [Node("dequantize", ("x",), "real")]
    signs = np.random.default_rng(0).choice([-127, 127], (5, depth)).astype(np.int8)
    signs[0], signs[1, 1:] = 127, signs[1, :-1]
    scale = np.ones(5, np.float32)
    names = (
        graph.add_constant("w0", signs),
        graph.add_constant("s", scale),
        graph.add_constant("z", np.zeros(5, np.int32)),
    )
    graph.types |= {"w": TensorType((5, depth)), "y": TensorType((rows, 5))}
    graph.nodes.append(Node("dequantize_weight", names, "w", {"axis": 0}))
    graph.nodes.append(Node("linear", ("real", "w", graph.add_constant("b", scale * 0)), "y"))
    x = np.random.default_rng(1).choice([-32768, 32767], (rows, depth)).astype(np.int16)
    x[0] = 32767 if zero <= 0 else -32768
    return graph, {"x": x}


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("zero", [0, -32768, 32767])
def test_sums_past_int32_are_exact(zero: int, rows: int, vulkan: Device) -> None:
    """A float32 result of a linear of int16 is the exact sum, rounded once: up to 2^38 here."""
    unfused, inputs = _long(1000 if rows > 8 else 60_000, rows, zero)
    graph = run_passes(unfused)
    assert [node.op for node in graph.nodes] == ["q16ta_linear"], graph.notes
    exact = (inputs["x"].astype(np.int64) - zero) @ unfused.constants["w0"].astype(np.int64).T
    assert np.abs(exact).max() > 2**31
    (found,) = harness.run_poisoned(graph, inputs, None, vulkan)
    np.testing.assert_array_equal(found, exact.astype(np.float32))


def test_a_linear_of_int16_whose_half_passes_int32_stays_in_float() -> None:
    graph = run_passes(_long(140_000, 1, 0)[0])
    assert "linear" in [node.op for node in graph.nodes]
    assert any("its accumulator could reach" in note and "past int32" in note for note in graph.notes), graph.notes


@pytest.mark.parametrize("channels", [3, 8, 20, 94])
@pytest.mark.parametrize(("zero", "scale"), [(-32768, 0.9), (32767, 1.1), (5, 40.0)])
def test_means_of_whole_images(channels: int, zero: int, scale: float, device: Device) -> None:
    """The kernels of whole images, with words that are no vectors and channels that fill no word: 0 mismatches."""
    types = {
        "x": TensorType((3, channels, 11, 13), INT16X4, QParams(1.0, zero, INT16X4)),
        "y": TensorType((3, channels, 1, 1), INT16X4, QParams(1.0 / scale, -7, INT16X4)),
    }
    attrs = {"output_size": (1, 1), "ratio": scale, "lo": -32000, "hi": 32767}
    graph = Graph(["x"], ["y"], types=types, nodes=[Node("q8ta_adaptive_avg_pool2d", ("x",), "y", attrs)])
    x = np.random.default_rng(channels).integers(-32768, 32768, types["x"].shape).astype(np.int16)
    x[0], x[1, :1] = 32767, -32768
    expected = reference.run(graph, {"x": x})["y"]
    plans = [plan for what, plan in harness.plans(graph, 0) if plan.steps[0].variant.kernel.name.endswith(".image")]
    assert plans
    for plan in plans:
        (found,) = harness.run_poisoned(graph, {"x": x}, plan, device)
        np.testing.assert_array_equal(found, expected)
