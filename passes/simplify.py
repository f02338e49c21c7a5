"""Drops nodes that change nothing, and computes equal nodes once."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node

_SAME_SHAPE = ("view", "expand", "permute", "slice", "pad")


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.op not in _SAME_SHAPE or graph.types[node.inputs[0]] != graph.types[node.output]:
        return False
    match node.op:
        case "permute":
            return list(node.attrs["dims"]) == sorted(node.attrs["dims"])
        case "slice":
            return bool(node.attrs["step"] == 1)
        case "pad":
            return not any(node.attrs["padding"])
        case _:
            return True


def _repeats(graph: Graph, node: Node) -> bool:
    """Whether a node is a cat of one value with itself along a dimension of extent 1: an expand, in one read."""
    first = graph.types[node.inputs[0]].shape if node.inputs else ()
    return node.op == "cat" and len(set(node.inputs)) == 1 < len(node.inputs) and first[node.attrs["dim"]] == 1


def simplify(graph: Graph) -> None:
    """Removes views, permutes, slices and pads that do nothing, merges equal nodes, and makes
    an expand of a cat that repeats one value."""
    renamed: dict[str, str] = {}
    seen: dict[object, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = Node(node.op, tuple(renamed.get(i, i) for i in node.inputs), node.output, node.attrs, node.source)
        if _repeats(graph, node):
            shape = [-1] * len(graph.types[node.output].shape)
            shape[node.attrs["dim"]] = len(node.inputs)
            node = replace(node, op="expand", inputs=node.inputs[:1], attrs={"shape": tuple(shape)})
        key = (node.op, node.inputs, repr(sorted(node.attrs.items())), graph.types[node.output])
        if _is_identity(graph, node):
            renamed[node.output] = node.inputs[0]
        elif key in seen:
            renamed[node.output] = seen[key]
        else:
            seen[key] = node.output
            kept.append(node)
    graph.nodes = kept
    graph.outputs = [renamed.get(name, name) for name in graph.outputs]
