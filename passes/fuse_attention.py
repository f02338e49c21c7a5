"""Two products of int8 and the softmax between them, which nobody quantized, as one attention."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Node, TensorType
from q8ta_wgpu.ir.int8 import MASKS_FROM
from q8ta_wgpu.kernels.attention.attention import powers, q8ta_attention, rounding, takes
from q8ta_wgpu.kernels.attention.sizes import WALKS, sizes_of
from q8ta_wgpu.passes.masks import predicate
from q8ta_wgpu.passes.operands import int8_behind, turned, unscaled
from q8ta_wgpu.passes.plan.attention import scores_of
from q8ta_wgpu.passes.plan.regions import Region, rounded_to
from q8ta_wgpu.passes.rewriter import Rewriter


def attend(rewriter: Rewriter, region: Region, quantize: Node) -> bool:
    """Replaces `quantize`, behind a product and what joins it, by the attention that writes it; returns whether the
    product is that of an attention."""
    graph, node = rewriter.graph, region.first
    softmax = rewriter.only_producer(node.inputs[0]) if node.op == "matmul" else None
    found = scores_of(rewriter, softmax) if softmax is not None else None
    if found is None:
        return False
    (product, before), (context, behind) = unscaled(rewriter, found.product), unscaled(rewriter, node)
    q, k, v = (int8_behind(rewriter, name) for name in (*product.inputs, context.inputs[1]))
    out, lo, hi = rounded_to(graph, replace(region, factor=region.factor * behind), quantize)
    to = graph.types[quantize.output]
    if q is None or k is None or v is None or {graph.types[n].dtype for n in (q, k, v)} | {to.dtype} != {INT8X4}:
        return False
    queries, turned_keys, values = (graph.types[name] for name in (q, k, v))
    keys = replace(turned_keys, shape=(*turned_keys.shape[:-2], *turned_keys.shape[:-3:-1]))
    assert queries.q and keys.q and values.q
    numbers = rounding(queries.q, keys.q, values.q, found.factor * before, out)
    if numbers is None:
        return False
    constants = (("powers", powers()), ("bias", found.bias))
    names = tuple(graph.add_constant(f"{quantize.output}.{name}", array) for name, array in constants)
    mask = None if found.mask is None else predicate(rewriter, quantize, *found.mask, MASKS_FROM)
    more = names if mask is None else (*names, mask)
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
