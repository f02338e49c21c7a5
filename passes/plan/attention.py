"""Attention: scores of two activations, a softmax of them, and a product of its result with a third one.

What lies between is part of it: factors, constants that are added, one mask, views. Nothing else may read any of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, Array, Graph, Node
from q8ta_wgpu.ir.int8 import MASKED, MASKS_FROM
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels.attention.attention import COARSE, Precision, bias_of, takes, without_repeats
from q8ta_wgpu.kernels.attention.sizes import Sizes
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.predicates import Predicates
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Scores:
    """What a softmax over the last dimension reads.

    Attributes:
        product: the product of two activations.
        factor: what the product is multiplied by behind it.
        bias: what is added then, in steps (batch, heads, queries, keys).
        mask: the sum that adds a mask by a predicate, and its operand that is the scores; None without one.
    """

    product: Node
    factor: float
    bias: Array
    mask: tuple[Node, str] | None


@dataclass(frozen=True)
class Selection:
    """A `where` between 0 and a low number, and the moves behind it, the last one first. `inverted` says that its bools
    hold where elements take no part, `even` that a row of low numbers alone has equal shares: none of them is -inf."""

    node: Node
    moves: tuple[Node, ...]
    inverted: bool
    even: bool


def selection_of(rewriter: Rewriter, add: Node, scores: str, low: float) -> Selection | None:
    """The `where` of bools between 0 and a number of at most `low` that a sum adds to scores of its own shape; None
    where it adds something else."""
    graph = rewriter.graph
    if add.op != "add" or add.attrs["alpha"] != 1 or graph.types[scores].shape != graph.types[add.output].shape:
        return None
    selection, moves = rewriter.producer(next((n for n in add.inputs if n != scores), scores)), list[Node]()
    while selection is not None and is_move(selection) and selection.op != "pad":  # a pad adds numbers
        moves.append(selection)
        selection = rewriter.producer(selection.inputs[0])
    bools = rewriter.producer(selection.inputs[0]) if selection is not None and selection.op == "where" else None
    if selection is None or bools is None or bools.op != "dequantize" or graph.types[bools.inputs[0]].q != BOOL:
        return None
    ends = [_number(graph, name) for name in selection.inputs[1:]]
    if 0.0 not in ends or not min(ends) <= low:
        return None
    widened = graph.types[bools.output].shape != graph.types[selection.output].shape
    if moves and widened:
        return None
    return Selection(selection, tuple(moves), ends[0] < 0, min(ends) not in (MASKED, -np.inf))


def _number(graph: Graph, name: str) -> float:
    """The number that a constant holds everywhere; NaN of what is not constant, or not one number."""
    values = graph.constants.get(name)
    return float(values.flat[0]) if values is not None and (values == values.flat[0]).all() else np.nan


def scores_of(rewriter: Rewriter, softmax: Node, precision: Precision = COARSE) -> Scores | None:
    """The scores that a softmax reads, with the bias in steps of a precision; None where it is over another dimension,
    or reads something else."""
    graph, between, mask, name = rewriter.graph, list[Node](), None, softmax.inputs[0]
    shape, predicates, added = graph.types[name].shape, Predicates(rewriter), dict[str, Array]()
    if softmax.op != "softmax" or softmax.attrs["dim"] != len(shape) - 1:
        return None
    while (node := rewriter.only_producer(name)) is not None and node.op != "matmul":
        between.append(node)
        constants = {i: _constant(predicates, i) for i in node.inputs} if node.op == "add" else {}
        held = [i for i, values in constants.items() if values is not None]
        if node.op == "add" and not held and mask is None and graph.types[node.output].shape == shape:
            found = (i for i in node.inputs if selection_of(rewriter, node, i, MASKS_FROM) is not None)
            if (scores := next(found, None)) is None:
                return None
            name, mask = scores, (node, scores)
            continue
        adds = node.op == "add" and node.attrs["alpha"] == 1 and len(held) == 1
        factor, _ = affine_of(node) or (0.0, 0.0)
        if not (adds or factor > 0 or node.op == "view"):
            return None
        if adds:
            added[node.output] = constants[held[0]]  # type: ignore[assignment]
        name = next(i for i in node.inputs if i not in held)
    if node is None or graph.types[node.output].shape != shape or node.output in graph.in_float:
        return None
    factor, numbers = _added(graph, [n for n in between if mask is None or n is not mask[0]], added, shape)
    steps = None if numbers is None else bias_of(numbers, precision)
    if steps is None or any(n.output in graph.in_float for n in between):
        return None
    return Scores(node, factor, without_repeats(steps), mask)


def _constant(predicates: Predicates, name: str) -> Array | None:
    table = predicates.table(name)
    return table.values[0] if table is not None and not table.predicates else None


def _added(graph: Graph, between: Sequence[Node], added: dict[str, Array], shape: Shape) -> tuple[float, Array | None]:
    """What a product is multiplied with by the nodes behind it, the last one first, and what they add to it in all
    (batch, heads, queries, keys); None where that has another shape than the scores."""
    factor, bias = 1.0, np.zeros((1,) * len(shape))
    for step in reversed(between):
        to = graph.types[step.output].shape
        if step.op == "view":
            whole = np.broadcast_to(bias, graph.types[step.inputs[0]].shape) if bias.any() else None
            bias = np.zeros((1,) * len(to)) if whole is None else whole.reshape(to)
        elif step.op == "add":
            bias = bias + added[step.output].astype(np.float64)
        else:
            by, term = affine_of(step) or (1.0, 0.0)
            factor *= by
            bias = bias * by + term
    if np.broadcast_shapes(bias.shape, shape) != shape:
        return factor, None
    if not bias.any():
        return factor, np.zeros((1, 1, 1, 1))
    lead = (math.prod(shape[:-3]), math.prod(shape[-3:-2]), *shape[-2:])
    return factor, np.broadcast_to(bias, shape).reshape(lead)


def context_of(rewriter: Rewriter, softmax: Node, scores: Scores) -> Node | None:
    """The product of a softmax's result with values that makes an attention of scores; None where extents do not
    belong together, or no kernel takes them."""
    graph, context = rewriter.graph, rewriter.only_reader(softmax.output)
    if context is None or context.op != "matmul" or [n == softmax.output for n in context.inputs] != [True, False]:
        return None
    names = (*scores.product.inputs, context.inputs[1])
    q, k, v = (graph.types[name].shape for name in names)
    if min(map(len, (q, k, v))) < 3 or not q[:-2] == k[:-2] == v[:-2] or q[-1] != k[-2] or k[-1] != v[-2]:
        return None
    held = {softmax.output, context.output, scores.product.output} & graph.in_float
    sizes = Sizes(math.prod(q[:-3]), q[-3], q[-2], k[-1], q[-1], v[-1], q[-3])
    return context if not held and takes(sizes) else None
