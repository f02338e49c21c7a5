"""Values that follow from bools and constants alone: constants, for every combination of those bools."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.importer.bools import is_bool
from q8ta_wgpu.frontend.nodes import constant, is_constant, kind
from q8ta_wgpu.ir.int8 import Moves

_aten = torch.ops.aten
CHOICE = _aten.where.Scalar
"""Makes numbers of a mask of bools."""

MOST = 3
"""Bools that a value is computed for, in all their combinations."""

_POINTWISE = (
    *(CHOICE, _aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.masked_fill.Tensor),
    *(_aten._to_copy.default, _aten.to.dtype, _aten.clone.default),
)
"""Operators that torch does not say are pointwise."""


@dataclass(frozen=True)
class Choice:
    """A value that bools choose element by element: a constant for each combination of them, the one in which
    `bools[i]` holds wherever its number has bit i."""

    bools: tuple[Node, ...]
    values: tuple[Tensor, ...]

    def seen(self, bools: Sequence[Node]) -> Iterator[Tensor]:
        """The values for every combination of more bools."""
        places = [bools.index(b) for b in self.bools]
        for number in range(1 << len(bools)):
            yield self.values[sum((number >> place & 1) << i for i, place in enumerate(places))]


def union(*choices: Choice) -> tuple[Node, ...]:
    """The bools of all."""
    return tuple(dict.fromkeys(b for choice in choices for b in choice.bools))


class Choices:
    """The choices among a graph's values, and new nodes for it."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self.graph = module.graph
        self._found: dict[Node, Choice | None] = {}

    def of(self, node: Any) -> Choice | None:
        """What bools choose a value by, if they alone do; bools that do not follow from others are their own."""
        if not isinstance(node, Node):
            return None
        if node not in self._found:
            found = Choice((), (constant(self._module, node),)) if is_constant(node) else self._computed(node)
            if found is None and is_bool(node):
                found = Choice((node,), (torch.tensor(False), torch.tensor(True)))
            self._found[node] = found
        return self._found[node]

    def _computed(self, node: Node) -> Choice | None:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), Tensor):
            return None
        if torch.Tag.pointwise not in target.tags and target not in _POINTWISE:
            moves = isinstance(kind(node), Moves) and not is_bool(node)  # bools that are moved are bools of their own
            source = self.of(node.args[0]) if moves else None
            return source and self.moved(node, source)
        sources = node.all_input_nodes
        choices = [choice for choice in map(self.of, sources) if choice is not None]
        bools = union(*choices)
        if not choices or len(choices) < len(sources) or len(bools) > MOST:
            return None
        combinations = zip(*(choice.seen(bools) for choice in choices), strict=True)
        return Choice(bools, tuple(result(node, dict(zip(sources, values, strict=True))) for values in combinations))

    def moved(self, node: Node, source: Choice) -> Choice | None:
        """A choice behind a move of what it is, with its bools moved alike."""
        x = node.args[0]
        assert isinstance(x, Node)
        shape = x.meta["val"].shape
        numbers = all(v.numel() == 1 for v in source.values) and "pad" not in str(node.target)
        widens = not numbers or any(b.meta["val"].shape != shape for b in source.bools)
        if (len(node.all_input_nodes) > 1 and not numbers) or (widens and not all(isinstance(d, int) for d in shape)):
            return None
        bools = []
        with self.graph.inserting_before(node):
            for b in source.bools:
                whole = b if b.meta["val"].shape == shape else self.call(node, _aten.expand.default, b, list(shape))
                bools.append(self.call(node, node.target, whole, *node.args[1:], **node.kwargs))
        values = source.values if numbers else tuple(result(node, {x: v.expand(shape)}) for v in source.values)
        return Choice(tuple(bools), values)

    def number(self, value: Any) -> float | None:
        """A number, or what a constant of one element holds."""
        if isinstance(value, Node):
            alone = is_constant(value) and value.meta["val"].numel() == 1
            return float(constant(self._module, value)) if alone else None
        return float(value)

    def call(self, at: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new call, of the place of another one in the user's model."""
        target = _whole(target)
        made = self.graph.call_function(target, args, kwargs)
        known, named = torch.fx.map_arg((args, kwargs), lambda source: source.meta["val"])
        made.meta = {**at.meta, "val": target(*known, **named)}
        return made

    def constant(self, at: Node, value: Tensor) -> Node:
        """A new constant for what is computed at a call."""
        names = (f"_{at.name}_{i}" for i in itertools.count())
        name = next(name for name in names if not hasattr(self._module, name))
        self._module.register_buffer(name, value.clone())
        made = self.graph.get_attr(name)
        made.meta = {**at.meta, "val": at.meta["val"].new_zeros(value.shape, dtype=value.dtype)}
        return made


def result(node: Node, values: Mapping[Node, Any]) -> Any:
    """What a call gives for these values of what it reads."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return _whole(node.target)(*args, **kwargs)


def _whole(target: Any) -> Any:
    """An operator, of a view one that takes what an expand repeats as well."""
    return _aten.reshape.default if target in (_aten.view.default, _aten._unsafe_view.default) else target
