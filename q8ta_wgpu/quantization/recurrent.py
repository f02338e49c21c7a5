"""How large the states of recurrent layers become in calibration, and the fraction bits that they have accordingly."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Recurrent
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.tuned import ROOM

_HIDDEN, _STATE = 3.98, 126.0
"""The largest hidden states in the product, and states of a cell, that leave all fraction bits."""

_STEPS = 256
"""Steps of a layer whose gates are computed at once."""


@dataclass
class LayerStates:
    """The largest states of a layer.

    Attributes:
        graph: the float graph.
        nodes: that compute its hidden states, one for each direction.
        hidden: the largest first hidden state. All later ones are not larger, or less than 1.
        state: the largest state of its cell.
    """

    graph: Graph
    nodes: list[Node]
    hidden: float = 0.0
    state: float = 0.0
    _met: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for position, name in enumerate(node.inputs[3:]):
                if name in self.graph.constants:
                    self._first(position, self.graph.constants[name])

    @property
    def wanted(self) -> list[str]:
        """The values that tell how large states become."""
        names = [name for node in self.nodes for name in node.inputs[3:] if name not in self.graph.constants]
        long = [node for node in self.nodes if self._may_grow(node)]
        return list(dict.fromkeys([*names, *(n for node in long for n in (node.inputs[0], node.output))]))

    def _may_grow(self, node: Node) -> bool:
        """Whether the state of an lstm's cell may leave its range: each step adds less than 1."""
        time = self.graph.types[node.inputs[0]].shape[1 if node.attrs["batch_first"] else 0]
        constant = node.inputs[4:5] and node.inputs[4] in self.graph.constants
        return node.op == "lstm" and (not constant or self.state + time > _STATE)

    def meet(self, name: str, array: Array) -> None:
        """Takes a value."""
        for node in self.nodes:
            if name in node.inputs[3:]:
                self._first(node.inputs.index(name, 3) - 3, array)
            if name in (node.inputs[0], node.output, *node.inputs[3:]):
                self._met[name] = array
            if name == node.output and self._may_grow(node):
                self._follow(node)

    def _first(self, position: int, array: Array) -> None:
        largest = float(np.abs(array).max(initial=0.0))
        if position == 0:
            self.hidden = max(self.hidden, largest)
        if position == len(self.nodes[0].inputs[3:]) - 1:
            self.state = max(self.state, largest)

    def _follow(self, node: Node) -> None:
        """Computes the states of an lstm's cell, from the hidden states before each step. A step multiplies the state
        by a number and adds another. Such maps are composed over one step, two, four and so on until all."""
        own = {**self.graph.constants, **self._met}
        pre, weight, bias, hidden, state = (own[name] for name in node.inputs)
        made = own[node.output]
        if node.attrs["batch_first"]:
            pre, made = pre.swapaxes(0, 1), made.swapaxes(0, 1)
        if node.attrs["reverse"]:
            pre, made = pre[::-1], made[::-1]
        hidden = np.broadcast_to(hidden, made.shape[1:])
        before = np.concatenate([hidden[None], made[:-1]])
        for start in range(0, len(pre), _STEPS):
            part = slice(start, start + _STEPS)
            i, f, g, _ = np.split(pre[part] + before[part] @ weight.T + bias, 4, -1)
            terms, factors, steps = _sigmoid(i) * np.tanh(g), _sigmoid(f), 1
            while steps < len(terms):
                terms = np.concatenate([terms[:steps], terms[steps:] + factors[steps:] * terms[:-steps]])
                factors = np.concatenate([factors[:steps], factors[steps:] * factors[:-steps]])
                steps *= 2
            states = terms + factors * state
            self.state, state = max(self.state, float(np.abs(states).max())), states[-1]

    @property
    def shifts(self) -> tuple[int, int]:
        """By how many fraction bits hidden states and those of the cell have less."""
        return _bits(self.hidden, _HIDDEN), _bits(self.state, _STATE)


def layers_of(graph: Graph, calls: Mapping[str, str], read: Collection[str]) -> dict[str, LayerStates]:
    """The recurrent layers that read rounded values, by the calls that are in `read`."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        steps = isinstance(OPS[node.op].int8, Recurrent) and node.attrs["result"] == "sequence"
        if steps and calls[node.output] in read:
            found.setdefault(calls[node.output], []).append(node)
    return {call: LayerStates(graph, nodes) for call, nodes in found.items()}


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _bits(largest: float, limit: float) -> int:
    """The number of fraction bits that states give up to hold `largest`, where that is more than `limit`."""
    return 0 if largest <= limit else min(math.ceil(math.log2(ROOM * largest / limit)), 12)
