"""Graphs of linears whose rows have scales that the device chooses, with all that may follow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from testbed.epilogue_graphs import unfused_epilogue
from testbed.op_graphs import Setting

LINEAR = OPS["linear"]

AFTER = (
    ("requantize", Setting((0, 0, 3), "random", (INT16X4, INT8X4, INT8X4))),
    ("requantize", Setting((-700, 0, -5000), "saturate", (INT16X4, INT8X4, INT16X4))),
    ("residual requantize", Setting((11, -7, 5), "random", (INT16X4, INT8X4, INT8X4))),
    ("residual requantize", Setting((0, 300, 0), "random", (INT16X4, INT16X4, INT16X4))),
    ("curve requantize", Setting((-300, 0, -100), "random", (INT16X4, INT8X4, INT8X4))),
    ("requantize add", Setting((127, 3, -128), "random", (INT16X4, INT8X4, INT8X4))),
    ("requantize table dequantize", Setting((1, 0, 7), "random", (INT16X4, INT8X4, INT8X4))),
    ("scale", Setting((-1, 0, 0), "random", (INT16X4, INT8X4, INT8X4))),
)
"""What follows a linear, and the setting."""

CASES = (0, 1, 2, 9, 11, 13, 5)
"""Of linear: one row and more, tails, batches, weights of 4 bits."""


def graph_of(index: int, after: str, setting: Setting, dtype: str) -> tuple[Graph, dict[str, Array]]:
    """A linear of rows, each with its scale, of int16 or of float32 values. Rows are of zeros, of negative numbers
    alone, and of one number that is far larger than the others."""
    graph, inputs = unfused_epilogue(LINEAR, LINEAR.cases[index], setting, after)
    x = inputs["x0"] = _rows(inputs["x0"], setting.zeros[0])
    source = "x0"
    if dtype == FLOAT32:
        q = graph.types["x0"].q
        assert q is not None
        inputs["x0"] = arithmetic.dequantize(x, q)
        graph.types["x0"] = TensorType(x.shape)
    types = graph.types
    types["scales"] = TensorType((*x.shape[:-1], 1))
    types["rows"] = TensorType(x.shape, INT8X4, arithmetic.row_unit(types[source].q))
    types["steps"] = types["real rows"] = TensorType(x.shape)
    made = [
        Node("row_scale", ("x0",), "scales"),
        Node("quantize_rows", ("x0", "scales"), "rows"),
        Node("dequantize", ("rows",), "steps"),
        Node("mul", ("steps", "scales"), "real rows"),
    ]
    nodes = [node for node in graph.nodes if node.output != "r0"]
    place = next(i for i, node in enumerate(nodes) if node.op == "linear")
    nodes[place] = Node("linear", ("real rows", *nodes[place].inputs[1:]), nodes[place].output)
    graph.nodes = [*made, *nodes]
    del types["r0"]
    return graph, inputs


def single_nodes() -> Iterator[tuple[Graph, int]]:
    """The linear alone of each of AFTER, and its case; and what makes rows of int16."""
    for number, (after, setting) in enumerate(AFTER):
        index = CASES[number % len(CASES)]
        graph, values = fused(index, after, setting, INT16X4)
        for node in graph.nodes[2 if number else 0 :]:
            yield alone(graph, values, node)[0], index


def fused(index: int, after: str, setting: Setting, dtype: str) -> tuple[Graph, dict[str, Array]]:
    """The fused graph of a linear of rows, and all of its values."""
    unfused, inputs = graph_of(index, after, setting, dtype)
    graph = run_passes(unfused)
    assert not graph.notes, graph.notes
    assert [node.op for node in graph.nodes] == ["row_scale", "quantize_rows", "q8ta_linear"]
    return graph, {**inputs, **reference.run(graph, inputs, keep=True)}


def alone(graph: Graph, values: dict[str, Array], node: Node) -> tuple[Graph, dict[str, Array]]:
    given = {name: values[name] for name in node.inputs if name not in graph.constants}
    alone = Graph(list(given), [node.output], [node])
    alone.types = {name: graph.types[name] for name in (*node.inputs, node.output)}
    alone.constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    return alone, given


def _rows(x: Array, zero: int) -> Array:
    rows = x.reshape(-1, x.shape[-1]).astype(np.int64) - zero
    rows[1::4] = 0
    rows[2::4] = -np.abs(rows[2::4]) // 300
    rows[3::4] //= 1000
    rows[3::4, :1] = 20000
    return np.clip(rows + zero, -(2**15), 2**15 - 1).astype(np.int16).reshape(x.shape)
