"""scaled_dot_product_attention as the operators it is made of, and where these are attention, however it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.choices import CHOICE
from q8ta_wgpu.frontend.calibrate.masks import given_mask
from q8ta_wgpu.frontend.nodes import (
    constant,
    integer,
    is_constant,
    is_float,
    is_kept,
    kind,
    multiplies,
    named_arguments,
    scales,
)
from q8ta_wgpu.ir.int8 import MASKED, Moves
from q8ta_wgpu.kernels.attention.attention import bias_of, takes
from q8ta_wgpu.kernels.attention.sizes import Sizes

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims)


def expand_attention(module: GraphModule) -> None:
    """softmax(q k^T * scale + mask) v in place of every call that says all of: one without dropout."""
    for node in list(module.graph.nodes):
        if node.target is _ATTENTION and _is_plain(arguments := named_arguments(node)):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(_expanded(module, node, arguments))
            module.graph.erase_node(node)
            _reshape_views(module.graph)


def _reshape_views(graph: torch.fx.Graph) -> None:
    """A view behind an attention relies on the strides that torch's own kernel gives its result."""
    for node in graph.nodes:
        if node.target is _aten.view.default:
            node.target = _aten.reshape.default


def _is_plain(arguments: dict[str, Any]) -> bool:
    mask, causal = arguments.get("attn_mask"), arguments.get("is_causal")
    return not arguments.get("dropout_p") and not (causal and mask is not None)


def _expanded(module: GraphModule, node: Node, arguments: dict[str, Any]) -> Node:
    """The nodes, at the place of the call in the user's model, with the values that quantizers look at."""

    def call(target: Any, *args: Any) -> Node:
        made = module.graph.call_function(target, args)
        values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
        made.meta = {**node.meta, "val": target(*values)}
        return made

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
    return call(_aten.matmul.default, call(_aten.softmax.int, scores, -1), value)


def _repeated(call: Callable[..., Node], x: Node, times: int) -> Node:
    """Keys or values of grouped heads, each as often as there are heads of queries for it."""
    if times == 1:
        return x
    split = call(_aten.unsqueeze.default, x, -3)
    sizes = [times if i == split.meta["val"].dim() - 3 else -1 for i in range(split.meta["val"].dim())]
    return call(_aten.flatten.using_ints, call(_aten.expand.default, split, sizes), -4, -3)


def _mask(module: GraphModule, node: Node, scores: Node, arguments: dict[str, Any]) -> Node | None:
    """What to add to the scores; of constant bools, and for a causal attention, a new constant."""
    given = arguments.get("attn_mask")
    if arguments.get("is_causal"):
        takes_part = torch.ones(scores.meta["val"].shape[-2:], dtype=torch.bool).tril()
    elif given is None or given.meta["val"].is_floating_point():
        return given if isinstance(given, Node) else None
    elif is_constant(given):
        takes_part = constant(module, given)
    else:  # bools that are known when the network runs: PyTorch makes numbers of them
        with module.graph.inserting_before(node):
            made = module.graph.call_function(CHOICE, (given, 0.0, MASKED))
        made.meta = {**node.meta, "val": scores.meta["val"].new_zeros(given.meta["val"].shape)}
        return made
    name = f"_mask_{node.name}"
    module.register_buffer(name, torch.zeros(takes_part.shape, dtype=torch.float32).masked_fill(~takes_part, MASKED))
    made = module.graph.get_attr(name)
    made.meta = {**node.meta, "val": scores.meta["val"].new_zeros(takes_part.shape)}
    return made


@dataclass(frozen=True)
class Attention:
    """Calls that are one q8ta_attention: the product that gives scores, what makes weights of them, and the product of
    weights and values."""

    scores: Node
    between: tuple[Node, ...]
    context: Node

    @property
    def values(self) -> Node:
        """What weights are multiplied with."""
        return self.context.all_input_nodes[1]


def attention_of(softmax: Node) -> Attention | None:
    """The attention a softmax is part of: scores of two activations, with factors, constants and one mask of bools that
    are added, and views between, each read by the next alone, and a product of the result with values. Rows are whole
    words."""
    if softmax.target is not _aten.softmax.int or softmax.args[1] not in (-1, softmax.meta["val"].dim() - 1):
        return None
    between, x, masked = [softmax], softmax.args[0], False
    while isinstance(x, Node) and not multiplies(x):
        mask = None if masked or x.meta["val"].dim() > 4 else _chosen(x)
        read = [n for n in x.all_input_nodes if not is_constant(n) and n is not mask]
        biased = x.target is _aten.add.Tensor and x.kwargs.get("alpha", 1) == 1 and len(x.all_input_nodes) == 2
        held = all(_is_bias(n) for n in x.all_input_nodes if is_constant(n))
        if len(read) != 1 or not ((biased and held) or scales(x) or x.target in _VIEWS):
            return None
        masked |= mask is not None
        between.append(x)
        x = read[0]
    context = next(iter(softmax.users))
    if not isinstance(x, Node) or not multiplies(context) or [n is softmax for n in context.args] != [True, False]:
        return None
    found = Attention(x, tuple(between), context)
    alone = all(len(node.users) == 1 and is_float(node) for node in (x, *between))
    kept = any(map(is_kept, (x, *between, context)))
    return found if alone and not kept and _is_whole(found) else None


def _chosen(node: Node) -> Node | None:
    """The term of a sum that is a choice by bools between 0 and a number that masks, moved or not."""
    mask = choice = given_mask(node)
    while choice is not None and isinstance(kind(choice), Moves) and len(choice.all_input_nodes) == 1:
        choice = choice.all_input_nodes[0]
    return mask if choice is not None and choice.target is CHOICE else None


def _is_bias(node: Node) -> bool:
    """Whether attention takes a constant as a bias: one without rows of numbers beside which scores are lost."""
    module = node.graph.owning_module
    assert module is not None
    return bias_of(np.atleast_1d(constant(module, node).detach().float().numpy())) is not None


def _is_whole(found: Attention) -> bool:
    """Whether the extents of operands belong together without repeating any, and a kernel takes them."""
    operands = (*found.scores.args[:2], found.values, found.scores, found.between[0])
    q, k, v, *scores = ([integer(n) for n in node.meta["val"].shape] for node in operands if isinstance(node, Node))
    if len(scores) != 2 or scores[0] != scores[1] or min(map(len, (q, k, v))) < 3:
        return False
    if q[:-2] != k[:-2] or q[:-2] != v[:-2] or q[-1] != k[-2] or k[-1] != v[-2]:
        return False
    return takes(Sizes(math.prod(q[:-3]), q[-3], q[-2], k[-1], q[-1], v[-1]))
