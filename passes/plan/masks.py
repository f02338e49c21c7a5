"""Masks: numbers so low that what they are added to takes no part in a softmax or a maximum.

Networks write them in many ways: masked_fill, where, sums with constants, `(1 - m) * -1e9`, several in a row, before or
after scores are scaled, moved and biased. `gather_masks` makes them one, added last: a constant, or a choice between 0
and a low number by a predicate. Scores are then what is left, and no mask widens their range.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, Array, Graph, Node
from q8ta_wgpu.ir.int8 import LOWEST, MASKED, MASKS_FROM, Moves, Rowwise
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.operands import factor_of, is_scale
from q8ta_wgpu.passes.plan.predicates import MOST, Predicates, TruthTable, union
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Mask:
    """Low numbers where predicates say so, and other numbers that do not depend on predicates.

    Attributes:
        part: for each combination of the predicates, where elements take part.
        low: the largest of the low numbers.
        lowest: the smallest of them. One number masks for all: the smallest, so that it does so wherever they did.
        bias: what is added to the elements that take part; None where that is one number for all.
    """

    part: TruthTable
    low: float
    lowest: float
    bias: Array | None

    @staticmethod
    def of(table: TruthTable | None) -> Mask | None:
        """What a truth table masks; None where it is no mask."""
        if table is None or any(np.isnan(v).any() for v in table.values):
            return None
        values = [v.astype(np.float32) for v in table.values]
        lows = np.concatenate([v[v <= MASKS_FROM] for v in values])
        if not lows.size:
            return None
        bias = functools.reduce(np.maximum, values)
        taken = bias[bias > MASKS_FROM]
        if np.isinf(taken).any() or any(((v != bias) & (v > MASKS_FROM)).any() for v in values):
            return None
        part = TruthTable(table.predicates, tuple(v > MASKS_FROM for v in values))
        plain = bool((taken == taken[:1]).all())
        low, lowest = (_held(float(end)) for end in (lows.max(), lows.min()))
        return Mask(part, low, lowest, None if plain else np.where(bias > MASKS_FROM, bias, np.float32(0)))

    def hides(self, factor: TruthTable) -> bool:
        """Whether a factor is 1 wherever an element takes part."""
        predicates = union(self.part, factor)
        pairs = zip(self.part.over(predicates), factor.over(predicates), strict=True)
        return len(predicates) <= MOST and all(bool(((f == 1) | ~part).all()) for part, f in pairs)


def _held(low: float) -> float:
    """A number that masks, such that its sum with a score stays in float32; one that stands for -inf stays apart."""
    return MASKED if low in (MASKED, -np.inf) else max(low, LOWEST)


def gather_masks(graph: Graph) -> None:
    """Lets each operator that knows masks read its scores plus one mask."""
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
    """Whether an operator leaves out the elements that a low number is added to."""
    kind = kind_of(node)
    return isinstance(kind, Rowwise) and kind.masked


def whole_rows(graph: Graph) -> set[str]:
    """The softmaxes over the last dimension of which every row sums up to one: with masks that leave some of each, as
    zeros come of a row that is masked as a whole."""
    masking, found = Masking(Rewriter(graph.copy())), set[str]()
    for node in graph.nodes:
        if node.op != "softmax" or node.attrs["dim"] != len(graph.types[node.output].shape) - 1:
            continue
        scores, masks = masking.split(node.inputs[0])
        parts = [mask.part.values[0] for mask in masks if not mask.part.predicates]
        shape = graph.types[node.inputs[0]].shape
        part = functools.reduce(np.logical_and, parts, np.ones(shape, bool))
        if scores is not None and len(parts) == len(masks) and part.shape == shape and part.any(-1).all():
            found.add(node.output)
    return found


class Masking:
    """Takes masks out of what an operator reads, and adds them as one."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.predicates = Predicates(rewriter)
        self._split: dict[str, tuple[str | None, list[Mask]]] = {}

    def split(self, name: str) -> tuple[str | None, list[Mask]]:
        """A value without the masks in it, and these; the value itself where there are none, None of a mask alone."""
        if name not in self._split:
            self._split[name] = self._taken_apart(name)
        return self._split[name]

    def _taken_apart(self, name: str) -> tuple[str | None, list[Mask]]:
        if (mask := Mask.of(self.predicates.table(name))) is not None:
            return None, [mask]
        node = self.rewriter.producer(name)
        if node is None:
            return name, []
        if node.op == "add":
            return self._split_sum(node)
        if node.op == "where" and (filled := self.filled(node)) is not None:
            scores, masks = self.split(filled[0])
            return scores, [*masks, filled[1]]
        return self._split_behind(node) if is_scale(node) or is_move(node) else (name, [])

    def _split_sum(self, node: Node) -> tuple[str | None, list[Mask]]:
        (first, second), alpha = node.inputs, node.attrs["alpha"]
        left, masks = self.split(first)
        if alpha == 1:
            right, found = self.split(second)
        else:
            mask = Mask.of(self.scaled(second, alpha))
            right, found = (None, [mask]) if mask else (second, [])
        masks = [*masks, *found]
        left, right = (self._unhidden(term, masks) for term in (left, right))
        if not masks or (left is None and alpha != 1):
            return node.output, []
        if left is None or right is None:
            return left or right, masks
        return self.predicates.call(node, "add", (left, right), node.attrs), masks

    def scaled(self, name: str, factor: float) -> TruthTable | None:
        """The truth table of a value times a number; None where it depends on more than predicates."""
        table = self.predicates.table(name)
        if table is None:
            return None
        with np.errstate(over="ignore"):
            return TruthTable(table.predicates, tuple(np.asarray(v * np.float32(factor)) for v in table.values))

    def _unhidden(self, term: str | None, masks: Sequence[Mask]) -> str | None:
        """A term without a factor that is 1 wherever the masks let an element take part."""
        node = self.rewriter.producer(term) if term else None
        if node is not None and node.op == "mul":
            for x, factor in itertools.permutations(node.inputs):
                table = self.predicates.table(factor)
                if table is not None and any(mask.hides(table) for mask in masks):
                    return x
        return term

    def filled(self, node: Node) -> tuple[str, Mask] | None:
        """The scores, and the mask, of a `where` between scores and a low number."""
        condition, chosen, other = node.inputs
        inverted = self.predicates.number(chosen) is None
        low, scores = (self.predicates.number(other), chosen) if inverted else (self.predicates.number(chosen), other)
        table = self.predicates.table(condition)
        if low is None or low > MASKS_FROM or table is None:
            return None
        if self.rewriter.graph.types[scores].shape != self.rewriter.graph.types[node.output].shape:
            return None
        masked = ((v != 0) ^ inverted for v in table.values)
        values = tuple(np.where(v, np.float32(_held(low)), np.float32(0)) for v in masked)
        mask = Mask.of(TruthTable(table.predicates, values))
        return (scores, mask) if mask else None

    def _split_behind(self, node: Node) -> tuple[str | None, list[Mask]]:
        """Of a move, or a product with a number: the result without the masks that were added before it, and those
        masks behind it."""
        types, x = self.rewriter.graph.types, node.inputs[0]
        scores, masks = self.split(x)
        if scores is None or not masks or types[scores].shape != types[x].shape:  # a move counts dimensions
            return node.output, []
        behind = [moved for mask in masks if (moved := self._behind(node, mask))]
        if len(behind) < len(masks):
            return node.output, []
        return self.predicates.call(node, node.op, (scores,), node.attrs), behind

    def _behind(self, node: Node, mask: Mask) -> Mask | None:
        """What masks the result of a move, or of a product with a number, of what a mask masks."""
        graph, bias = self.rewriter.graph, mask.bias
        if (factor := factor_of(node)) is not None:
            low, lowest = (v if v == MASKED else _held(v * factor) for v in (mask.low, mask.lowest))
            bias = None if bias is None else bias * np.float32(factor)
            return Mask(mask.part, low, lowest, bias) if low <= MASKS_FROM else None
        if bias is not None:
            whole = np.broadcast_to(bias, graph.types[node.inputs[0]].shape)
            bias = np.asarray(OPS[node.op].reference(graph.call(node), [whole]))
        kind = kind_of(node)
        fills = not isinstance(kind, Moves) or kind.fill is not None
        part = None if fills else self.predicates.moved(node, mask.part)
        return None if part is None else Mask(part, mask.low, mask.lowest, bias)

    def is_gathered(self, name: str, scores: str, masks: Sequence[Mask]) -> bool:
        """Whether a value adds one mask of constants to scores already: its numbers may differ."""
        add = self.rewriter.producer(name)
        added = [n for n in add.inputs if n in self.rewriter.graph.constants] if add and add.op == "add" else []
        if add is None or len(added) != 1 or len(masks) != 1 or scores not in add.inputs or add.attrs["alpha"] != 1:
            return False
        values = self.rewriter.graph.constants[added[0]]
        return bool(((values == 0) | (values <= MASKS_FROM)).all())

    def sum_of(self, before: Node, scores: str, masks: Sequence[Mask]) -> str:
        """Scores plus what the masks hold beside low numbers, plus one mask for all of them."""
        made = self.predicates
        part: str | Array = np.ones((), bool)
        for mask in masks:
            if mask.bias is not None:
                scores = made.call(before, "add", (scores, made.constant(before, mask.bias)), {"alpha": 1.0})
            part = self._both(before, part, self._part(before, mask.part.predicates, mask.part.values))
        low = np.float32(min(mask.lowest for mask in masks))
        if isinstance(part, str):
            numbers = (made.constant(before, np.asarray(value)) for value in (np.float32(0), low))
            added = made.call(before, "where", (made.real(before, part), *numbers), {})
        else:
            added = made.constant(before, np.where(part, np.float32(0), low))
        return made.call(before, "add", (scores, added), {"alpha": 1.0})

    def _part(self, before: Node, predicates: Sequence[str], values: Sequence[Array]) -> str | Array:
        """Where elements take part: a predicate, or constant where the predicates decide nothing."""
        if not predicates:
            return np.asarray(values[0] != 0)
        half = len(values) // 2
        off, on = (self._part(before, predicates[:-1], some) for some in (values[:half], values[half:]))
        if not isinstance(off, str) and not isinstance(on, str) and bool((off == on).all()):
            return on
        first = self._both(before, predicates[-1], on)
        if not isinstance(off, str) and not off.any():
            return first
        inverse = self.predicates.logical(before, "eq_scalar", (predicates[-1],), {"number": 0.0})
        second = self._both(before, inverse, off)
        if not isinstance(first, str):  # what is never
            return second
        return self.predicates.logical(before, "maximum", (first, self._named(before, second)), {})

    def _both(self, before: Node, first: str | Array, second: str | Array) -> str | Array:
        """Where two predicates hold."""
        if not isinstance(first, str) and not isinstance(second, str):
            return np.asarray((first != 0) & (second != 0))
        for one, other in ((first, second), (second, first)):
            if not isinstance(one, str) and (one.all() or not one.any()):
                return other if one.all() else one
        return self.predicates.logical(before, "minimum", (self._named(before, first), self._named(before, second)), {})

    def _named(self, before: Node, value: str | Array) -> str:
        """A predicate; of a constant one as int8."""
        if isinstance(value, str):
            return value
        bools = np.asarray(value, np.int8)
        return self.rewriter.graph.add_constant(f"{before.output}.part", bools, BOOL.dtype, BOOL)
