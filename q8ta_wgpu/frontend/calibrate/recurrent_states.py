"""Observes how large the states of recurrent layers become in calibration, and chooses their fraction bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.watches import unwatch, watch
from q8ta_wgpu.frontend.export.recurrent_layers import is_recurrent
from q8ta_wgpu.frontend.nodes import named_arguments
from q8ta_wgpu.frontend.notes import SHIFTS, note

_HIDDEN, _STATE = 3.98, 126.0
"""The largest hidden states in the product, and states of a cell, that leave all fraction bits."""

_ROOM = 2
"""Room for larger states than in calibration, as a factor."""

_STEPS = 256
"""Steps of a layer whose gates are computed at once."""


class States(torch.nn.Module):
    """The largest states of a layer.

    Attributes:
        hidden: the largest first hidden state. All later ones are not larger, or less than 1.
        state: the largest state of its cell.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.time = 1 if arguments["batch_first"] else 0
        self.each = 4 if arguments["has_biases"] else 2
        self.hidden = self.state = 0.0

    def forward(self, x: Tensor, first: Any, parameters: Sequence[Tensor], hidden: Tensor) -> None:
        """Records a call: its input, first states, parameters, and the hidden states of all its steps."""
        begun, *cell_states = (first,) if isinstance(first, Tensor) else first
        self.hidden = max(self.hidden, _size(begun))
        self.state = max(self.state, _size(cell_states[0]) if cell_states else _size(begun))
        if not cell_states or self.state + x.shape[self.time] <= _STATE:  # every step adds less than 1
            return
        x, hidden = x.movedim(self.time, 0), hidden.movedim(self.time, 0)
        for direction, made in enumerate(hidden.chunk(len(begun), -1)):
            own = parameters[self.each * direction :][: self.each]
            steps, made = (x, made) if direction == 0 else (x.flip(0), made.flip(0))
            before = torch.cat([begun[direction : direction + 1], made[:-1]])
            self._follow(cell_states[0][direction], steps, before, own)

    def _follow(self, state: Tensor, x: Tensor, hidden: Tensor, parameters: Sequence[Tensor]) -> None:
        """Computes the states of an lstm's cell in one direction, from the hidden states before each step. A step
        multiplies the state by a number and adds another. Such maps are composed over one step, two, four and so on
        until all."""
        weight, recurrent, *biases = parameters
        for inputs, before in zip(torch.split(x, _STEPS), torch.split(hidden, _STEPS), strict=True):
            i, f, g, _ = (inputs @ weight.T + before @ recurrent.T + sum(biases)).chunk(4, -1)
            terms, factors, steps = i.sigmoid() * g.tanh(), f.sigmoid(), 1
            while steps < len(inputs):
                terms = torch.cat([terms[:steps], terms[steps:] + factors[steps:] * terms[:-steps]])
                factors = torch.cat([factors[:steps], factors[steps:] * factors[:-steps]])
                steps *= 2
            states = terms + factors * state
            self.state, state = max(self.state, _size(states)), states[-1]


def _size(x: Tensor) -> float:
    return float(x.abs().max())


def watch_states(model: GraphModule) -> None:
    """Makes a prepared model record the states of its recurrent layers. It must be recompiled after."""
    for node in _layers(model):
        arguments, behind = named_arguments(node), node.next
        with model.graph.inserting_before(behind):
            hidden = model.graph.call_function(operator.getitem, (node, 0))
        watch(
            model,
            node,
            States(arguments),
            (arguments["input"], arguments["hx"], arguments["params"], hidden),
            before=behind,
        )


def scale_states(model: GraphModule) -> None:
    """Chooses the range of states in a model that was watched and calibrated, and removes the watchers."""
    for node in _layers(model):
        states = unwatch(model, node)
        shifts = [_bits(states.hidden, _HIDDEN), _bits(states.state, _STATE)]
        if any(shifts):
            note(node, SHIFTS, shifts)


def _bits(largest: float, limit: float) -> int:
    """The number of fraction bits that states give up to hold `largest`, where that is more than `limit`."""
    return 0 if largest <= limit else min(math.ceil(math.log2(_ROOM * largest / limit)), 12)


def _layers(model: GraphModule) -> Iterator[Node]:
    """The calls of recurrent layers, each of one layer."""
    for node in list(model.graph.nodes):
        if node.op == "call_function" and is_recurrent(node) and named_arguments(node)["num_layers"] == 1:
            yield node
