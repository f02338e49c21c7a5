"""How large the states of recurrent layers become in calibration, and the fraction bits that this leaves them."""

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
"""Up to which hidden states in the product, and states that a cell keeps, have all fraction bits."""

_ROOM = 2
"""Times what calibration met, for larger states."""

_STEPS = 256
"""Steps of a layer whose gates are computed at once."""


class States(torch.nn.Module):
    """The largest states that a layer meets.

    Attributes:
        hidden: of the hidden states that it begins with; all others are less, or less than 1.
        state: of the states that its cell keeps.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.time = 1 if arguments["batch_first"] else 0
        self.each = 4 if arguments["has_biases"] else 2
        self.hidden = self.state = 0.0

    def forward(self, x: Tensor, first: Any, parameters: Sequence[Tensor], hidden: Tensor) -> None:
        """Notes a call: its input, first states, parameters, and the hidden states of all its steps."""
        begun, *kept = (first,) if isinstance(first, Tensor) else first
        self.hidden = max(self.hidden, _size(begun))
        self.state = max(self.state, _size(kept[0]) if kept else _size(begun))
        if not kept or self.state + x.shape[self.time] <= _STATE:  # a step adds less than 1
            return
        x, hidden = x.movedim(self.time, 0), hidden.movedim(self.time, 0)
        for direction, made in enumerate(hidden.chunk(len(begun), -1)):
            own = parameters[self.each * direction :][: self.each]
            steps, made = (x, made) if direction == 0 else (x.flip(0), made.flip(0))
            before = torch.cat([begun[direction : direction + 1], made[:-1]])
            self._follow(kept[0][direction], steps, before, own)

    def _follow(self, state: Tensor, x: Tensor, hidden: Tensor, parameters: Sequence[Tensor]) -> None:
        """Computes the states of an lstm's cell anew, one direction of it, from the hidden states before each step:
        what is added and what is kept by one step, by two, by four, until all steps are one."""
        weight, recurrent, *biases = parameters
        for part, before in zip(torch.split(x, _STEPS), torch.split(hidden, _STEPS), strict=True):
            i, f, g, _ = (part @ weight.T + before @ recurrent.T + sum(biases)).chunk(4, -1)
            added, kept, steps = i.sigmoid() * g.tanh(), f.sigmoid(), 1
            while steps < len(part):
                added = torch.cat([added[:steps], added[steps:] + kept[steps:] * added[:-steps]])
                kept = torch.cat([kept[:steps], kept[steps:] * kept[:-steps]])
                steps *= 2
            states = added + kept * state
            self.state, state = max(self.state, _size(states)), states[-1]


def _size(x: Tensor) -> float:
    return float(x.abs().max())


def watch_states(model: GraphModule) -> None:
    """Lets a prepared model note what the states of its recurrent layers reach, once it is recompiled."""
    for node in _layers(model):
        given, behind = named_arguments(node), node.next
        with model.graph.inserting_before(behind):
            hidden = model.graph.call_function(operator.getitem, (node, 0))
        watch(model, node, States(given), (given["input"], given["hx"], given["params"], hidden), before=behind)


def scale_states(model: GraphModule) -> None:
    """Gives the states of a model that was watched and calibrated the range that they need, and ends the watch."""
    for node in _layers(model):
        states = unwatch(model, node)
        shifts = [_bits(states.hidden, _HIDDEN), _bits(states.state, _STATE)]
        if any(shifts):
            note(node, SHIFTS, shifts)


def _bits(met: float, limit: float) -> int:
    """Fraction bits fewer that states need which reach more than `limit`."""
    return 0 if met <= limit else min(math.ceil(math.log2(_ROOM * met / limit)), 12)


def _layers(model: GraphModule) -> Iterator[Node]:
    """The calls of one recurrent layer."""
    for node in list(model.graph.nodes):
        if node.op == "call_function" and is_recurrent(node) and named_arguments(node)["num_layers"] == 1:
            yield node
