"""What keeps elements out of rows of softmax: a mask or a choice that was added before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASKED
from q8ta_wgpu.kernels.lib.mask import shortened
from q8ta_wgpu.kernels.move.view import flexible
from q8ta_wgpu.passes.operands import int8_behind
from q8ta_wgpu.passes.plan.attention import selection_of
from q8ta_wgpu.passes.plan.masks import reads_masks
from q8ta_wgpu.passes.rewriter import Rewriter

FAINT = 22.0
"""What is smaller than e^-FAINT of the largest in softmax is 0 in every table."""


@dataclass(frozen=True)
class Bools:
    """What says which elements take part.

    Attributes:
        name: int8 values of as many dimensions as the scores: where they are 0 an element takes no part. None where all
            take part.
        even: whether a row without any has equal shares, as of finite low numbers in float32; otherwise it is zeros.
    """

    name: str | None = None
    even: bool = False


def unmasked(rewriter: Rewriter, node: Node) -> tuple[Node, Bools]:
    """The node reading what a mask was added to, and the bools of the mask; the node itself where there is none."""
    if not reads_masks(node):
        return node, Bools()
    return _without_constant(rewriter, node) or _without_selection(rewriter, node) or (node, Bools())


def _without_constant(rewriter: Rewriter, node: Node) -> tuple[Node, Bools] | None:
    """Without a constant whose numbers in a row are equal, or so much lower that no int8 value makes up for them. Views
    may stand between."""
    graph = rewriter.graph
    views: list[Node] = []
    add = rewriter.producer(node.inputs[0])
    while add is not None and add.op == "view":
        views.append(add)
        add = rewriter.producer(add.inputs[0])
    if add is None or add.op != "add" or add.attrs["alpha"] != 1:
        return None
    mask, scores = sorted(add.inputs, key=lambda name: name not in graph.constants)
    int8 = int8_behind(rewriter, scores)
    values, q = graph.constants.get(mask), graph.types[int8].q if int8 else None
    if int8 is None or values is None or q is None or graph.types[scores].shape != graph.types[add.output].shape:
        return None
    shape = graph.types[node.inputs[0]].shape
    whole = np.broadcast_to(values, graph.types[add.output].shape).reshape(shape)
    part = _part(whole, q, node.attrs["dim"])
    if part is None:
        return None
    for view in reversed(views):
        to = replace(graph.types[int8], shape=graph.types[view.output].shape)
        int8 = rewriter.insert(node, "view", (int8,), view.attrs, to, f"{view.output}.int8")
    real = rewriter.insert(node, "dequantize", (int8,), {}, TensorType(shape), f"{int8}.real")
    bools = shortened(part.astype(np.int8))
    name = None if bools.all() else graph.add_constant(f"{node.output}.mask", bools, INT8X4, BOOL)
    return replace(node, inputs=(real, *node.inputs[1:])), Bools(name)


def _without_selection(rewriter: Rewriter, node: Node) -> tuple[Node, Bools] | None:
    """Without a `where` between 0 and a low number. Moves may stand between it and the sum."""
    add = rewriter.producer(node.inputs[0])
    for scores in add.inputs if add is not None else ():
        int8 = int8_behind(rewriter, scores)
        q = rewriter.graph.types[int8].q if int8 else None
        bools = predicate(rewriter, node, add, scores, -_span(q)) if add is not None and q is not None else None
        if bools is not None:
            return replace(node, inputs=(scores, *node.inputs[1:])), bools
    return None


def predicate(rewriter: Rewriter, before: Node, add: Node, scores: str, low: float) -> Bools | None:
    """The bools by which a sum adds 0, or a number of `low` and less, to scores, computed before a node. None where it
    adds something else."""
    graph, choice = rewriter.graph, selection_of(rewriter, add, scores, low)
    if choice is None:
        return None
    bools = int8_behind(rewriter, choice.node.inputs[0])
    assert bools is not None
    if choice.inverted:
        table = graph.add_constant(f"{bools}.not", (np.arange(-128, 128) == 0).astype(np.int8))
        bools = rewriter.insert(before, "q8ta_table", (bools, table), {}, graph.types[bools], f"{bools}.taken")
    for move in reversed(choice.moves):
        to = replace(graph.types[bools], shape=graph.types[move.output].shape)
        bools = rewriter.insert(before, move.op, (bools,), move.attrs, to, f"{move.output}.int8")
    found, rank = graph.types[bools], len(graph.types[add.output].shape)
    if len(found.shape) < rank:
        to = replace(found, shape=(1,) * (rank - len(found.shape)) + found.shape)
        shape = flexible(found.shape, to.shape)
        bools = rewriter.insert(before, "view", (bools,), {"shape": shape}, to, f"{bools}.wide")
    return Bools(bools, choice.even)


GIVEN_NUMBERS = (
    "numbers that are known when the network runs are added to its scores: a mask of bools (True: takes part) is int8"
)


def adds_float_numbers(rewriter: Rewriter, node: Node) -> bool:
    """Whether what a softmax reads is a sum of int8 scores and of numbers that are neither constant nor int8."""
    add = rewriter.producer(node.inputs[0]) if reads_masks(node) else None
    if add is None or add.op != "add":
        return False
    known = [name in rewriter.graph.constants or int8_behind(rewriter, name) is not None for name in add.inputs]
    return any(known) and not all(known)


def _span(q: QParams) -> float:
    """How much lower a number must be so that no int8 value makes up for it in softmax."""
    low, high = q.range
    return (high - low) * q.scale + FAINT


def _part(mask: Array, q: QParams, dim: int) -> Array | None:
    """Where elements take part in rows along `dim` to which a mask is added. A row with one finite number all over is
    its own softmax, where float32 holds the sums to a 255th of the scores' range; one of nothing but minus infinities
    has no part. None where a number is neither the largest of its row nor far below, or so large that the sums would be
    lost in it."""
    largest = mask.max(dim, keepdims=True)
    excluded = np.isneginf(largest) | (largest == MASKED)
    with np.errstate(invalid="ignore"):
        below = mask - largest
    part = (below == 0) & ~excluded
    apart = part | excluded | (below <= -_span(q))
    fine = (q.range[1] - q.range[0]) / 255 * q.scale
    held = excluded | (np.spacing(np.abs(np.where(excluded, 0, largest)).astype(np.float32)) <= fine)
    return part if apart.all() and held.all() else None
