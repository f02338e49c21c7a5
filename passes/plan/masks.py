"""Masks: low numbers that, added to scores, exclude elements from a softmax or a maximum.

Networks write them in many ways: `x.masked_fill(m, -inf)`, `x + (1 - m) * -1e9`, several in a row, before or after
scores are scaled, moved or biased. `gather_masks` combines all masks of an operator into one that is added last: a
constant, or `where(predicate, 0, low)`. No mask then widens the range of the scores.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, Array, Graph, Node
from q8ta_wgpu.ir.int8 import LOWEST, MASKED, MASKS_FROM, Moves, Rowwise
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.operands import factor_of, is_scale
from q8ta_wgpu.passes.plan.predicates import Predicates, TruthTable
from q8ta_wgpu.passes.plan.recursion import Question, answer
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Mask:
    """A mask, as it is added to scores: low numbers where predicates exclude an element, elsewhere a bias.

    Attributes:
        keep: for each combination of the predicates, which elements are kept.
        low: the largest of the low numbers.
        lowest: the smallest of them. It takes the place of all, so that it masks wherever they did.
        bias: what is added to kept elements; it depends on no predicate. None where it is one number for all elements,
            which does not change a softmax.
    """

    keep: TruthTable
    low: float
    lowest: float
    bias: Array | None

    @staticmethod
    def of(table: TruthTable | None) -> Mask | None:
        """The mask with this truth table; None where the table is none of a mask."""
        if table is None or any(np.isnan(v).any() for v in table.values):
            return None
        values = [v.astype(np.float32) for v in table.values]
        lows = np.concatenate([v[v <= MASKS_FROM] for v in values])
        if not lows.size:
            return None
        bias = functools.reduce(np.maximum, values)
        kept = bias[bias > MASKS_FROM]
        if np.isinf(kept).any() or any(((v != bias) & (v > MASKS_FROM)).any() for v in values):
            return None
        keep = TruthTable(table.predicates, tuple(v > MASKS_FROM for v in values))
        uniform = bool((kept == kept[:1]).all())
        low, lowest = (_clamped(float(end)) for end in (lows.max(), lows.min()))
        return Mask(keep, low, lowest, None if uniform else np.where(bias > MASKS_FROM, bias, np.float32(0)))


def _clamped(low: float) -> float:
    """Clamps a low number so that its sum with a score stays finite in float32. Only -inf becomes MASKED."""
    return MASKED if low in (MASKED, -np.inf) else max(low, LOWEST)


def gather_masks(graph: Graph) -> None:
    """Rewrites the operand of each operator that reads masks as scores + one mask."""
    rewriter = Rewriter(graph)
    masking = Masking(rewriter)
    for node in rewriter.nodes():
        if not reads_masks(node):
            continue
        name = node.inputs[0]
        scores, masks = masking.split(name)
        if scores is None or not masks or masking.is_gathered(name, scores, masks):
            continue
        masked = masking.sum_of(node, scores, masks)
        if graph.types[masked].shape == graph.types[name].shape:
            rewriter.replace(node, replace(node, inputs=(masked, *node.inputs[1:])))
    rewriter.commit()
    graph.prune()


def reads_masks(node: Node) -> bool:
    """Whether an operator ignores elements to which a low number is added, as softmax does."""
    kind = kind_of(node)
    return isinstance(kind, Rowwise) and kind.masked


def whole_rows(graph: Graph) -> set[str]:
    """Results of softmax over the last dimension of which every row sums up to one. A row that is masked as a whole
    gives zeros, so masks must be constants that keep an element of each row."""
    masking, found = Masking(Rewriter(graph.copy())), set[str]()
    for node in graph.nodes:
        if node.op != "softmax" or node.attrs["dim"] != len(graph.types[node.output].shape) - 1:
            continue
        scores, masks = masking.split(node.inputs[0])
        constant = [mask.keep.values[0] for mask in masks if not mask.keep.predicates]
        shape = graph.types[node.inputs[0]].shape
        keep = functools.reduce(np.logical_and, constant, np.ones(shape, bool))
        if scores is not None and len(constant) == len(masks) and keep.shape == shape and keep.any(-1).all():
            found.add(node.output)
    return found


Split = tuple["str | None", list[Mask]]
"""(scores, masks) whose sum a value is: without masks the value itself, and scores None for a mask alone."""


class Masking:
    """Separates a value into scores and masks, and adds masks to scores as one."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.predicates = Predicates(rewriter)
        self._split: dict[str, Split] = {}

    def split(self, name: str) -> Split:
        """The scores and masks of a value."""
        return answer(self._split_value, name, self._split)

    def _split_value(self, name: str) -> Question[Split]:
        if (mask := Mask.of(self.predicates.table(name))) is not None:
            return None, [mask]
        node = self.rewriter.producer(name)
        if node is None:
            return name, []
        if node.op == "add":
            return (yield from self._split_sum(node))
        if node.op == "where" and (filled := self.filled(node)) is not None:
            scores, masks = yield filled[0]
            return scores, [*masks, filled[1]]
        if is_scale(node) or is_move(node):
            return self._split_moved(node, *(yield node.inputs[0]))
        return name, []

    def _split_sum(self, node: Node) -> Question[Split]:
        (first, second), alpha = node.inputs, node.attrs["alpha"]
        left, masks = yield first
        if alpha == 1:
            right, found = yield second
        else:
            mask = Mask.of(self.scaled(second, alpha))
            right, found = (None, [mask]) if mask else (second, [])
        masks = [*masks, *found]
        if not masks or (left is None and alpha != 1):
            return node.output, []
        if left is None or right is None:
            return left or right, masks
        return self.predicates.call(node, "add", (left, right), node.attrs), masks

    def scaled(self, name: str, factor: float) -> TruthTable | None:
        """The truth table of a value times a number; None where the value has no truth table."""
        table = self.predicates.table(name)
        if table is None:
            return None
        with np.errstate(over="ignore"):
            return TruthTable(table.predicates, tuple(np.asarray(v * np.float32(factor)) for v in table.values))

    def filled(self, node: Node) -> tuple[str, Mask] | None:
        """(scores, mask) of a `where` between scores and a low number; None of any other `where`."""
        condition, chosen, other = node.inputs
        inverted = self.predicates.number(chosen) is None
        low, scores = (self.predicates.number(other), chosen) if inverted else (self.predicates.number(chosen), other)
        table = self.predicates.table(condition)
        if low is None or low > MASKS_FROM or table is None:
            return None
        if self.rewriter.graph.types[scores].shape != self.rewriter.graph.types[node.output].shape:
            return None
        masked = ((v != 0) ^ inverted for v in table.values)
        values = tuple(np.where(v, np.float32(_clamped(low)), np.float32(0)) for v in masked)
        mask = Mask.of(TruthTable(table.predicates, values))
        return (scores, mask) if mask else None

    def _split_moved(self, node: Node, scores: str | None, masks: Sequence[Mask]) -> Split:
        """Scores and masks of a move, or a product with a number: that of the scores, and each mask moved or scaled."""
        types, x = self.rewriter.graph.types, node.inputs[0]
        if scores is None or not masks or types[scores].shape != types[x].shape:  # the move's dimensions are those of x
            return node.output, []
        moved = [result for mask in masks if (result := self._moved(node, mask))]
        if len(moved) < len(masks):
            return node.output, []
        return self.predicates.call(node, node.op, (scores,), node.attrs), moved

    def _moved(self, node: Node, mask: Mask) -> Mask | None:
        """A mask after a move or a product with a number; None where it is no mask then."""
        graph, bias = self.rewriter.graph, mask.bias
        if (factor := factor_of(node)) is not None:
            low, lowest = (v if v == MASKED else _clamped(v * factor) for v in (mask.low, mask.lowest))
            bias = None if bias is None else bias * np.float32(factor)
            return Mask(mask.keep, low, lowest, bias) if low <= MASKS_FROM else None
        if bias is not None:
            full = np.broadcast_to(bias, graph.types[node.inputs[0]].shape)
            bias = np.asarray(OPS[node.op].reference(graph.call(node), [full]))
        kind = kind_of(node)
        fills = not isinstance(kind, Moves) or kind.fill is not None
        keep = None if fills else self.predicates.moved(node, mask.keep)
        return None if keep is None else Mask(keep, mask.low, mask.lowest, bias)

    def is_gathered(self, name: str, scores: str, masks: Sequence[Mask]) -> bool:
        """Whether a value is scores + one constant mask already, whose low numbers may differ."""
        add = self.rewriter.producer(name)
        added = [n for n in add.inputs if n in self.rewriter.graph.constants] if add and add.op == "add" else []
        if add is None or len(added) != 1 or len(masks) != 1 or scores not in add.inputs or add.attrs["alpha"] != 1:
            return False
        values = self.rewriter.graph.constants[added[0]]
        return bool(((values == 0) | (values <= MASKS_FROM)).all())

    def sum_of(self, before: Node, scores: str, masks: Sequence[Mask]) -> str:
        """Inserts scores + the masks' biases + one mask for all of them; returns the name of the sum."""
        build = self.predicates
        keep: str | Array = np.ones((), bool)
        for mask in masks:
            if mask.bias is not None:
                scores = build.call(before, "add", (scores, build.constant(before, mask.bias)), {"alpha": 1.0})
            keep = self._and(before, keep, self._keep(before, mask.keep.predicates, mask.keep.values))
        low = np.float32(min(mask.lowest for mask in masks))
        if isinstance(keep, str):
            numbers = (build.constant(before, np.asarray(value)) for value in (np.float32(0), low))
            added = build.call(before, "where", (build.real(before, keep), *numbers), {})
        else:
            added = build.constant(before, np.where(keep, np.float32(0), low))
        return build.call(before, "add", (scores, added), {"alpha": 1.0})

    def _keep(self, before: Node, predicates: Sequence[str], values: Sequence[Array]) -> str | Array:
        """The predicate with this truth table; a constant where it depends on none. With p the last predicate, it is
        (p and the half where p is true) or (not p and the half where p is false)."""
        if not predicates:
            return np.asarray(values[0] != 0)
        half = len(values) // 2
        off, on = (self._keep(before, predicates[:-1], some) for some in (values[:half], values[half:]))
        if not isinstance(off, str) and not isinstance(on, str) and bool((off == on).all()):
            return on
        first = self._and(before, predicates[-1], on)
        if not isinstance(off, str) and not off.any():
            return first
        inverse = self.predicates.logical(before, "eq_scalar", (predicates[-1],), {"number": 0.0})
        second = self._and(before, inverse, off)
        if not isinstance(first, str):  # false everywhere
            return second
        return self.predicates.logical(before, "maximum", (first, self._named(before, second)), {})

    def _and(self, before: Node, first: str | Array, second: str | Array) -> str | Array:
        """The conjunction of two predicates or constants."""
        if not isinstance(first, str) and not isinstance(second, str):
            return np.asarray((first != 0) & (second != 0))
        for one, other in ((first, second), (second, first)):
            if not isinstance(one, str) and (one.all() or not one.any()):
                return other if one.all() else one
        return self.predicates.logical(before, "minimum", (self._named(before, first), self._named(before, second)), {})

    def _named(self, before: Node, value: str | Array) -> str:
        """The name of a predicate; a constant is added to the graph as int8."""
        if isinstance(value, str):
            return value
        bools = np.asarray(value, np.int8)
        return self.rewriter.graph.add_constant(f"{before.output}.part", bools, BOOL.dtype, BOOL)
