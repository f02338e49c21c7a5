"""Which elements of a value are taken, where readers of it leave some out. One that is read has to be counted."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Array, Graph, Node, TensorType
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.passes.plan.left_out import Taken, taken_elements
from q8ta_wgpu.quantization.zeros import Zeros

GRAPHS: dict[str, tuple[dict[str, tuple[str, ...]], tuple[str, ...], Taken]] = {
    "chosen": ({"y": ("where", "m", "e", "x")}, ("y",), {"m": True}),
    "chosen where bools are False": ({"y": ("where", "m", "x", "e")}, ("y",), {"m": False}),
    "chosen by either": (
        {"y": ("where", "m", "e", "x"), "z": ("where", "n", "x", "e")},
        ("y", "z"),
        {"m": True, "n": False},
    ),
    "chosen by both sides": ({"y": ("where", "m", "e", "x"), "z": ("where", "m", "x", "e")}, ("y", "z"), {}),
    "both operands": ({"y": ("where", "m", "e", "e")}, ("y",), {}),
    "an output as well": ({"y": ("where", "m", "e", "x")}, ("y", "e"), {}),
    "compared as well": ({"c": ("gt", "e", "x"), "y": ("where", "c", "e", "x")}, ("y",), {}),
    "bools themselves": ({"y": ("where", "m", "e", "x"), "z": ("where", "e", "x", "y")}, ("z",), {}),
    "a later choice": ({"y": ("where", "m", "e", "x"), "z": ("where", "n", "y", "x")}, ("z",), {"m": True}),
    "through a sum": ({"s": ("hypot", "e", "x"), "y": ("where", "m", "s", "x")}, ("y",), {"m": True}),
    "beside a sum": ({"s": ("hypot", "e", "x"), "y": ("where", "m", "e", "s")}, ("y",), {}),
    "through an average": ({"a": ("adaptive_avg_pool2d", "e"), "y": ("where", "m", "a", "x")}, ("y",), {}),
    "smaller": ({"s": ("hypot", "e", "large"), "y": ("where", "large", "s", "x")}, ("y",), {}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_which_elements_are_taken(name: str) -> None:
    nodes, outputs, wanted = GRAPHS[name]
    graph = Graph(inputs=["x", "m", "n", "large"], outputs=list(outputs))
    graph.types |= {name: TensorType((1, 1, 2, 4)) for name in "xmn"} | {"large": TensorType((3, 1, 2, 4))}
    for output, (op, *operands) in {"e": ("exp", "x"), **nodes}.items():
        attrs = {"output_size": (2, 4)} if op == "adaptive_avg_pool2d" else {}
        graph.nodes.append(Node(op, tuple(operands), output, attrs))
        graph.types[output] = infer(graph, graph.nodes[-1])
    assert taken_elements(graph).get("e", {}) == wanted


def test_values_wait_for_all_bools() -> None:
    """What any of them takes is given on."""
    found: dict[str, Array] = {}
    zeros = Zeros({"e": {"m": True, "n": False}}, {}, found.__setitem__)
    e, m, n = (np.array(values, np.float32) for values in ([1, 2, 3, np.nan], [1, 0, 0, 0], [1, 1, 0, 1]))
    for name, array in {"e": e, "m": m, "n": n}.items():
        assert "e" not in found
        zeros.meet(name, array)
    np.testing.assert_array_equal(found["e"], [1, 0, 3, 0])
