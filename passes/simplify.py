"""Removes nodes that change nothing, and merges equal nodes and equal constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

_SAME_SHAPE = ("view", "expand", "permute", "slice", "pad", "cat")


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


def _as_expand(graph: Graph, node: Node) -> Node:
    """The expand that equals a cat of one value with itself along a dimension of extent 1; other nodes as they are."""
    first = graph.types[node.inputs[0]].shape if node.inputs else ()
    if node.op != "cat" or len(set(node.inputs)) != 1 or first[node.attrs["dim"]] != 1:
        return node
    shape = [-1] * len(first)
    shape[node.attrs["dim"]] = len(node.inputs)
    return replace(node, op="expand", inputs=node.inputs[:1], attrs={"shape": tuple(shape)})


def simplify(graph: Graph, inner: Mapping[str, str] = MappingProxyType({})) -> None:
    """Removes views, permutes, slices, pads and cats that do nothing, merges equal nodes and equal constants, and
    replaces a cat that repeats one value by an expand.

    Equal float weighted sums are not merged yet, since different operators may be fused into each of them.

    Args:
        graph: which is changed.
        inner: by values within a call of the user's program, the call: they are merged within it alone.
    """
    rewriter = Rewriter(graph)
    _share_constants(rewriter)
    equal: dict[object, str] = {}
    for original in rewriter.nodes():
        node = rewriter.replace(original, _as_expand(graph, original))
        first = equal.setdefault((graph.call(node), node.inputs, inner.get(node.output)), node.output)
        if _is_identity(graph, node):
            rewriter.alias(node.output, node.inputs[0])
        elif first != node.output and not isinstance(OPS[node.op].int8, WeightedSum):
            rewriter.alias(node.output, first)
    rewriter.commit()


def _share_constants(rewriter: Rewriter) -> None:
    """Merges equal constants: a module that is called several times has a copy of its weights for each call."""
    unique: dict[object, str] = {}
    for name, array in rewriter.graph.constants.items():
        digest = hashlib.sha256(array.tobytes()).digest()
        first = unique.setdefault((rewriter.graph.types[name], digest), name)
        if first != name:
            rewriter.alias(name, first)
