"""What a cat, a stack or a write joins only to give it as an output, or to take it apart again.

A detector ends in `torch.cat([boxes * 40, scores.sigmoid()], 1)`. At one scale the boxes would take all steps, and the
scores would become one number. The output is float32, and so each part keeps a scale of its own: what is joined is
dequantized, which is exact, and then moved in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.regions import kind_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass
class Joined:
    """Values that have no scale.

    Attributes:
        values: names of joins, and of what moves them to outputs or to pieces. These nodes move float32.
        pieces: names of what is taken out of joins. Each has a scale of its own.
    """

    values: set[str] = field(default_factory=set)
    pieces: set[str] = field(default_factory=set)


def joined_values(graph: Graph, moving: Collection[str], states: Collection[str] = ()) -> Joined:
    """Finds what is joined in a float graph only for outputs, or to be taken apart again.

    A join is taken apart where no two of the pieces hold elements of the same part, as a channel shuffle's do. A join
    that anything else reads is none of them.

    Args:
        graph: a float graph; it is not changed.
        moving: outputs of the nodes that belong to calls of the user's program which only move elements. The directions
            of a recurrent layer are joined within one call that computes.
        states: names of the values that states keep from call to call, which need a scale.
    """
    origins, found, whole = Origins(graph, moving), Joined(), set[str]()
    for node in reversed(graph.nodes):  # a join of joins comes first
        if origins.joins(node):
            reached = _Reached(origins, found, states, whole)
            if reached.follow(node.output):
                whole |= set() if reached.pieces else reached.moved
                found.values |= reached.moved
                found.pieces |= reached.pieces.keys()
    found.pieces -= found.values
    return found


def origins_of(graph: Graph, names: Iterable[str | None]) -> list[tuple[Array, list[str]] | None]:
    """For each of these values of a graph, if it is joined, the number of the part that each element is of, and the
    names of the numbered parts; None for others. If all rows of a batch (dimension 0) are alike, there is one row of
    numbers."""
    origins, found = Origins(graph), list[tuple[Array, list[str]] | None]()
    for name in names:
        numbers = origins.of(name) if name is not None and origins.is_joined(name) else None
        alike = numbers is not None and numbers.ndim > 0 and bool((numbers == numbers[:1]).all())
        found.append(None if numbers is None else (numbers[:1] if alike else numbers, origins.parts))
    return found


class Origins:
    """Of which parts the elements of joined values are, by numbers of the parts.

    Args:
        graph: a graph; it is not changed.
        moving: outputs of the nodes that may be found to move elements; None stands for all.

    Attributes:
        parts: names of the parts, in the order of their numbers.
    """

    def __init__(self, graph: Graph, moving: Collection[str] | None = None) -> None:
        self.graph, self.rewriter, self._moving = graph, Rewriter(graph), moving
        self.parts: list[str] = []
        self._of: dict[str, Array] = {}
        self._held: dict[str, frozenset[int]] = {}
        self._places = {node.output: place for place, node in enumerate(graph.nodes)}
        self._joined = set[str]()
        for node in graph.nodes:
            if self.joins(node) or (self.moves(node) and self._sources(node)[0] in self._joined):
                self._joined.add(node.output)

    def joins(self, node: Node) -> bool:
        """Whether a node joins several values, by moving their elements to places that are known."""
        return self.moves(node) and len(self._sources(node)) > 1

    def moves(self, node: Node) -> bool:
        """Whether a node only moves elements, to places that are known."""
        kind = kind_of(node)
        known = all(name in self.graph.constants for name in node.inputs[len(self._sources(node)) :])
        allowed = self._moving is None or node.output in self._moving
        return isinstance(kind, Moves) and kind.fill is None and known and allowed

    def is_joined(self, name: str) -> bool:
        """Whether a value is a join, moved or not."""
        return name in self._joined

    def of(self, name: str) -> Array:
        """The number of the part of each element of a value, int32; a part is a value in `parts`."""
        needed, waiting = dict.fromkeys([name]), [name]
        for value in waiting:
            sources = self._sources(self.graph.nodes[self._places[value]]) if value in self._joined else ()
            new = [source for source in dict.fromkeys(sources) if source not in needed and source not in self._of]
            needed |= dict.fromkeys(new)
            waiting += new
        for value in sorted(needed.keys() - self._of.keys(), key=lambda each: self._places.get(each, -1)):
            self._of[value] = self._numbers(value)
        return self._of[name]

    def held(self, name: str) -> frozenset[int]:
        """The numbers of the parts of which a value has elements."""
        if name not in self._held:
            self._held[name] = frozenset(np.flatnonzero(np.bincount(self.of(name).reshape(-1))).tolist())
        return self._held[name]

    def _numbers(self, name: str) -> Array:
        """`of` a value, once those of what it is moved from are known."""
        if name not in self._joined:
            self.parts.append(name)
            return np.broadcast_to(np.int32(len(self.parts) - 1), self.graph.types[name].shape)
        node = self.graph.nodes[self._places[name]]
        sources = self._sources(node)
        places = [self.graph.constants[each] for each in node.inputs[len(sources) :]]
        numbers = [*(self._of[each] for each in sources), *places]
        return np.asarray(OPS[node.op].reference(self.graph.call(node), numbers))

    def _sources(self, node: Node) -> tuple[str, ...]:
        """The operands whose elements are moved."""
        operands = (OPS[node.op].operand(i, node.attrs) for i in range(len(node.inputs)))
        return tuple(n for n, each in zip(node.inputs, operands, strict=True) if not (each.constant or each.real))


@dataclass
class _Reached:
    """What is reached from one join.

    Attributes:
        whole: values that are known to be moved to outputs alone, none of them taken apart.
        moved: the join, and what moves it whole.
        pieces: by name of a piece, the parts of the join that it holds.
    """

    origins: Origins
    known: Joined
    states: Collection[str]
    whole: Collection[str]
    moved: set[str] = field(default_factory=set)
    pieces: dict[str, frozenset[int]] = field(default_factory=dict)

    def follow(self, join: str) -> bool:
        """Whether a join is only moved to outputs, and to pieces that share no part or hold the same ones."""
        waiting = [join]
        while waiting:
            name = waiting.pop()
            if name in self.states:
                return False
            if name in self.whole:
                continue
            self.moved.add(name)
            for reader in self.origins.rewriter.readers(name):
                into_other = self.origins.joins(reader) and reader.output not in self.known.values
                if not self.origins.moves(reader) or into_other:
                    return False
                held = self._held(join, name, reader.output)
                if held is None:
                    waiting.append(reader.output)
                elif held:
                    self.pieces[reader.output] = held
        held_by_any = frozenset().union(*self.pieces.values())
        return sum(map(len, set(self.pieces.values()))) == len(held_by_any)

    def _held(self, join: str, name: str, taken: str) -> frozenset[int] | None:
        """The parts of the join that a value holds which is taken out of another one; None where it holds all."""
        types = self.origins.graph.types
        if types[taken].numel >= types[name].numel:
            return None
        whole, held = self.origins.held(join), self.origins.held(taken)
        return None if whole <= held else whole & held
