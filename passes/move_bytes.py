"""Moves operators that only move elements (view, slice, cat, pixel_shuffle, max_pool2d ...) from float32 to int8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import Elementwise, Moves, PRelu, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.move.view import flexible
from q8ta_wgpu.passes.rewriter import Rewriter


def _fill(node: Node) -> Array | None:
    """The number that a pad writes, float32 (1,); None of other operators."""
    kind = OPS[node.op].int8
    fills = isinstance(kind, Moves) and kind.fill
    return np.array([fills(node.attrs)], np.float32) if fills else None


def _moves(node: Node, q: QParams) -> bool:
    """Whether the operator moves values of a quantization's dtype."""
    return q.dtype in OPS[node.op].operands[0].dtypes


def _represents_fill(node: Node, q: QParams) -> bool:
    """Whether `q` represents the number that a pad writes exactly, so that the pad can come before a dequantize."""
    fill = _fill(node)
    if fill is None:
        return True
    return bool(np.array_equal(arithmetic.dequantize(arithmetic.quantize(fill, q, *q.range), q), fill))


def _keeps_fill(node: Node, quantize: Node, q: QParams) -> bool:
    """Whether the number that a pad writes is within the quantize's clamp range, so that the pad can come after it."""
    fill = _fill(node)
    if fill is None:
        return True
    bounded = arithmetic.quantize(fill, q, quantize.attrs["lo"], quantize.attrs["hi"])
    return bool(np.array_equal(bounded, arithmetic.quantize(fill, q, *q.range)))


def _moved_operands(node: Node) -> tuple[str, ...]:
    """The operands whose elements are moved: all but indices."""
    operands = (OPS[node.op].operand(i, node.attrs) for i in range(len(node.inputs)))
    return tuple(
        name for name, operand in zip(node.inputs, operands, strict=True) if not (operand.constant or operand.real)
    )


def sink_dequantize(graph: Graph) -> None:
    """move(dequantize(x), ...) becomes dequantize(move(x, ...)) where all inputs have one scale and zero point."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if not OPS[node.op].keeps_int8:
            continue
        operands = _moved_operands(node)
        sources = [rewriter.producer(name) for name in operands]
        int8 = tuple(source.inputs[0] for source in sources if source is not None and source.op == "dequantize")
        quantizations = {graph.types[name].q for name in int8}
        if len(int8) != len(operands) or len(quantizations) != 1:
            continue
        q = quantizations.pop()
        if q is None or not _moves(node, q) or not _represents_fill(node, q):
            continue
        inputs = (*int8, *node.inputs[len(operands) :])
        moved = rewriter.insert(node, node.op, inputs, node.attrs, f"{node.output}.int8")
        rewriter.replace(node, Node("dequantize", (moved,), node.output, {}, node.source))
    rewriter.commit()


def sink_moves(graph: Graph) -> None:
    """unary(move(x)) becomes move(unary(x)), so that an activation after the view of a linear can be fused into it.

    Only where nothing else reads the moved value and x is computed in float. Views that keep the channels also sink
    below a prelu, and the view of a weighted sum, as of Conv1d, below the add of a quantized value. What stays in
    float32 is left as it is: it is not fused.
    """
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if graph.values[node.output].in_float:
            continue
        unary: Node | None = node
        if node.op == "add":
            _swap_add(rewriter, node)
            continue
        while unary is not None:
            unary = _swap_unary(rewriter, unary)
    rewriter.commit()


def _swap_unary(rewriter: Rewriter, unary: Node) -> Node | None:
    """Swaps an elementwise operator with the move before it; returns the operator, now first, or None."""
    kind, types = OPS[unary.op].int8, rewriter.graph.types
    move = rewriter.only_producer(unary.inputs[0]) if isinstance(kind, Elementwise | PRelu) else None
    if move is None or OPS[move.op].int8 != Moves() or len(move.inputs) != 1:
        return None
    source = rewriter.producer(move.inputs[0])
    if source is None or source.op in ("quantize", "dequantize", "dequantize_weight"):
        return None
    kept = types[move.inputs[0]].shape[:2] == types[move.output].shape[:2]
    if isinstance(kind, PRelu) and (move.op != "view" or not kept):
        return None
    inputs = (*move.inputs, *unary.inputs[1:])
    activated = rewriter.insert(unary, unary.op, inputs, unary.attrs, f"{unary.output}.unmoved")
    rewriter.replace(unary, replace(move, inputs=(activated,)))
    return rewriter.producer(activated)


def _swap_add(rewriter: Rewriter, add: Node) -> None:
    """Makes view(add(sum, view(addend))) of add(view(sum), addend) where sum is a weighted sum and addend int8."""
    types = rewriter.graph.types
    for position in (1, 0):
        view, other = rewriter.only_producer(add.inputs[position]), add.inputs[1 - position]
        source = rewriter.producer(view.inputs[0]) if view is not None and view.op == "view" else None
        int8 = rewriter.producer(other)
        if source is None or not isinstance(OPS[source.op].int8, WeightedSum) or int8 is None:
            continue
        same = types[add.output].shape == types[add.inputs[position]].shape == types[other].shape
        if view is None or int8.op != "dequantize" or not same:
            continue
        attrs = {"shape": flexible(types[other].shape, types[source.output].shape)}
        viewed = rewriter.insert(add, "view", int8.inputs, attrs, f"{add.output}.addend")
        real = rewriter.insert(add, "dequantize", (viewed,), {}, f"{viewed}.real")
        operands = (source.output, real) if position == 0 else (real, source.output)
        summed = rewriter.insert(add, "add", operands, add.attrs, f"{add.output}.unmoved")
        rewriter.replace(add, replace(view, inputs=(summed,)))


def hoist_quantize(graph: Graph) -> None:
    """quantize(move(x, ...)) becomes move(quantize(x), ...) where nothing else reads the moved float value."""
    rewriter = Rewriter(graph)
    for node in rewriter.backwards():
        quantize = rewriter.only_reader(node.output) if OPS[node.op].keeps_int8 else None
        if quantize is None or quantize.op != "quantize":
            continue
        q = graph.types[quantize.output].q
        if q is None or not _moves(node, q) or not _keeps_fill(node, quantize, q):
            continue
        int8 = {
            name: rewriter.insert(node, "quantize", (name,), quantize.attrs, f"{name}.int8", q)
            for name in dict.fromkeys(_moved_operands(node))
        }
        rewriter.replace(quantize, replace(node, inputs=tuple(int8.get(name, name) for name in node.inputs)))
    rewriter.commit()
