"""Drops nodes that change nothing, and computes equal nodes once."""

from __future__ import annotations

from q8ta_wgpu.ir import Graph, Node

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


def simplify(graph: Graph) -> None:
    """Removes views, permutes, slices and pads that do nothing, and merges nodes with equal inputs and attributes."""
    renamed: dict[str, str] = {}
    seen: dict[object, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = Node(node.op, tuple(renamed.get(i, i) for i in node.inputs), node.output, node.attrs, node.source)
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
