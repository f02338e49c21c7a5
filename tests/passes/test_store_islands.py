"""Float values between integers are stored in 16 bits, and so are the constants that they read."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.verify import verify
from q8ta_wgpu.passes.store_islands import store_islands

Q = QParams(0.1, 3)


@pytest.mark.parametrize("second", ["c", "d"])
def test_all_constants_of_a_sum_are_stored(second: str) -> None:
    """Also where two are read by one operator, or one is read twice."""
    graph = Graph(["x"], ["q"], types={"x": TensorType((2, 3), INT8X4, Q)})
    for name in ("c", "d"):
        graph.add_constant(name, np.array([[1.0, 2.0, 3.0]], np.float32))
    nodes = {
        "f": Node("dequantize", ("x",), "f"),
        "s": Node("mul", ("c", second), "s"),
        "y": Node("mul", ("f", "s"), "y"),
        "q": Node("quantize", ("y",), "q", {"lo": -128, "hi": 127}),
    }
    graph.nodes = list(nodes.values())
    graph.types |= {"f": TensorType((2, 3)), "s": TensorType((1, 3)), "y": TensorType((2, 3)), "q": graph.types["x"]}
    store_islands(graph)
    verify(graph, "store_islands")
    (node,) = (node for node in graph.nodes if node.output == "s")
    made = {each.output: each.op for each in graph.nodes}
    assert [made.get(name) for name in node.inputs] == ["dequantize", "dequantize"]
