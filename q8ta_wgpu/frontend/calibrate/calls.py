"""Calls of a network one after the other, in which it goes on with what it kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
Call = Callable[[Tensors], tuple[list[Tensor], list[Tensor]]]
"""Arguments, of which states are the last ones -> outputs, and the states after the call."""

_SAME = 1e-3
"""By how much of their size a program's states may differ from the module's, whose sums have another order."""

_LEFT = 0.1
"""Share of an error that is left after a sequence of calls from which on it lasts for longer than that."""


class Calls:
    """Items of a calibration, each with the states that the module had before it.

    Errors of states last from call to call and add up. So a simulated call begins with the states that the simulated
    one before it left, where the module went on as well; a calibration may also set its states back.

    Args:
        items: arguments of each call.
        places: of each, its place in the calibration: a call goes on only from the one right before it.
        states: how many of the last arguments are states.
        exact: what the network gives for an item in float.

    Attributes:
        floats: outputs of each item in float.
        lasting: of each state, whether errors of it last for longer than the longest sequence of calls.
    """

    def __init__(self, items: Sequence[Tensors], places: Sequence[int], states: int, exact: Call) -> None:
        self._items, self._states = items, states
        self._goes_on = [False] * len(items)
        self.floats: list[list[Tensor]] = []
        kept: Tensors = ()
        for index, item in enumerate(items):
            follows = index > 0 and places[index] == places[index - 1] + 1
            self._goes_on[index] = follows and bool(kept) and all(map(_are_same, item[-states:], kept))
            outputs, kept = exact(item)
            self.floats.append(outputs)
        floats = states and any(x.is_floating_point() for x in items[0][-states:])
        self.lasting = self._lasting(exact) if floats else [False] * states

    def __len__(self) -> int:
        return len(self._items)

    def sequences(self) -> Iterator[range]:
        """Calls in each of which, but for the first one, the network goes on."""
        begins = [index for index, goes_on in enumerate(self._goes_on) if not goes_on]
        return (range(*ends) for ends in zip(begins, [*begins[1:], len(self._items)], strict=True))

    def _lasting(self, exact: Call) -> list[bool]:
        """Of each state, whether much is left after the longest sequence of an error of a hundredth before it."""
        sequence = max(self.sequences(), key=len)
        _, after = self._follow(exact, sequence, ())
        random, item = torch.Generator().manual_seed(0), self._items[sequence.start]
        errors = [_error(x, random) for x in after]
        before = item[len(item) - self._states :]
        _, found = self._follow(exact, sequence, [x + e for x, e in zip(before, errors, strict=True)])
        return [
            x.dtype.is_floating_point and float((x - y).norm()) > _LEFT * float(error.norm())
            for x, y, error in zip(found, after, errors, strict=True)
        ]

    def outputs(self, call: Call, sequence: range) -> list[list[Tensor]]:
        """What a network gives in each call of a sequence."""
        return self._follow(call, sequence, ())[0]

    def _follow(self, call: Call, sequence: range, kept: Tensors) -> tuple[list[list[Tensor]], Tensors]:
        """Outputs of each call, and the last states; the first states are those of the item, or `kept`."""
        found = list[list[Tensor]]()
        for index in sequence:
            item = self._items[index]
            outputs, kept = call((*item[: len(item) - self._states], *kept) if kept else item)
            found.append(outputs)
        return found, kept


def _error(x: Tensor, random: torch.Generator) -> Tensor:
    """A hundredth of a float tensor's root mean square, with random signs; nothing for others."""
    if not x.dtype.is_floating_point:
        return torch.zeros_like(x)
    signs = torch.randint(0, 2, x.shape, generator=random) * 2.0 - 1.0
    return signs * x.square().mean().sqrt() / 100


def _are_same(given: Tensor, kept: Tensor) -> bool:
    if not given.dtype.is_floating_point:
        return torch.equal(given, kept)
    return given.shape == kept.shape and float((given - kept).norm()) <= _SAME * float(given.norm())
