"""Expands scaled_dot_product_attention into operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export import editor
from q8ta_wgpu.frontend.nodes import constant, is_constant, named_arguments
from q8ta_wgpu.ir.int8 import MASKED

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default


def expand_attention(module: GraphModule) -> None:
    """Replaces every call without dropout by softmax(q k^T * scale + mask) v. Rows that are masked as a whole give
    zeros, as torch's attention does and the integers do."""
    for node in list(module.graph.nodes):
        if node.target is _ATTENTION and _is_plain(arguments := named_arguments(node)):
            node.replace_all_uses_with(_expanded(module, node, arguments))
            module.graph.erase_node(node)
            _reshape_views(module.graph)


def _reshape_views(graph: torch.fx.Graph) -> None:
    """Replaces views behind an attention by reshapes: they rely on the strides of the result of torch's own kernel."""
    for node in graph.nodes:
        if node.target is _aten.view.default:
            node.target = _aten.reshape.default


def _is_plain(arguments: dict[str, Any]) -> bool:
    mask, causal = arguments.get("attn_mask"), arguments.get("is_causal")
    return not arguments.get("dropout_p") and not (causal and mask is not None)


def _expanded(module: GraphModule, node: Node, arguments: dict[str, Any]) -> Node:
    """The new nodes, with the call's position in the user's model and the values that quantizers look at."""

    call = functools.partial(editor.call, node)
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if arguments.get("enable_gqa"):
        heads = query.meta["val"].shape[-3]
        key, value = (_repeated(call, x, heads // x.meta["val"].shape[-3]) for x in (key, value))
    scale = arguments.get("scale")
    if scale is None:
        scale = 1.0 / math.sqrt(query.meta["val"].shape[-1])
    scores = call(_aten.matmul.default, query, call(_aten.transpose.int, key, -2, -1))
    scores = call(_aten.mul.Tensor, scores, float(scale))
    if (mask := _mask(module, node, scores, arguments)) is not None:
        scores = call(_aten.add.Tensor, scores, mask)
    return call(_aten.matmul.default, call(_aten._safe_softmax.default, scores, -1), value)


def _repeated(call: Callable[..., Node], x: Node, times: int) -> Node:
    """Keys or values of grouped heads, each repeated for its heads of queries."""
    if times == 1:
        return x
    split = call(_aten.unsqueeze.default, x, -3)
    sizes = [times if i == split.meta["val"].dim() - 3 else -1 for i in range(split.meta["val"].dim())]
    return call(_aten.flatten.using_ints, call(_aten.expand.default, split, sizes), -4, -3)


def _mask(module: GraphModule, node: Node, scores: Node, arguments: dict[str, Any]) -> Node | None:
    """The term of the scores: a new constant for constant bools and for a causal attention; None if there is none. It
    has -inf only where a row may be masked as a whole."""
    mask = arguments.get("attn_mask")
    if arguments.get("is_causal"):
        unmasked = torch.ones(scores.meta["val"].shape[-2:], dtype=torch.bool).tril()
    elif mask is None or mask.meta["val"].is_floating_point():
        return mask if isinstance(mask, Node) else None
    elif is_constant(mask):
        unmasked = constant(module, mask)
    else:  # bools that the network computes
        value = scores.meta["val"].new_zeros(mask.meta["val"].shape)
        return editor.call(node, _aten.where.Scalar, mask, 0.0, -math.inf, value=value)
    low = MASKED if unmasked.any(-1).all() else -math.inf
    term = torch.zeros(unmasked.shape, dtype=torch.float32).masked_fill(~unmasked, low)
    return editor.new_constant(module, node, f"_mask_{node.name}", term)
