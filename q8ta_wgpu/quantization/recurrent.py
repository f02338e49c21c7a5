"""How large the states of recurrent layers become, and the fraction bits that they have accordingly."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Recurrent
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.tuned import ROOM

_HIDDEN, _STATE = 3.98, 126.0
"""The largest hidden states in the product, and states of a cell, that leave all fraction bits."""


@dataclass
class LayerStates:
    """The largest states of a layer.

    Attributes:
        graph: the float graph.
        nodes: that compute its results, one for each direction.
        hidden: the largest first hidden state. All later ones are not larger, or less than 1.
        state: the largest first state of its cell.
        steps: how many follow, each of which adds less than 1 to the state of an lstm's cell.
    """

    graph: Graph
    nodes: list[Node]
    hidden: float = 0.0
    state: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        node = self.nodes[0]
        if node.op == "lstm":
            self.steps = self.graph.types[node.inputs[0]].shape[1 if node.attrs["batch_first"] else 0]
        for name in (name for node in self.nodes for name in node.inputs[3:] if name in self.graph.constants):
            self.meet(name, self.graph.constants[name])

    @property
    def wanted(self) -> list[str]:
        """The first states that calibration meets."""
        names = (name for node in self.nodes for name in node.inputs[3:])
        return list(dict.fromkeys(name for name in names if name not in self.graph.constants))

    def meet(self, name: str, array: Array) -> None:
        """Takes a first state."""
        largest = float(np.abs(array).max(initial=0.0))
        for node in (node for node in self.nodes if name in node.inputs[3:]):
            if name == node.inputs[3]:
                self.hidden = max(self.hidden, largest)
            if name == node.inputs[-1]:
                self.state = max(self.state, largest)

    @property
    def shifts(self) -> tuple[int, int]:
        """By how many fraction bits hidden states and those of the cell have less."""
        return _bits(ROOM * self.hidden, _HIDDEN), _bits(ROOM * self.state + self.steps, _STATE)


def layers_of(graph: Graph, calls: Mapping[str, str], read: Collection[str]) -> dict[str, LayerStates]:
    """The recurrent layers that read rounded values, by the calls that are in `read`."""
    found: dict[str, dict[bool, Node]] = {}
    for node in graph.nodes:
        if isinstance(OPS[node.op].int8, Recurrent) and calls[node.output] in read:
            found.setdefault(calls[node.output], {}).setdefault(node.attrs["reverse"], node)
    return {call: LayerStates(graph, list(nodes.values())) for call, nodes in found.items()}


def _bits(largest: float, limit: float) -> int:
    """The number of fraction bits that states give up to hold `largest`, where that is more than `limit`."""
    return 0 if largest <= limit else min(math.ceil(math.log2(largest / limit)), 12)
