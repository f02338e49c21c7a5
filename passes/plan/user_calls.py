"""The calls of the user's program. The importer makes one or several nodes of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import Int8, Moves
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.passes.plan.regions import kind_of


@dataclass(frozen=True)
class UserCall:
    """One operator of the user's program.

    Attributes:
        name: its name there.
        nodes: the nodes that it became, in order.
        inputs: float values and constants that it reads, without repetition.
        outputs: its results that can be stored.
        moves: its kind where it only moves elements, though its nodes may compute; else None.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    moves: Int8 | None

    @property
    def main(self) -> Node:
        """The first node that computes: that neither moves elements nor converts bools. Else the first node."""
        computes = (
            n for n in self.nodes if not isinstance(kind_of(n), Moves) and n.op not in ("quantize", "dequantize")
        )
        return next(computes, self.nodes[0])

    @property
    def kind(self) -> Int8 | None:
        """What the call is in int8."""
        return self.moves or kind_of(self.main)


class UserCalls:
    """The calls of a float graph in execution order, with the producer and the readers of each value.

    Args:
        graph: a float graph.
        observable: names of the values that can be stored: float results of calls.
        names: the call that each node is part of, by the node's output.
        moving: kinds of the calls that only move elements, though several nodes may do it.
    """

    def __init__(
        self, graph: Graph, observable: Collection[str], names: Mapping[str, str], moving: Mapping[str, Int8]
    ) -> None:
        self.graph, self.observable, self._moving = graph, observable, moving
        nodes: dict[str, list[Node]] = {}
        for node in graph.nodes:
            nodes.setdefault(names[node.output], []).append(node)
        self._calls = {name: self._call(name, found) for name, found in nodes.items()}
        self._producers = {output: call for call in self for output in call.outputs}
        self._positions = {output: position for position, output in enumerate([*graph.inputs, *self._producers])}
        self._readers: dict[str, list[UserCall]] = {}
        for call in self:
            for name in call.inputs:
                self._readers.setdefault(name, []).append(call)

    def _call(self, name: str, nodes: list[Node]) -> UserCall:
        own = {node.output for node in nodes}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name not in own)
        return UserCall(
            name,
            tuple(nodes),
            tuple(n for n in read if self._is_float(n)),
            tuple(node.output for node in nodes if node.output in self.observable),
            self._moving.get(name),
        )

    def _is_float(self, name: str) -> bool:
        constant = name in self.graph.constants and self.graph.types[name].dtype == FLOAT32
        return constant or name in self.observable

    def __iter__(self) -> Iterator[UserCall]:
        return iter(self._calls.values())

    @property
    def constants(self) -> Collection[str]:
        """Names of the graph's constants."""
        return self.graph.constants

    def producer(self, name: str) -> UserCall | None:
        """The call that computes a value; None for inputs and constants."""
        return self._producers.get(name)

    def readers_of(self, name: str) -> list[UserCall]:
        """The calls that read a value."""
        return self._readers.get(name, [])

    def readers(self, call: UserCall) -> list[UserCall]:
        """The calls that read any result of a call."""
        return list({user.name: user for output in call.outputs for user in self.readers_of(output)}.values())

    def shape(self, name: str) -> Shape:
        """The shape of a value."""
        return self.graph.types[name].shape

    def position(self, name: str) -> int:
        """The index of a value in the order in which values are computed; -1 for constants."""
        return self._positions.get(name, -1)
