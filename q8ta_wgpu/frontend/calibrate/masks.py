"""Masks before softmax, however they are written, as one: what they mask widens no range, and is 0 in int8 as well."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.choices import CHOICE, MOST, Choice, Choices, result, union
from q8ta_wgpu.frontend.nodes import constant, is_constant, is_float, kind, scales
from q8ta_wgpu.ir.int8 import MASKED, MASKS_FROM, Arithmetic, Elementwise, Moves, Rowwise

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Mask:
    """A choice of low numbers, and of others that do not depend on the bools.

    Attributes:
        choice: the bools, and for each combination of them where elements take part.
        low: the largest of the numbers that mask.
        lowest: the smallest of them. One number masks for all: the smallest, so that it does so wherever they did.
        rest: what is added to the elements that take part; None where that is one number for all.
    """

    choice: Choice
    low: float
    lowest: float
    rest: Tensor | None

    @staticmethod
    def of(choice: Choice | None) -> _Mask | None:
        """What a choice masks; None where it is no mask."""
        if choice is None or any(v.dtype != torch.float32 or v.isnan().any() for v in choice.values):
            return None
        lows = [v[v <= MASKS_FROM] for v in choice.values]
        if not any(map(Tensor.numel, lows)):
            return None
        rest = functools.reduce(torch.maximum, choice.values)
        taken = rest[rest > MASKS_FROM]
        if taken.isinf().any() or any(((v != rest) & (v > MASKS_FROM)).any() for v in choice.values):
            return None
        part = Choice(choice.bools, tuple(v > MASKS_FROM for v in choice.values))
        plain = bool((taken == taken[:1]).all())
        lowest, low = (max(float(end), MASKED) for end in torch.cat(lows).aminmax())
        return _Mask(part, low, lowest, None if plain else rest.where(rest > MASKS_FROM, 0))

    def hides(self, factor: Choice) -> bool:
        """Whether a factor is 1 wherever an element takes part."""
        bools = union(self.choice, factor)
        pairs = zip(self.choice.seen(bools), factor.seen(bools), strict=True)
        return len(bools) <= MOST and all(bool(((f == 1) | ~part).all()) for part, f in pairs)


def gather_masks(module: GraphModule) -> None:
    """Lets each softmax read its scores plus one mask: a constant, or a choice between 0 and a low number by bools, in
    place of sums with masks, differences, choices between scores and low numbers, and factors of 0 beside them."""
    gatherer = _Gatherer(Choices(module))
    for node in list(module.graph.nodes):
        int8 = kind(node)
        if not (isinstance(int8, Rowwise) and int8.masked):
            continue
        x = node.args[0]
        assert isinstance(x, Node)
        scores, found = gatherer.split(x)
        if scores is None or not found:
            continue
        if masks(x) and scores in x.args and len(found) == 1:  # its numbers may differ
            continue
        with module.graph.inserting_before(node):
            masked = gatherer.sum_of(node, scores, found)
        if masked.meta["val"].shape == x.meta["val"].shape:
            node.replace_input_with(x, masked)
    module.graph.eliminate_dead_code()


class _Gatherer:
    """Takes masks out of what softmax reads, and adds them as one."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def split(self, node: Node) -> tuple[Node | None, list[_Mask]]:
        """A value without the masks in it, and these; the value itself where there are none, None of a mask alone."""
        if (mask := _Mask.of(self._choices.of(node))) is not None:
            return None, [mask]
        name = str(node.target).removeprefix("aten.")
        if name in ("add.Tensor", "sub.Tensor") and node.kwargs.get("alpha", 1) == 1:
            return self._split_sum(node, negative=name == "sub.Tensor")
        if (filled := self._filled(node)) is not None:
            scores, masks = self.split(filled[0])
            return scores, [*masks, filled[1]]
        alone = node.op == "call_function" and node.all_input_nodes == [node.args[0]]
        return self._split_behind(node) if alone and (scales(node) or isinstance(kind(node), Moves)) else (node, [])

    def _split_sum(self, node: Node, negative: bool) -> tuple[Node | None, list[_Mask]]:
        first, second = node.args[:2]
        left, masks = self.split(first) if isinstance(first, Node) else (first, [])
        if not negative:
            right, found = self.split(second) if isinstance(second, Node) else (second, [])
        else:
            choice = self._choices.of(second)
            mask = choice and _Mask.of(Choice(choice.bools, tuple(-v for v in choice.values)))
            right, found = (None, [mask]) if mask else (second, [])
        masks = [*masks, *found]
        left, right = (self._unhidden(term, masks) for term in (left, right))
        if not masks or (left is None and negative):
            return node, []
        if left is None or right is None:
            return left or right, masks
        with self._choices.graph.inserting_before(node):
            return self._choices.call(node, node.target, left, right), masks

    def _unhidden(self, term: Any, masks: Sequence[_Mask]) -> Any:
        """A term without a factor that is 1 wherever an element takes part in spite of the masks."""
        if isinstance(term, Node) and term.target is _aten.mul.Tensor:
            for x, factor in itertools.permutations(term.args[:2]):
                choice = self._choices.of(factor)
                if choice is not None and isinstance(x, Node) and any(mask.hides(choice) for mask in masks):
                    return x
        return term

    def _filled(self, node: Node) -> tuple[Node, _Mask] | None:
        """Scores, and the mask that puts low numbers among them, of a masked_fill or a choice between the two."""
        name, inverted = str(node.target).removeprefix("aten."), False
        if name in ("masked_fill.Scalar", "masked_fill.Tensor"):
            scores, chosen, value = node.args
        elif name in ("where.self", "where.ScalarOther", "where.ScalarSelf"):
            chosen, value, scores = node.args
            inverted = self._choices.number(value) is None
            scores, value = (value, scores) if inverted else (scores, value)
        else:
            return None
        low, choice = self._choices.number(value), self._choices.of(chosen)
        if low is None or low > MASKS_FROM or choice is None or not isinstance(scores, Node):
            return None
        if not is_float(scores) or scores.meta["val"].shape != node.meta["val"].shape:
            return None
        masked = (v ^ inverted for v in choice.values)
        mask = _Mask.of(Choice(choice.bools, tuple(torch.where(v, max(low, MASKED), 0.0) for v in masked)))
        return (scores, mask) if mask else None

    def _split_behind(self, node: Node) -> tuple[Node | None, list[_Mask]]:
        """What is moved, or multiplied by a number, without the masks added before."""
        x = node.args[0]
        assert isinstance(x, Node)
        scores, masks = self.split(x) if is_float(x) else (x, [])
        if scores is None or not masks or scores.meta["val"].shape != x.meta["val"].shape:  # a move counts dimensions
            return node, []
        with self._choices.graph.inserting_before(node):
            behind = [self._behind(node, mask) for mask in masks]
            moved = [mask for mask in behind if mask]
            if len(moved) < len(masks):
                return node, []
            return self._choices.call(node, node.target, scores, *node.args[1:], **node.kwargs), moved

    def _behind(self, node: Node, mask: _Mask) -> _Mask | None:
        """What masks the result of a move, or of a product with a number, of what a mask masks."""
        x, rest = node.args[0], mask.rest
        assert isinstance(x, Node)
        if rest is not None:
            rest = result(node, {x: rest if scales(node) else rest.expand(x.meta["val"].shape)})
        if scales(node):
            low, lowest = (max(float(result(node, {x: torch.tensor(v)})), MASKED) for v in (mask.low, mask.lowest))
            return _Mask(mask.choice, low, lowest, rest) if low <= MASKS_FROM else None
        int8 = kind(node)
        fills = not isinstance(int8, Moves) or int8.fill is not None
        choice = None if fills else self._choices.moved(node, mask.choice)
        return None if choice is None else _Mask(choice, mask.low, mask.lowest, rest)

    def sum_of(self, at: Node, scores: Node, masks: Sequence[_Mask]) -> Node:
        """Scores plus what the masks hold beside low numbers, plus one mask for all of them."""
        part: Node | Tensor = torch.tensor(True)
        for mask in masks:
            if mask.rest is not None:
                scores = self._choices.call(at, _aten.add.Tensor, scores, self._choices.constant(at, mask.rest))
            part = self._both(at, part, self._part(at, mask.choice.bools, mask.choice.values))
        low = min(mask.lowest for mask in masks)
        if isinstance(part, Tensor):
            added = self._choices.constant(at, torch.where(part, 0.0, low))
        else:
            added = self._choices.call(at, CHOICE, part, 0.0, low)
        return self._choices.call(at, _aten.add.Tensor, scores, added)

    def _part(self, at: Node, bools: Sequence[Node], part: Sequence[Tensor]) -> Node | Tensor:
        """Where elements take part: computed by bools, or constant where these decide nothing."""
        if not bools:
            return part[0]
        half = len(part) // 2
        off, on = (self._part(at, bools[:-1], some) for some in (part[:half], part[half:]))
        if isinstance(off, Tensor) and isinstance(on, Tensor) and bool((off == on).all()):
            return on
        first = self._both(at, bools[-1], on)
        if isinstance(off, Tensor) and not off.any():
            return first
        second = self._both(at, self._choices.call(at, _aten.bitwise_not.default, bools[-1]), off)
        if isinstance(first, Tensor):  # what is never
            return second
        return self._choices.call(at, _aten.bitwise_or.Tensor, first, self._node(at, second))

    def _both(self, at: Node, first: Node | Tensor, second: Node | Tensor) -> Node | Tensor:
        """Where two hold."""
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            return first & second
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Tensor) and (one.all() or not one.any()):
                return other if one.all() else one
        return self._choices.call(at, _aten.bitwise_and.Tensor, self._node(at, first), self._node(at, second))

    def _node(self, at: Node, value: Node | Tensor) -> Node:
        return self._choices.constant(at, value) if isinstance(value, Tensor) else value


def masks(node: Node) -> bool:
    """Whether a node adds a mask: a constant of zeros and of numbers so low that softmax makes them 0."""
    added = [n for n in node.all_input_nodes if is_constant(n)] if node.target is _aten.add.Tensor else []
    if len(added) != 1 or len(node.all_input_nodes) != 2 or node.kwargs.get("alpha", 1) != 1:
        return False
    assert node.graph.owning_module is not None
    values = constant(node.graph.owning_module, added[0])
    return bool(((values == 0) | (values <= MASKS_FROM)).all() and (values <= MASKS_FROM).any())


def given_mask(node: Node) -> Node | None:
    """The term of a sum that masks what a softmax reads, made of inputs of the network alone, without products, or of
    bools."""
    if node.target is not _aten.add.Tensor or len(node.all_input_nodes) != 2 or node.kwargs.get("alpha", 1) != 1:
        return None
    given = [n for n in node.all_input_nodes if _is_given(n) or n.target is CHOICE]
    scored = not any(map(is_constant, node.all_input_nodes))
    return given[0] if len(given) == 1 and scored and _is_softmaxed(node) else None


def sums_to_one(value: Any) -> bool:
    """Whether every row of a value sums up to one: a softmax over the last dimension whose masks leave some of each
    row, as zeros come of a row that is masked as a whole."""
    if not isinstance(value, Node) or value.target is not _aten.softmax.int:
        return False
    scores: Any = value.args[0]
    if value.args[1] not in (-1, scores.meta["val"].dim() - 1):
        return False
    while isinstance(kind(scores), Moves) and len(scores.all_input_nodes) == 1:
        scores = scores.all_input_nodes[0]
    if not masks(scores):
        return given_mask(scores) is None
    module = scores.graph.owning_module
    values = [constant(module, n) for n in scores.all_input_nodes if is_constant(n)]
    return all(bool((v > MASKS_FROM).any(-1).all()) for v in values)


def _is_given(node: Node) -> bool:
    """Whether a value follows from inputs, and constants, element by element; a constant by itself does not."""
    if node.op != "call_function" or not isinstance(kind(node), Moves | Elementwise | Arithmetic | None):
        return node.op == "placeholder"
    inputs = [n for n in node.all_input_nodes if not is_constant(n)]
    return bool(inputs) and all(map(_is_given, inputs))


def _is_softmaxed(node: Node) -> bool:
    """Whether softmax alone reads a value, or views of it."""

    def reads(user: Node) -> bool:
        int8 = kind(user)
        return _is_softmaxed(user) if isinstance(int8, Moves) else isinstance(int8, Rowwise) and int8.masked

    return bool(node.users) and all(map(reads, node.users))


def parts_of(mask: Node) -> Iterator[Node]:
    """The calls a mask is made by of what was given, or of bools that are computed."""
    if mask.op == "call_function":
        yield mask
        for source in mask.all_input_nodes:
            yield from parts_of(source) if _is_given(source) else ()
