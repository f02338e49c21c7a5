"""Two products of int8 and the softmax between them, which nobody quantized, as one attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, TensorType
from q8ta_wgpu.ir.int8 import MASKS_FROM
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels.attention.attention import (
    bias_of,
    powers,
    q8ta_attention,
    rounding,
    takes,
    without_repeats,
)
from q8ta_wgpu.kernels.attention.sizes import WALKS, sizes_of
from q8ta_wgpu.passes.masks import chosen_by
from q8ta_wgpu.passes.operands import affine_of, int8_behind, turned, unscaled
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.tail import Tail, rounded_to


@dataclass(frozen=True)
class _Scores:
    """What a softmax reads.

    Attributes:
        product: of two activations, without factors before it.
        factor: what it is multiplied with.
        bias: what is added then, in steps (batch, heads, queries, keys).
        mask: bools that say what takes part, if any are given.
    """

    product: Node
    factor: float
    bias: Array
    mask: str | None


def attend(rewriter: Rewriter, node: Node, tail: Tail, quantize: Node) -> bool:
    """Replaces `quantize`, behind a product and its tail, by the attention that writes it; returns whether there is
    one: where nothing else reads what lies between, and constants and a mask of bools are all that is added."""
    graph = rewriter.graph
    weights = rewriter.only_producer(node.inputs[0]) if node.op == "matmul" else None
    found = _scores(rewriter, weights, quantize) if weights is not None and weights.op == "softmax" else None
    if found is None:
        return False
    context, scaled = unscaled(rewriter, node)
    q, k, v = (int8_behind(rewriter, name) for name in (*found.product.inputs, context.inputs[1]))
    out, lo, hi = rounded_to(graph, replace(tail, factor=tail.factor * scaled), quantize)
    to = graph.types[quantize.output]
    if q is None or k is None or v is None or {graph.types[n].dtype for n in (q, k, v)} | {to.dtype} != {INT8X4}:
        return False
    queries, turned_keys, values = (graph.types[name] for name in (q, k, v))
    keys = replace(turned_keys, shape=(*turned_keys.shape[:-2], *turned_keys.shape[:-3:-1]))
    assert queries.q and keys.q and values.q
    numbers = rounding(queries.q, keys.q, values.q, found.factor, out)
    if numbers is None:
        return False
    constants = (("powers", powers()), ("bias", found.bias))
    names = tuple(graph.add_constant(f"{quantize.output}.{name}", array) for name, array in constants)
    more = names if found.mask is None else (*names, found.mask)
    attrs = {**numbers, "lo": lo, "hi": hi, "sizes": (), **dict.fromkeys(WALKS, ())}
    types: tuple[TensorType, ...] = (queries, keys, values, *(graph.types[name] for name in more))
    try:
        shape, _ = q8ta_attention.check(types, attrs)
    except GraphError:  # rows are no whole words
        return False
    if shape != to.shape or not takes(sizes_of(types, attrs)):
        return False
    inputs = (q, turned(rewriter, quantize, k), v, *more)
    rewriter.replace(quantize, Node(q8ta_attention.name, inputs, quantize.output, attrs, node.source))
    return True


def _scores(rewriter: Rewriter, weights: Node, before: Node) -> _Scores | None:
    """What a softmax over the last dimension reads, its mask computed before a node; None where that is no scores."""
    graph, behind, mask, name = rewriter.graph, list[Node](), None, weights.inputs[0]
    shape = graph.types[name].shape
    while (node := rewriter.only_producer(name)) is not None and node.op != "matmul":
        constants = [i for i in node.inputs if i in graph.constants]
        if node.op == "add" and not constants and mask is None and graph.types[node.output].shape == shape:
            masks = {i: chosen_by(rewriter, before, node, i, MASKS_FROM) for i in node.inputs}
            name, mask = next(((i, bools) for i, bools in masks.items() if bools is not None), ("", None))
            continue
        adds = node.op == "add" and node.attrs["alpha"] == 1 and len(constants) == 1
        factor, _ = affine_of(node) or (0.0, 0.0)
        if not (adds or factor > 0 or node.op == "view"):
            return None
        behind.append(node)
        name = next(i for i in node.inputs if i not in constants)
    if node is None or graph.types[node.output].shape != shape or weights.attrs["dim"] != len(shape) - 1:
        return None
    product, scaled = unscaled(rewriter, node)
    factor, numbers = _added(graph, behind, shape)
    steps = None if numbers is None else bias_of(numbers)
    return None if steps is None else _Scores(product, factor * scaled, without_repeats(steps), mask)


def _added(graph: Graph, behind: Sequence[Node], shape: Shape) -> tuple[float, Array | None]:
    """What a product is multiplied with by the nodes behind it, the last one first, and what they add to it in all
    (batch, heads, queries, keys); None where that has another shape than the scores."""
    factor, bias = 1.0, np.zeros((1,) * len(shape))
    for step in reversed(behind):
        to = graph.types[step.output].shape
        if step.op == "view":
            whole = np.broadcast_to(bias, graph.types[step.inputs[0]].shape) if bias.any() else None
            bias = np.zeros((1,) * len(to)) if whole is None else whole.reshape(to)
        elif step.op == "add":
            bias = bias + next(graph.constants[i] for i in step.inputs if i in graph.constants).astype(np.float64)
        else:
            scale, term = affine_of(step) or (1.0, 0.0)
            factor, bias = factor * scale, bias * scale + term
    if np.broadcast_shapes(bias.shape, shape) != shape:
        return factor, None
    if not bias.any():
        return factor, np.zeros((1, 1, 1, 1))
    lead = (math.prod(shape[:-3]), math.prod(shape[-3:-2]), *shape[-2:])
    return factor, np.broadcast_to(bias, shape).reshape(lead)
