"""scaled_dot_product_attention as the operators it is made of, so that each can be quantized."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import named_arguments

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default


def expand_attention(module: GraphModule) -> None:
    """softmax(q k^T * scale + mask) v in place of every call that it says all of: one without dropout and grouped
    heads, whose mask is no tensor of bools."""
    for node in list(module.graph.nodes):
        if node.target is _ATTENTION and _is_plain(named_arguments(node)):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(_expanded(module.graph, node, named_arguments(node)))
            module.graph.erase_node(node)
            _reshape_views(module.graph)
    module.recompile()


def _reshape_views(graph: torch.fx.Graph) -> None:
    """A view behind an attention relies on the strides that torch's own kernel gives its result."""
    for node in graph.nodes:
        if node.target is _aten.view.default:
            node.target = _aten.reshape.default


def _is_plain(arguments: dict[str, Any]) -> bool:
    mask = arguments.get("attn_mask")
    unusual = arguments.get("dropout_p") or arguments.get("enable_gqa") or arguments.get("is_causal")
    return not unusual and (mask is None or mask.meta["val"].is_floating_point())


def _expanded(graph: torch.fx.Graph, node: Node, arguments: dict[str, Any]) -> Node:
    """The nodes, at the place of the call in the user's model, with the values that quantizers look at."""

    def call(target: Any, *args: Any) -> Node:
        made = graph.call_function(target, args)
        values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
        made.meta = {**node.meta, "val": target(*values)}
        return made

    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    scale = arguments.get("scale") or 1.0 / math.sqrt(query.meta["val"].shape[-1])
    scores = call(_aten.matmul.default, query, call(_aten.transpose.int, key, -2, -1))
    scores = call(_aten.mul.Tensor, scores, float(scale))
    if arguments.get("attn_mask") is not None:
        scores = call(_aten.add.Tensor, scores, arguments["attn_mask"])
    return call(_aten.matmul.default, call(_aten.softmax.int, scores, -1), value)
