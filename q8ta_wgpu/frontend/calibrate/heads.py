"""Computes attention with many scores in slices of heads and rows.

The scores of all heads do not fit a processor's cache, and the system allocates so much memory page by page, which
takes longer than the computation. With gradients, some shares are held for the backward pass, and all others are
computed again there, so that they never take much memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import checkpoint

from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.nodes import is_attention, is_in_attention

_MANY, CACHED = 2**21, 2**18
"""The number of scores from which on they are computed in slices, and the size of a slice: 1 MiB, which fits a core's
own cache."""

_HELD = 2**29
"""Most bytes of shares that are held for the backward pass of a run."""


@dataclass(frozen=True)
class Attention:
    """An attention that is one operator: its calls, from the product that computes scores to the one that computes its
    result. Between them are elementwise calls and a softmax of rows."""

    calls: Sequence[Node]

    def result(self, call: Node, compute: Callable[..., Tensor], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of one of the calls. With many scores it is a tensor whose slices are computed later."""
        first, last = call is self.calls[0], call is self.calls[-1]
        if first:
            shape: Sequence[int] = (*args[0].shape[:-1], args[1].shape[-1])
            many = math.prod(shape) > _MANY
        else:
            shape = next((x.shape for x in args if isinstance(x, _Later)), ())
            many = bool(shape)
        return _Later(shape, compute, args, named, product=first or last) if many else compute(*args, **named)


class InParts(Sized):
    """Runs a program, with attention of many scores in slices of heads and rows."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        whole = filter(None, map(attention_of, filter(is_attention, module.graph.nodes)))
        self._attention = {call: attention for attention in whole for call in attention.calls}
        self._left = _HELD

    @property
    def is_large(self) -> bool:
        """Whether an attention has many scores at the sizes of the example."""
        values = (call.meta.get("val") for call in self._attention)
        return any(isinstance(value, Tensor) and value.numel() > _MANY for value in values)

    def product_of(self, softmax: Node) -> Node | None:
        """The call that computes an attention's result from its shares; None if the attention is not recognized."""
        attention = self._attention.get(softmax)
        return None if attention is None else attention.calls[-1]

    def run_node(self, n: Node) -> Any:
        """A node's value. In an attention with many scores it is a tensor whose slices are computed later."""
        if (attention := self._attention.get(n)) is not None:
            found = attention.result(n, functools.partial(self._call, n), *self.fetch_args_kwargs_from_env(n))
            last = isinstance(found, _Later) and n is attention.calls[-1]
            return found.whole(self._holds(found)) if last else found
        return self.finished(n, super().run_node(n))

    def _holds(self, attended: _Later) -> bool:
        """Whether an attention's shares are held for the backward pass; False if there is none."""
        size = 4 * math.prod(attended.shape)
        if not torch.is_grad_enabled() or size > self._left:
            return False
        self._left -= size
        return True

    def _call(self, n: Node, *args: Any, **named: Any) -> Any:
        return self.finished(n, n.target(*args, **named))  # type: ignore[operator]

    def finished(self, n: Node, result: Any) -> Any:
        """A hook of subclasses: the value of a node from the result of its call."""
        return result


def attention_of(softmax: Node) -> Attention | None:
    """The attention of a softmax; None if other kinds of calls are between its products."""
    readers, scores = list(softmax.users), _from_product(softmax.all_input_nodes[0])
    if not scores or len(readers) != 1 or not is_in_attention(readers[0]):
        return None
    return Attention([*scores, softmax, *readers])


def _from_product(scores: Node) -> list[Node]:
    """The calls from an attention's product to its scores; empty if there is another kind of call."""
    if is_in_attention(scores):
        return [scores]
    pointwise = torch.Tag.pointwise in getattr(scores.target, "tags", ()) and len(scores.users) == 1
    found = (_from_product(source) for source in scores.all_input_nodes if pointwise)
    return next(([*calls, scores] for calls in found if calls), [])


@dataclass(frozen=True)
class _Later:
    """A tensor of which slices are computed when they are needed.

    Attributes:
        shape: of the scores.
        compute: the function that computes it.
        args: by position, some of them such tensors.
        named: arguments by name.
        product: whether it is a product: a slice of its rows needs those rows of the first operand, and all of the
            second.
    """

    shape: Sequence[int]
    compute: Callable[..., Tensor]
    args: Sequence[Any]
    named: Mapping[str, Any]
    product: bool

    def whole(self, holds: bool) -> Tensor:
        """The whole tensor, computed in slices if it has many scores. `holds` says whether shares are held for the
        backward pass."""
        axis = next((i for i, size in enumerate(self.shape[:-1]) if size > 1), None)
        if axis is None or math.prod(self.shape) <= CACHED:
            if torch.is_grad_enabled() and not holds:
                found: Tensor = checkpoint(self._found, use_reentrant=False, preserve_rng_state=False)
                return found
            return self._found()
        each = max(1, CACHED // math.prod(self.shape[axis + 1 :]))
        axis -= len(self.shape)
        return torch.cat([part.whole(holds) for part in self._split(axis, each)], axis)

    def _found(self) -> Tensor:
        args = (x._found() if isinstance(x, _Later) else x for x in self.args)
        return self.compute(*args, **self.named)

    def _split(self, axis: int, each: int) -> list[_Later]:
        """Slices of `each` elements along a dimension of the scores, which is counted from the last."""
        common = 1 if self.product and axis == -2 else None
        args = [[x] if i == common else _parts(x, axis, each) for i, x in enumerate(self.args)]
        named = {name: _parts(x, axis, each) for name, x in self.named.items()}
        found = []
        for start in range(0, self.shape[axis], each):
            shape = list(self.shape)
            shape[axis] = min(each, self.shape[axis] - start)
            positional = [parts[start // each % len(parts)] for parts in args]
            others = {name: parts[start // each % len(parts)] for name, parts in named.items()}
            found.append(_Later(shape, self.compute, positional, others, self.product))
        return found


def _parts(x: Any, axis: int, each: int) -> Sequence[Any]:
    """An argument's slices along a dimension of the scores; the argument itself if it has extent 1 there, or is not a
    tensor."""
    if isinstance(x, _Later):
        return x._split(axis, each)
    if isinstance(x, Tensor) and x.dim() >= -axis and x.shape[axis] > 1:
        return torch.split(x, each, axis)  # autograd concatenates the gradients of these slices once
    return [x]
