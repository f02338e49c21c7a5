"""Recognizes attention: `softmax(q @ k * factor + bias + mask) @ v`.

Between the first product and the softmax may stand factors, constants that are added, one mask and views. Nothing
outside may read any value in between.
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
    """The scores that a softmax over the last dimension reads: `product * factor + bias`, and a mask.

    Attributes:
        product: the matmul of two activations.
        factor: multiplies the product.
        numbers: constant that is added (batch, heads, queries, keys).
        bias: the same in integer steps.
        mask: the `add` of a mask that depends on a predicate, and which of its operands holds the scores; or None.
    """

    product: Node
    factor: float
    numbers: Array
    bias: Array
    mask: tuple[Node, str] | None


@dataclass(frozen=True)
class Selection:
    """A mask of the form `where(bools, 0, low)` or `where(bools, low, 0)`.

    Attributes:
        node: the `where`.
        moves: nodes that move its result before it is added, the last one first.
        inverted: whether True masks an element; otherwise True keeps it.
        even: whether a row in which every element is masked has equal weights, since `low` is finite.
    """

    node: Node
    moves: tuple[Node, ...]
    inverted: bool
    even: bool


def selection_of(rewriter: Rewriter, add: Node, scores: str, low: float) -> Selection | None:
    """The mask that an `add` adds to scores of its own shape, with a low number of at most `low`, if there is one."""
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
    """The number that fills a constant; NaN where the value is not constant, or its elements differ."""
    values = graph.constants.get(name)
    return float(values.flat[0]) if values is not None and (values == values.flat[0]).all() else np.nan


def scores_of(rewriter: Rewriter, softmax: Node, precision: Precision = COARSE) -> Scores | None:
    """The scores that a softmax over the last dimension reads, if there are any. `precision` is the bias's step."""
    graph, between, mask, name = rewriter.graph, list[Node](), None, softmax.inputs[0]
    shape, predicates, added = graph.types[name].shape, Predicates(rewriter), dict[str, Array]()
    if softmax.op != "softmax" or softmax.attrs["dim"] != len(shape) - 1:
        return None
    while (node := rewriter.only_producer(name)) is not None and node.op != "matmul":
        between.append(node)
        terms = node.inputs if node.op == "add" else ()
        constants = {i: values for i in terms if (values := _constant(predicates, i)) is not None}
        if node.op == "add" and not constants and mask is None and graph.types[node.output].shape == shape:
            found = (i for i in node.inputs if selection_of(rewriter, node, i, MASKS_FROM) is not None)
            if (scores := next(found, None)) is None:
                return None
            name, mask = scores, (node, scores)
            continue
        adds = node.op == "add" and node.attrs["alpha"] == 1 and len(constants) == 1
        factor, _ = affine_of(node) or (0.0, 0.0)
        if not (adds or factor > 0 or node.op == "view"):
            return None
        if adds:
            added[node.output] = next(iter(constants.values()))
        name = next(i for i in node.inputs if i not in constants)
    if node is None or graph.types[node.output].shape != shape or graph.values[node.output].in_float:
        return None
    factor, numbers = _added(graph, [n for n in between if mask is None or n is not mask[0]], added, shape)
    steps = None if numbers is None else bias_of(numbers, precision)
    if numbers is None or steps is None or any(graph.values[n.output].in_float for n in between):
        return None
    return Scores(node, factor, numbers, without_repeats(steps), mask)


def _constant(predicates: Predicates, name: str) -> Array | None:
    """The numbers of a value that follows from constants alone."""
    table = predicates.table(name)
    return table.values[0] if table is not None and not table.predicates else None


def _added(graph: Graph, between: Sequence[Node], added: dict[str, Array], shape: Shape) -> tuple[float, Array | None]:
    """The factor and the bias (batch, heads, queries, keys) that the nodes between, the last one first, apply to a
    product in all. The bias is None where it does not broadcast to the scores' shape."""
    factor, bias = 1.0, np.zeros((1,) * len(shape))
    for step in reversed(between):
        to = graph.types[step.output].shape
        if step.op == "view":
            full = np.broadcast_to(bias, graph.types[step.inputs[0]].shape) if bias.any() else None
            bias = np.zeros((1,) * len(to)) if full is None else full.reshape(to)
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
    """The product `softmax(scores) @ v` that completes an attention. None where anything else reads the softmax, where
    shapes do not match, or where no kernel takes the sizes."""
    graph, context = rewriter.graph, rewriter.only_reader(softmax.output)
    if context is None or context.op != "matmul" or [n == softmax.output for n in context.inputs] != [True, False]:
        return None
    names = (*scores.product.inputs, context.inputs[1])
    q, k, v = (graph.types[name].shape for name in names)
    if min(map(len, (q, k, v))) < 3 or not q[:-2] == k[:-2] == v[:-2] or q[-1] != k[-2] or k[-1] != v[-2]:
        return None
    stays_float = any(graph.values[node.output].in_float for node in (softmax, context, scores.product))
    sizes = Sizes(math.prod(q[:-3]), q[-3], q[-2], k[-1], q[-1], v[-1], q[-3])
    return context if not stays_float and takes(sizes) else None
