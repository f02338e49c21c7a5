"""Makes matmul -> softmax -> matmul of int8 one q8ta_attention, with the factor and the bias of its scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, TensorType
from q8ta_wgpu.kernels.attention.attention import bias_of, powers, q8ta_attention, rounding, takes, without_repeats
from q8ta_wgpu.kernels.attention.sizes import WALKS, sizes_of
from q8ta_wgpu.passes.fuse_int8 import rounded_to, turned, unscaled
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.tail import int8_behind, is_factor, tail_of


def fuse_attention(graph: Graph) -> None:
    """Where nothing else reads what lies between two products of int8 and their softmax, which itself nobody quantized:
    constants that are added to scores, masks among them, are a bias. What has no such form stays for `fuse_int8`."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        weights = rewriter.only_producer(node.inputs[0]) if node.op == "matmul" else None
        if weights is None or weights.op != "softmax" or node.output in graph.kept:
            continue
        tail = tail_of(rewriter, node)
        for quantize in (reader for reader in rewriter.readers(tail.value) if reader.op == "quantize"):
            out, lo, hi = rounded_to(graph, tail, quantize)
            attrs = {"lo": lo, "hi": hi, "sizes": (), **dict.fromkeys(WALKS, ())}
            _fuse(rewriter, weights, node, quantize, replace(graph.types[quantize.output], q=out), attrs)
    rewriter.commit()


def _fuse(
    rewriter: Rewriter, weights: Node, node: Node, quantize: Node, to: TensorType, attrs: dict[str, object]
) -> None:
    """Replaces `quantize` by the attention that writes it, rounded as `to` says, where there is one."""
    graph, found = rewriter.graph, _scores(rewriter, weights)
    if found is None:
        return
    product, factor, bias = found
    product, scaled = unscaled(rewriter, product)
    q, k, v = (int8_behind(rewriter, name) for name in (*product.inputs, node.inputs[1]))
    if q is None or k is None or v is None or {graph.types[n].dtype for n in (q, k, v)} | {to.dtype} != {INT8X4}:
        return
    queries, turned_keys, values = (graph.types[name] for name in (q, k, v))
    keys = replace(turned_keys, shape=(*turned_keys.shape[:-2], *turned_keys.shape[:-3:-1]))
    lead = {t.shape[:-2] for t in (queries, keys, values, to)}
    assert queries.q and keys.q and values.q and to.q
    numbers = rounding(queries.q, keys.q, values.q, factor * scaled, to.q)
    if len(lead) > 1 or bias is None or numbers is None:
        return
    names = [graph.add_constant(f"{quantize.output}.{n}", c) for n, c in (("powers", powers()), ("bias", bias))]
    attrs |= numbers
    types = (queries, keys, values, *(graph.types[name] for name in names))
    try:
        shape, _ = q8ta_attention.check(types, attrs)
    except GraphError:  # rows are no whole words
        return
    if shape == to.shape and takes(sizes_of(types, attrs)):
        inputs = (q, turned(rewriter, quantize, k), v, *names)
        rewriter.replace(quantize, Node(q8ta_attention.name, inputs, quantize.output, attrs, node.source))


def _scores(rewriter: Rewriter, weights: Node) -> tuple[Node, float, Array | None] | None:
    """The product whose scores a softmax over the last dimension reads, their factor, and what is added to them; None
    where they are something else."""
    graph, behind, name = rewriter.graph, list[Node](), weights.inputs[0]
    shape = graph.types[name].shape
    while (node := rewriter.only_producer(name)) is not None and node.op != "matmul":
        constants = [i for i in node.inputs if i in graph.constants]
        adds = node.op == "add" and node.attrs["alpha"] == 1 and len(constants) == 1
        if not (adds or node.op == "view" or is_factor(node)):
            return None
        behind.append(node)
        name = next(i for i in node.inputs if i not in constants)
    if node is None or graph.types[node.output].shape != shape or weights.attrs["dim"] != len(shape) - 1:
        return None
    factor, bias = 1.0, np.zeros((1,) * len(shape))
    for step in reversed(behind):
        to = graph.types[step.output].shape
        if step.op == "view":
            bias = (
                np.broadcast_to(bias, graph.types[step.inputs[0]].shape).reshape(to)
                if bias.any()
                else np.zeros((1,) * len(to))
            )
        elif step.op == "add":
            added = next(graph.constants[i] for i in step.inputs if i in graph.constants)
            bias = bias + added.astype(np.float64)
        else:
            factor *= step.attrs["factor"]
            bias = bias * step.attrs["factor"]
    if np.broadcast_shapes(bias.shape, shape) != shape:
        return None
    whole = (math.prod(shape[:-3]), math.prod(shape[-3:-2]), *shape[-2:])
    steps = bias_of(np.broadcast_to(bias, shape).reshape(whole)) if bias.any() else np.zeros((1, 1, 1, 1), np.int32)
    return node, factor, None if steps is None else without_repeats(steps)
