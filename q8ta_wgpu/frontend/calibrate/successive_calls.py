"""Calls of a network one after the other, each of which begins with the states that the call before it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
Call = Callable[[Tensors], tuple[list[Tensor], list[Tensor]]]
"""(arguments, the last ones of which are states) -> (outputs, the states after the call)."""

_SAME = 1e-3
"""The relative difference up to which a program's states count as the module's. Their sums have another order."""

_LEFT = 0.1
"""An error of which this share is left after a sequence of calls lasts for longer than the sequence."""


class Calls:
    """Items of a calibration, each with the states that the module had before it.

    Errors of states last from call to call and add up. So a simulated call begins with the states that the simulated
    call before it left, if the module did so in the calibration. A calibration may also reset its states between items.

    Args:
        items: arguments of each call.
        places: the index of each item in the calibration. Only neighbouring calls may be a sequence.
        states: how many of the last arguments are states.
        exact: computes the network in float.
        found: what it computed of the items: of each the outputs, and the states after the call.

    Attributes:
        floats: outputs of each item in float.
        lasting: of each state, whether errors of it last for longer than the longest sequence of calls.
    """

    def __init__(
        self,
        items: Sequence[Tensors],
        places: Sequence[int],
        states: int,
        exact: Call,
        found: Sequence[tuple[list[Tensor], list[Tensor]]],
    ) -> None:
        self._items, self._states = items, states
        self._goes_on = [False] * len(items)
        self.floats = [outputs for outputs, _ in found]
        kept: Tensors = ()
        for index, (item, (_, after)) in enumerate(zip(items, found, strict=True)):
            follows = index > 0 and places[index] == places[index - 1] + 1
            self._goes_on[index] = follows and bool(kept) and all(map(_are_same, item[-states:], kept))
            kept = after
        floats = states and any(x.is_floating_point() for x in items[0][-states:])
        self.lasting = self._lasting(exact) if floats else [False] * states

    def __len__(self) -> int:
        return len(self._items)

    def sequences(self) -> Iterator[range]:
        """Ranges of calls. In each, every call but the first begins with the states that the one before left."""
        begins = [index for index, goes_on in enumerate(self._goes_on) if not goes_on]
        return (range(*ends) for ends in zip(begins, [*begins[1:], len(self._items)], strict=True))

    def _lasting(self, exact: Call) -> list[bool]:
        """Of each state, whether an error of a hundredth of its size is largely left after the longest sequence."""
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
        """The outputs of a network in each call of a sequence."""
        return self._follow(call, sequence, ())[0]

    def _follow(self, call: Call, sequence: range, kept: Tensors) -> tuple[list[list[Tensor]], Tensors]:
        """The outputs of each call, and the states after the last. The first call begins with the states `kept`, or
        with its item's if there are none."""
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
