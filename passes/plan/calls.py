"""The calls of a user's program, of which each is one or several nodes of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import Int8, Moves
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.passes.plan.regions import kind_of


@dataclass(frozen=True)
class Call:
    """One operator of the user's program.

    Attributes:
        name: of the call.
        nodes: that it is in a graph, in order.
        inputs: float values that it reads, constants too, each once.
        outputs: values that it gives and that can be stored.
        moves: its kind where all it gives are elements of what it reads, whatever its nodes are.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    moves: Int8 | None

    @property
    def main(self) -> Node:
        """The node that says what the call does: the first that neither moves elements nor stores bools, or the
        first."""
        computes = (
            n for n in self.nodes if not isinstance(kind_of(n), Moves) and n.op not in ("quantize", "dequantize")
        )
        return next(computes, self.nodes[0])

    @property
    def kind(self) -> Int8 | None:
        """What the call is in int8."""
        return self.moves or kind_of(self.main)


class Calls:
    """The calls of a float graph in order, who gives a value and who reads it.

    Args:
        graph: a float graph.
        observable: names of the values that can be stored: floats that calls give.
        names: the call that each node is part of, by the node's output.
        moving: kinds of the calls that give elements of what they read, several nodes though they may be.
    """

    def __init__(
        self, graph: Graph, observable: Collection[str], names: Mapping[str, str], moving: Mapping[str, Int8]
    ) -> None:
        self.graph, self.observable, self._moving = graph, observable, moving
        nodes: dict[str, list[Node]] = {}
        for node in graph.nodes:
            nodes.setdefault(names[node.output], []).append(node)
        self._calls = {name: self._call(name, found) for name, found in nodes.items()}
        self._makers = {output: call for call in self for output in call.outputs}
        self._places = {output: place for place, output in enumerate([*graph.inputs, *self._makers])}
        self._readers: dict[str, list[Call]] = {}
        for call in self:
            for name in call.inputs:
                self._readers.setdefault(name, []).append(call)

    def _call(self, name: str, nodes: list[Node]) -> Call:
        own = {node.output for node in nodes}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name not in own)
        return Call(
            name,
            tuple(nodes),
            tuple(n for n in read if self._is_float(n)),
            tuple(node.output for node in nodes if node.output in self.observable),
            self._moving.get(name),
        )

    def _is_float(self, name: str) -> bool:
        constant = name in self.graph.constants and self.graph.types[name].dtype == FLOAT32
        return constant or name in self.observable

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls.values())

    @property
    def constants(self) -> Collection[str]:
        """Names of the graph's constants."""
        return self.graph.constants

    def maker(self, name: str) -> Call | None:
        """The call that gives a value."""
        return self._makers.get(name)

    def readers_of(self, name: str) -> list[Call]:
        """The calls that read a value."""
        return self._readers.get(name, [])

    def readers(self, call: Call) -> list[Call]:
        """The calls that read anything a call gives."""
        return list({user.name: user for output in call.outputs for user in self.readers_of(output)}.values())

    def shape(self, name: str) -> Shape:
        """The shape of a value."""
        return self.graph.types[name].shape

    def place(self, name: str) -> int:
        """Where a value is in the order in which values are computed."""
        return self._places.get(name, -1)
