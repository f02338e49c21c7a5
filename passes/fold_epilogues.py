"""Folds what follows a weighted sum into its dispatch: q8ta_add, q8ta_table, dequantize, pixel_shuffle before it.

The int8 value in between is still formed, in registers: the same bytes (kernels/epilogue/epilogue.py lists the forms).
"""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Attrs, Graph, Node
from q8ta_wgpu.kernels import OPS


def fold_epilogues(graph: Graph) -> None:
    """One sweep; a sum is changed only where what follows is its single reader and it is no graph output."""
    users = graph.users()
    index = {node.output: i for i, node in enumerate(graph.nodes)}
    nodes: list[Node | None] = list(graph.nodes)

    def sole(name: str) -> Node | None:
        """The node as rewritten so far that makes `name` for one reader alone."""
        if name not in index or len(users[name]) != 1 or name in graph.outputs:
            return None
        return nodes[index[name]]

    for i, node in enumerate(graph.nodes):
        for place in _places(node):
            found = sole(node.inputs[place])
            merged = _merged(graph, found, node, place) if found is not None else None
            if merged is None and found is not None and node.op == "dequantize" and found.op == "pixel_shuffle":
                source = sole(found.inputs[0])
                merged = _dequantized(graph, source, node, found.attrs["upscale_factor"]) if source else None
                if merged is not None and source is not None:
                    nodes[index[source.output]] = None
            if merged is not None and found is not None:
                nodes[index[found.output]], nodes[i] = None, merged
                break
    graph.nodes = [node for node in nodes if node is not None]


def _places(node: Node) -> tuple[int, ...]:
    """Operands that may be a sum to fold into: for an add the later one first, as it is computed last."""
    return {"q8ta_add": (1, 0), "q8ta_table": (0,), "dequantize": (0,)}.get(node.op, ())


def _merged(graph: Graph, found: Node, node: Node, place: int) -> Node | None:
    match node.op:
        case "q8ta_add":
            return _summed(graph, found, node, place)
        case "q8ta_table":
            if f"{found.op}_table" not in OPS:
                return None
            attrs = {**_without_range(found.attrs), **_inner(graph, found)}
            inputs = (*found.inputs, node.inputs[1])
            return Node(f"{found.op}_table", inputs, node.output, attrs, found.source)
        case _:
            return _dequantized(graph, found, node, 1)


def _inner(graph: Graph, found: Node) -> Attrs:
    q = graph.types[found.output].q
    assert q is not None
    return {"inner_lo": found.attrs["lo"], "inner_hi": found.attrs["hi"], "inner_zero": q.zero}


def _without_range(attrs: Attrs) -> Attrs:
    return {name: value for name, value in attrs.items() if name not in ("lo", "hi")}


def _summed(graph: Graph, found: Node, node: Node, place: int) -> Node | None:
    other = node.inputs[1 - place]
    shapes = {graph.types[name].shape for name in (*node.inputs, node.output)}
    if f"{found.op}_sum" not in OPS or len(shapes) != 1 or other == found.output:
        return None
    own, addend = ("a", "b") if place == 0 else ("b", "a")
    attrs = {
        **found.attrs,
        **_inner(graph, found),
        "lo": node.attrs["lo"],
        "hi": node.attrs["hi"],
        "inner_multiplier": node.attrs[f"{own}_multiplier"],
        "addend_multiplier": node.attrs[f"{addend}_multiplier"],
        "shift": node.attrs["shift"],
    }
    return Node(f"{found.op}_sum", (*found.inputs, other), node.output, attrs, found.source)


def _dequantized(graph: Graph, found: Node, node: Node, factor: int) -> Node | None:
    q = graph.types[found.output].q
    if f"{found.op}_dequantize" not in OPS or q is None:
        return None
    if factor > 1 and len(graph.types[found.inputs[1]].shape) != 4:  # a linear's channels are innermost, not planes
        return None
    attrs = {**found.attrs, "zero": q.zero, "scale": q.scale, "factor": factor}
    return replace(found, op=f"{found.op}_dequantize", output=node.output, attrs=attrs)
