"""Fuses two products of activations and the softmax between them into one attention, where scores and softmax are not
quantized, or stored in int16. `softmax(q @ k * factor + bias + mask) @ v` becomes q8ta_attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, RANGES, SMALLEST_SCALE, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASKS_FROM
from q8ta_wgpu.kernels.attention.attention import COARSE, FINE, powers, q8ta_attention, rounding, takes
from q8ta_wgpu.kernels.attention.sizes import STRIDES, sizes_of
from q8ta_wgpu.passes.operands import factor_of, int8_behind, transposed, unscaled
from q8ta_wgpu.passes.plan.match_attention import scores_of
from q8ta_wgpu.passes.plan.regions import Region, Regions, rounded_to
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.store import int16_within, store
from q8ta_wgpu.passes.unmask import predicate

SHARES = QParams(2.0**-16, -(2**15), INT16X4)
"""Quantization of softmax results in int16: 0 to 1."""


def fuse_attention(graph: Graph) -> None:
    """Replaces each product that completes an attention, and is quantized, by q8ta_attention. Where an operand is int16
    no such kernel exists: then scores and softmax are quantized to int16 instead."""
    rewriter = Rewriter(graph)
    regions = Regions(rewriter)
    for node in rewriter.nodes():
        if node.op == "matmul" and not graph.values[node.output].in_float:
            region = regions.find(node)
            for quantize in rewriter.readers(region.end):
                if quantize.op == "quantize":
                    _attend(rewriter, region, quantize)
    rewriter.commit()


def _softmax(rewriter: Rewriter, name: str) -> tuple[Node | None, bool]:
    """The node whose result a product reads, in an attention the softmax, and whether that is stored in int16."""
    node = rewriter.only_producer(name)
    quantize = rewriter.only_producer(node.inputs[0]) if node is not None and node.op == "dequantize" else None
    if quantize is None or quantize.op != "quantize" or rewriter.graph.types[quantize.output].dtype != INT16X4:
        return node, False
    return rewriter.only_producer(quantize.inputs[0]), True


def _store_scores(rewriter: Rewriter, product: Node, factor: float, operands: tuple[str, str]) -> None:
    """Quantizes scores `operands[0] @ operands[1] * factor` to int16, over the range that int operands can reach, then
    their sums with constants that are no masks."""
    types, end = [rewriter.graph.types[name] for name in operands], product.output
    scaled = rewriter.only_reader(end)
    if scaled is not None and (by := factor_of(scaled)) is not None:
        end, factor = scaled.output, factor * by
    reached = types[0].shape[-1] * factor
    for t in types:
        assert t.q is not None
        reached *= t.q.span * t.q.scale
    while SMALLEST_SCALE <= reached / RANGES[INT16X4][1] <= 1 / SMALLEST_SCALE:
        reader = rewriter.only_reader(end)
        if reader is None:
            return
        add = store(rewriter, end, reader, int16_within(-reached, reached))
        bias = _bias(rewriter, add)
        if bias is None:
            return
        most = float(np.abs(rewriter.graph.constants[bias]).max())
        end, reached = store(rewriter, bias, add, int16_within(-most, most)).output, reached + most


def _bias(rewriter: Rewriter, add: Node) -> str | None:
    """The constant that a sum adds to scores, if it is no mask."""
    constants = rewriter.graph.constants
    found = next((name for name in add.inputs if name in constants), None) if add.op == "add" else None
    masks = found is None or not constants[found].min() > MASKS_FROM
    return None if masks or add.attrs["alpha"] != 1 else found


def _attend(rewriter: Rewriter, region: Region, quantize: Node) -> None:
    """Replaces `quantize` by an attention, if the region that it quantizes begins with the last product of one."""
    graph, node, to = rewriter.graph, region.first, rewriter.graph.types[quantize.output]
    softmax, stored = _softmax(rewriter, node.inputs[0])
    precision = FINE if stored or to.dtype == INT16X4 else COARSE
    found = scores_of(rewriter, softmax, precision) if softmax is not None else None
    if found is None:
        return
    (product, score_factor), (context, context_factor) = unscaled(rewriter, found.product), unscaled(rewriter, node)
    q, k, v = (int8_behind(rewriter, name) for name in (*product.inputs, context.inputs[1]))
    out, lo, hi = rounded_to(graph, replace(region, factor=region.factor * context_factor), quantize)
    if softmax is None or q is None or k is None or v is None:
        return
    if {graph.types[n].dtype for n in (q, k, v)} != {INT8X4}:
        _store_scores(rewriter, product, score_factor, (q, k))
        reader = rewriter.only_reader(softmax.output)
        if reader is not None and not stored:
            store(rewriter, softmax.output, reader, SHARES)
        return
    queries, transposed_keys, values = (graph.types[name] for name in (q, k, v))
    keys = replace(transposed_keys, shape=(*transposed_keys.shape[:-2], *transposed_keys.shape[:-3:-1]))
    assert queries.q and keys.q and values.q
    numbers = rounding(queries.q, keys.q, values.q, found.factor * score_factor, out, precision)
    if numbers is None:
        return
    constants = (("powers", powers(precision)), ("bias", found.bias))
    names = tuple(graph.add_constant(f"{quantize.output}.{name}", array) for name, array in constants)
    mask = None if found.mask is None else predicate(rewriter, quantize, *found.mask, MASKS_FROM)
    more = names if mask is None or mask.name is None else (*names, mask.name)
    even = mask is not None and mask.even
    attrs = {**numbers, "even": even, "lo": lo, "hi": hi, "sizes": (), **dict.fromkeys(STRIDES, ())}
    types: tuple[TensorType, ...] = (queries, keys, values, *(graph.types[name] for name in more))
    try:
        shape, _ = q8ta_attention.check(types, attrs)
    except GraphError:  # rows are not whole words
        return
    if shape != to.shape or not takes(sizes_of(types, attrs), precision):
        return
    inputs = (q, transposed(rewriter, quantize, k), v, *more)
    rewriter.replace(quantize, Node(q8ta_attention.name, inputs, quantize.output, attrs, node.source))
