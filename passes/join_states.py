"""The hidden states of a recurrent layer in float32, and its last state, by one dispatch: a node has one result, and a
layer whose states are both wanted ran twice."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.view import LEFT, RIGHT
from q8ta_wgpu.passes.rewriter import Rewriter


def join_states(graph: Graph, target: Target) -> None:
    """Makes the sequence and the state of a layer slices of both."""
    rewriter, found = Rewriter(graph), dict[object, list[Node]]()
    for node in graph.nodes:
        if node.attrs.get("result") in ("sequence", "state") and graph.types[node.output].dtype == FLOAT32:
            found.setdefault(_layer(graph, node), []).append(node)
    for nodes in found.values():
        if len(nodes) == 2:
            _join(rewriter, *nodes)
    rewriter.commit()


def _layer(graph: Graph, node: Node) -> object:
    """Equal for the nodes of a layer. Each of them may have its own copy of a constant."""
    arrays = ((name, graph.constants.get(name)) for name in node.inputs)
    inputs = tuple(name if array is None else _key(array) for name, array in arrays)
    return node.op, inputs, *(node.attrs[name] for name in ("reverse", "batch_first", "shifts"))


def _key(array: Array) -> object:
    return array.dtype.str, array.shape, array.tobytes()


def _join(rewriter: Rewriter, first: Node, second: Node) -> None:
    time = 1 if first.attrs["batch_first"] else 0
    sequence, state = sorted((first, second), key=lambda node: node.attrs["result"])
    if sequence.attrs["result"] == state.attrs["result"]:
        return
    steps = rewriter.graph.types[sequence.output].shape[time]
    attrs = {**first.attrs, "result": "both"}
    both = rewriter.insert(first, first.op, first.inputs, attrs, f"{sequence.output}.both")
    rewriter.replace(sequence, Node("slice", (both,), sequence.output, _part(time, 0, steps), sequence.source))
    last = rewriter.insert(state, "slice", (both,), _part(time, steps, steps + 1), f"{state.output}.last")
    view = {"shape": (LEFT if time else RIGHT, RIGHT)}
    rewriter.replace(state, replace(state, op="view", inputs=(last,), attrs=view))


def _part(time: int, start: int, end: int) -> Attrs:
    return {"dim": time, "start": start, "end": end, "step": 1, "extent": 0}
