"""Attention with many scores, some heads at a time.

The scores of all heads do not fit a processor's cache, and memory that large comes from the system page by page, which
takes longer than computing with it. Where gradients are taken, scores are computed again on the way back, so that they
are never all held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from q8ta_wgpu.frontend.nodes import is_in_attention

_CACHED = 2**21
"""Scores that are computed at once: 8 MiB."""


@dataclass(frozen=True)
class Attention:
    """An attention that is one operator: its calls from the product that gives scores to the one that gives its result,
    between which each score is computed from itself up to a softmax of rows."""

    calls: Sequence[Node]

    def result(self, call: Node, compute: Callable[..., Tensor], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What one of the calls gives; where there are many scores, what `compute` will give for some heads."""
        if call is self.calls[0]:
            shape: Sequence[int] = (*args[0].shape[:-1], args[1].shape[-1])
            many = len(shape) > 2 and math.prod(shape) > _CACHED
        else:
            shape = next((x.shape for x in args if isinstance(x, _Later)), ())
            many = bool(shape)
        if not many:
            return compute(*args, **named)
        found = _Later(shape, compute, args, named)
        return found.whole() if call is self.calls[-1] else found


def attention_of(softmax: Node) -> Attention | None:
    """The attention that a softmax is part of; None where more is between its products."""
    readers, scores = list(softmax.users), _from_product(softmax.all_input_nodes[0])
    if not scores or len(readers) != 1 or not is_in_attention(readers[0]):
        return None
    return Attention([*scores, softmax, *readers])


def _from_product(scores: Node) -> list[Node]:
    """The calls from an attention's product to its scores; none where there is another kind of call."""
    if is_in_attention(scores):
        return [scores]
    pointwise = torch.Tag.pointwise in getattr(scores.target, "tags", ()) and len(scores.users) == 1
    found = (_from_product(source) for source in scores.all_input_nodes if pointwise)
    return next(([*calls, scores] for calls in found if calls), [])


@dataclass(frozen=True)
class _Later:
    """A tensor that is computed for some heads when they are asked for.

    Attributes:
        shape: of the scores.
        compute: what gives it.
        args: by position, some of them such tensors.
        named: arguments by name.
    """

    shape: Sequence[int]
    compute: Callable[..., Tensor]
    args: Sequence[Any]
    named: Mapping[str, Any]

    def whole(self, *place: int) -> Tensor:
        """All of it that lies at this place in the first dimensions of the scores."""
        if len(place) < len(self.shape) - 2 and math.prod(self.shape[len(place) :]) > _CACHED:
            return torch.cat([self.whole(*place, i) for i in range(self.shape[len(place)])], len(place))
        if torch.is_grad_enabled():
            found: Tensor = checkpoint(self._at, place, use_reentrant=False, preserve_rng_state=False)
            return found
        return self._at(place)

    def _at(self, place: Sequence[int]) -> Tensor:
        def part(x: Any) -> Any:
            return x._at(place) if isinstance(x, _Later) else self._part(x, place) if isinstance(x, Tensor) else x

        args, named = pytree.tree_map(part, (list(self.args), dict(self.named)))
        return self.compute(*args, **named)

    def _part(self, x: Tensor, place: Sequence[int]) -> Tensor:
        for axis, at in enumerate(place, -len(self.shape)):
            x = x.narrow(axis, at, 1) if x.dim() >= -axis and x.shape[axis] > 1 else x
        return x
