"""Separates a softmax, or another operator that reads masks, from the mask that is added before it: as bools."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, Node, QParams
from q8ta_wgpu.ir.int8 import MASKED
from q8ta_wgpu.kernels.lib.mask import shortened
from q8ta_wgpu.kernels.move.view import flexible
from q8ta_wgpu.passes.operands import int8_behind
from q8ta_wgpu.passes.plan.masks import reads_masks
from q8ta_wgpu.passes.plan.match_attention import selection_of
from q8ta_wgpu.passes.rewriter import Rewriter

FAINT = 22.0
"""In softmax, a score lower than the largest by at least this counts as 0: e^-22 is 0 in every table."""


@dataclass(frozen=True)
class Bools:
    """A mask as bools.

    Attributes:
        name: int8 values of the scores' rank: 0 masks an element. None where no element is masked.
        even: whether a row in which all elements are masked has equal weights, as with finite low numbers in float32;
            otherwise its weights are 0.
    """

    name: str | None = None
    even: bool = False


def unmasked(rewriter: Rewriter, node: Node) -> tuple[Node, Bools]:
    """The node reading scores without their mask, and the mask; the node itself where there is no mask."""
    if not reads_masks(node):
        return node, Bools()
    return _without_constant(rewriter, node) or _without_selection(rewriter, node) or (node, Bools())


def _without_constant(rewriter: Rewriter, node: Node) -> tuple[Node, Bools] | None:
    """Separates a constant mask: in each row its numbers are equal, or so low that no int8 score makes up for it. Views
    may stand between the sum and the softmax."""
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
    full = np.broadcast_to(values, graph.types[add.output].shape).reshape(shape)
    keep = _keep(full, q, node.attrs["dim"])
    if keep is None:
        return None
    for view in reversed(views):
        int8 = rewriter.insert(node, "view", (int8,), view.attrs, f"{view.output}.int8")
    real = rewriter.insert(node, "dequantize", (int8,), {}, f"{int8}.real")
    bools = shortened(keep.astype(np.int8))
    name = None if bools.all() else graph.add_constant(f"{node.output}.mask", bools, INT8X4, BOOL)
    return replace(node, inputs=(real, *node.inputs[1:])), Bools(name)


def _without_selection(rewriter: Rewriter, node: Node) -> tuple[Node, Bools] | None:
    """Separates a mask `where(bools, 0, low)`, moved or not."""
    add = rewriter.producer(node.inputs[0])
    for scores in add.inputs if add is not None else ():
        int8 = int8_behind(rewriter, scores)
        q = rewriter.graph.types[int8].q if int8 else None
        bools = predicate(rewriter, node, add, scores, -_span(q)) if add is not None and q is not None else None
        if bools is not None:
            return replace(node, inputs=(scores, *node.inputs[1:])), bools
    return None


def predicate(rewriter: Rewriter, before: Node, add: Node, scores: str, low: float) -> Bools | None:
    """The bools of a mask that an `add` adds to scores, computed before a node. None where it adds anything else, or
    where the mask's low number is larger than `low`."""
    graph, selection = rewriter.graph, selection_of(rewriter, add, scores, low)
    if selection is None:
        return None
    bools = int8_behind(rewriter, selection.node.inputs[0])
    assert bools is not None
    if selection.inverted:
        table = graph.add_constant(f"{bools}.not", (np.arange(-128, 128) == 0).astype(np.int8))
        bools = rewriter.insert(before, "q8ta_table", (bools, table), {}, f"{bools}.taken", graph.types[bools].q)
    for move in reversed(selection.moves):
        bools = rewriter.insert(before, move.op, (bools,), move.attrs, f"{move.output}.int8")
    found, rank = graph.types[bools].shape, len(graph.types[add.output].shape)
    if len(found) < rank:
        shape = flexible(found, (1,) * (rank - len(found)) + found)
        bools = rewriter.insert(before, "view", (bools,), {"shape": shape}, f"{bools}.wide")
    return Bools(bools, selection.even)


FLOAT_MASK = (
    "numbers that are known when the network runs are added to its scores: pass a mask of bools (True: keep) for int8"
)


def adds_float_numbers(rewriter: Rewriter, node: Node) -> bool:
    """Whether a softmax reads the sum of int8 scores and a float32 value computed at run time."""
    add = rewriter.producer(node.inputs[0]) if reads_masks(node) else None
    if add is None or add.op != "add":
        return False
    known = [name in rewriter.graph.constants or int8_behind(rewriter, name) is not None for name in add.inputs]
    return any(known) and not all(known)


def _span(q: QParams) -> float:
    """How much lower than others a mask's number must be so that no int8 score makes up for it in softmax."""
    low, high = q.range
    return (high - low) * q.scale + FAINT


def _keep(mask: Array, q: QParams, dim: int) -> Array | None:
    """Which elements a mask keeps in rows along `dim`: the largest of each row, none in a row of -inf.

    None where the mask cannot be expressed so: a number is neither the largest of its row nor low enough, or it is so
    large that its float32 sum with a score is less precise than a 255th of the scores' range.
    """
    largest = mask.max(dim, keepdims=True)
    empty = np.isneginf(largest) | (largest == MASKED)
    with np.errstate(invalid="ignore"):
        below = mask - largest
    keep = (below == 0) & ~empty
    separable = keep | empty | (below <= -_span(q))
    step = (q.range[1] - q.range[0]) / 255 * q.scale
    precise = empty | (np.spacing(np.abs(np.where(empty, 0, largest)).astype(np.float32)) <= step)
    return keep if separable.all() and precise.all() else None
