"""scaled_dot_product_attention as the operators it is made of, so that each can be quantized."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import is_constant, is_float, kind, named_arguments
from q8ta_wgpu.ir.int8 import MASKED, Arithmetic, Elementwise, Moves, Rowwise

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_CHOICE = _aten.where.Scalar
"""Makes numbers of a mask of bools."""


def expand_attention(module: GraphModule) -> None:
    """softmax(q k^T * scale + mask) v in place of every call that says all of: one without dropout."""
    for node in list(module.graph.nodes):
        if node.target is _ATTENTION and _is_plain(arguments := named_arguments(node)):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(_expanded(module, node, arguments))
            module.graph.erase_node(node)
            _reshape_views(module.graph)
    module.recompile()


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
            made = module.graph.call_function(_CHOICE, (given, 0.0, MASKED))
        made.meta = {**node.meta, "val": scores.meta["val"].new_zeros(given.meta["val"].shape)}
        return made
    name = f"_mask_{node.name}"
    module.register_buffer(name, torch.zeros(takes_part.shape).masked_fill(~takes_part, MASKED))
    made = module.graph.get_attr(name)
    made.meta = {**node.meta, "val": scores.meta["val"].new_zeros(takes_part.shape)}
    return made


MASKS_FROM = -50.0
"""Constants as low as this are there to mask what they are added to."""


def masks(node: Node) -> bool:
    """Whether a node adds a mask: a constant of zeros and of numbers so low that softmax makes them 0."""
    added = [n for n in node.all_input_nodes if is_constant(n)] if node.target is _aten.add.Tensor else []
    if len(added) != 1 or len(node.all_input_nodes) != 2 or node.kwargs.get("alpha", 1) != 1:
        return False
    values = constant(node.graph.owning_module, added[0])
    return bool(((values == 0) | (values <= MASKS_FROM)).all() and (values <= MASKS_FROM).any())


def given_mask(node: Node) -> Node | None:
    """The term of a sum that masks what a softmax reads, made of inputs of the network alone, without products, or of
    bools."""
    if node.target is not _aten.add.Tensor or len(node.all_input_nodes) != 2 or node.kwargs.get("alpha", 1) != 1:
        return None
    given = [n for n in node.all_input_nodes if _is_given(n) or n.target is _CHOICE]
    scored = not any(map(is_constant, node.all_input_nodes))
    return given[0] if len(given) == 1 and scored and _is_softmaxed(node) else None


def _is_given(node: Node) -> bool:
    """Whether a value follows from inputs, and constants, element by element; a constant by itself does not."""
    if node.op != "call_function" or not isinstance(kind(node), Moves | Elementwise | Arithmetic | None):
        return node.op == "placeholder"
    inputs = [n for n in node.all_input_nodes if not is_constant(n)]
    return bool(inputs) and all(map(_is_given, inputs))


def _is_softmaxed(node: Node) -> bool:
    """Whether softmax alone reads a value, or views of it."""

    def reads(user: Node) -> bool:
        int8 = kind(user)
        return _is_softmaxed(user) if isinstance(int8, Moves) else isinstance(int8, Rowwise) and int8.masked

    return bool(node.users) and all(map(reads, node.users))


def parts_of(mask: Node) -> Iterator[Node]:
    """The calls a mask is made by of what was given, or of bools that are computed."""
    if mask.op == "call_function":
        yield mask
        for source in mask.all_input_nodes:
            yield from parts_of(source) if _is_given(source) else ()


def masks_as_sums(module: GraphModule) -> None:
    """Scores of which some are made low numbers, for a softmax, as sums with a mask: what is low is 0 either way, and
    as the mask is not observed the range stays that of the scores."""
    for node in list(module.graph.nodes):
        filled = _filled(module, node)
        if filled is None or not _is_softmaxed(node):
            continue
        scores, chosen, numbers = filled
        with module.graph.inserting_before(node):
            if is_constant(chosen):
                name, places = f"_mask_{node.name}", constant(module, chosen)
                module.register_buffer(name, torch.where(places, torch.tensor(numbers[0]), torch.tensor(numbers[1])))
                mask = module.graph.get_attr(name)
            else:
                mask = module.graph.call_function(_CHOICE, (chosen, *numbers))
        mask.meta = {**node.meta, "val": node.meta["val"].new_zeros(chosen.meta["val"].shape)}
        node.target, node.args, node.kwargs = _aten.add.Tensor, (scores, mask), {}
    module.recompile()


def _filled(module: Any, node: Node) -> tuple[Node, Node, tuple[float, float]] | None:
    """Scores, bools, and what is added to the scores where they hold and where not, of a call that makes some scores a
    low number: a masked_fill, or a choice between scores and a number. None of other calls."""
    name = str(node.target)
    if name in ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor"):
        scores, chosen, value = node.args
        inverted = False
    elif name in ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf"):
        chosen, first, second = node.args
        inverted = _number(module, first) is None
        scores, value = (first, second) if inverted else (second, first)
    else:
        return None
    low = _number(module, value)
    if low is None or low > MASKS_FROM or not isinstance(scores, Node) or not isinstance(chosen, Node):
        return None
    if not is_float(scores) or scores.meta["val"].shape != node.meta["val"].shape:
        return None
    low = max(low, MASKED)
    return scores, chosen, (0.0, low) if inverted else (low, 0.0)


def _number(module: Any, value: Any) -> float | None:
    """A number, or what a constant of one element holds."""
    if isinstance(value, Node):
        alone = is_constant(value) and value.meta["val"].numel() == 1
        return float(constant(module, value)) if alone else None
    return float(value)


def join_masks(module: GraphModule) -> None:
    """Masks added one after the other as one."""
    for node in list(module.graph.nodes):
        inner = (
            next((n for n in node.all_input_nodes if not is_constant(n) and masks(n)), None) if masks(node) else None
        )
        if inner is None or len(inner.users) > 1 or inner.meta["val"].shape != node.meta["val"].shape:
            continue
        first, second = (next(n for n in add.all_input_nodes if is_constant(n)) for add in (inner, node))
        module.register_buffer(f"_masks_{node.name}", constant(module, first) + constant(module, second))
        with module.graph.inserting_before(node):
            joined = module.graph.get_attr(f"_masks_{node.name}")
        joined.meta = {**second.meta, "val": first.meta["val"] + second.meta["val"]}
        node.args = (next(n for n in inner.all_input_nodes if n is not first), joined)
        module.graph.erase_node(inner)
    module.recompile()


def constant(module: Any, node: Node) -> torch.Tensor:
    """The value of a parameter or buffer."""
    value: torch.Tensor = operator.attrgetter(str(node.target))(module)
    return value
