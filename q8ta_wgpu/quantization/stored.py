"""The values of a float graph that are stored, and how operators read them.

A value is read in one of four roles: by weighted sums; by products without weights of the network, which are products
of two activations and Fourier transforms; by operators that take steps, such as floor, argmax and indices; and by all
others. A value may have 8 bits for one role and more for another. An operator that moves elements reads as many bits as
the widest of its own readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, Array, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import Monotonic, Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.storage import INT8, INT16, WHOLE, Storage
from q8ta_wgpu.quantization.ranges import Range

Role = Literal["sums", "products", "steps", "others"]
ROLES: tuple[Role, ...] = ("sums", "products", "steps", "others")
"""Several operators may read a value, one behind the other, before it is stored again. The first of their roles in this
order counts."""

Width = Literal["int8", "int16", "float32"]
WIDTHS: tuple[Width, ...] = ("int8", "int16", "float32")

RESULT = "<result>"
"""Reads the results of a network."""

Edge = tuple[str, str]
"""(call that reads a value, or RESULT; the value)."""


@dataclass(eq=False)
class Stored:
    """Values that share a scale: a value, and what its elements are moved to.

    Attributes:
        storage: how the plan stores them.
        met: what calibration met of them.
        values: their names, in the order of the graph.
        roles: the roles in which each edge reads them; of a call that moves elements, the roles of those that read what
            it gives.
        moves: the edges of such calls.
        own: of several values that share a scale, the range of each, widened to hold 0.
        zeros: whether calibration met zeros in place of elements that a `where` leaves out.
    """

    storage: Storage
    met: Range
    values: list[str] = field(default_factory=list)
    roles: dict[Edge, frozenset[Role]] = field(default_factory=dict)
    moves: set[Edge] = field(default_factory=set)
    zeros: bool = False
    own: dict[str, tuple[float, float]] = field(default_factory=dict)
    _q: dict[Width, QParams] = field(default_factory=dict)

    @property
    def width(self) -> Width:
        """The width in which the plan stores the values."""
        wide = self.storage == INT16 or (isinstance(self.storage, QParams) and self.storage.dtype == INT16X4)
        return "int16" if wide else "int8"

    @property
    def is_exact(self) -> bool:
        """Whether 8 bits hold the values exactly, which are whole numbers."""
        return self.storage == WHOLE and self.q("int8").scale == 1.0

    def q(self, width: Width) -> QParams:
        """Scale and zero point at a width of 8 or 16 bits, once calibration has met all items."""
        if width not in self._q:
            self._q[width] = self.met.stored(self.storage if width == self.width else INT16)
        return self._q[width]

    def q_of(self, name: str) -> QParams:
        """Scale and zero point in 8 bits as they would be if one of the values shared no scale."""
        q, (low, high) = self.q("int8"), self.own.get(name, (0.0, 0.0))
        whole = max((end for _, end in self.own.values()), default=0.0) - min(
            (s for s, _ in self.own.values()), default=0.0
        )
        if self.width != "int8" or not 0 < high - low < whole:
            return self.q(self.width)
        zero = round(-128 - 255 * low / (high - low))
        return QParams(float(np.float32(q.scale * (high - low) / whole)), min(max(zero, -128), 127))

    def meet(self, name: str, low: float, high: float) -> None:
        """Notes the range of one of several values."""
        first, last = self.own.get(name, (0.0, 0.0))
        self.own[name] = min(first, low), max(last, high)

    def use(self, met: Range) -> None:
        """Takes other values for those that calibration met."""
        self.met = met
        self._q.clear()

    def edges(self, role: Role) -> list[Edge]:
        """The edges that read the values in a role, without those that only move elements."""
        return [edge for edge, roles in self.roles.items() if role in roles and edge not in self.moves]

    def width_for(self, edge: Edge, chosen: Mapping[tuple[Stored, Role], Width]) -> Width:
        """The width in which the values are stored for an edge: the largest of its roles' widths. All that was decided
        passes here, so that a ban of a width belongs here. What the plan stores in 16 bits has no scale of 8 bits: it
        must be banned in passes/plan (streams.py, widths.py, rounding.py)."""
        return max((chosen.get((self, role), self.width) for role in self.roles[edge]), key=WIDTHS.index)


@dataclass(eq=False)
class Table(Stored):
    """A table of learned rows, each with a scale of its own.

    Attributes:
        fixed: whether its width is not chosen, since 4 bits were asked for.
    """

    fixed: bool = False


@dataclass(eq=False)
class Shares(Stored):
    """The shares that a softmax gives within an attention that is one operator. No tensor holds them: the operator
    computes with weights of 8 bits, or with weights of 14 where they are said to have 16.

    Attributes:
        operands: the edges by which the attention reads queries, keys and values.
        results: the edges that read what it gives.
        bias: what it adds to scores, float32.
    """

    operands: tuple[Edge, ...] = ()
    results: tuple[Edge, ...] = ()
    bias: Array = field(default_factory=lambda: np.zeros((1, 1, 1, 1), np.float32))


class Fixed(Range):
    """What calibration met of values whose scales do not follow from it: rows of tables, and shares."""

    def __init__(self) -> None:
        super().__init__(INT8)
        self.low = self.high = 0.0

    def stored(self, storage: Storage) -> QParams:
        """A scale that stands for theirs."""
        return QParams(2.0**-15, 0, INT16X4) if storage == INT16 else QParams(2.0**-7, 0)


Reading = tuple[Stored, Role]
"""What is read, and in which role."""

Choice = Mapping[Reading, Width]
"""The widths that were chosen instead of the plan's."""


class StoredValues:
    """All values that a float graph stores.

    Args:
        graph: a float graph.
        calls: the call that each node is part of, by the node's output.
        stored: what is stored, with the edges that read it.
        given: of the values that are rounded where they are computed, what they belong to.
        transforms: weighted sums, by output, whose weights are not the network's.
        states: the values that the next run reads as others were written, by these.

    Attributes:
        by_rows: the values that linears read through a rounding of each row, by a scale that the device chooses.
        readers: the nodes that read each value.
        producers: the node that gives each value.
        edges: what each edge reads.
        of_value: what each value belongs to: it may be rounded in several ways.
    """

    def __init__(
        self,
        graph: Graph,
        calls: Mapping[str, str],
        stored: Sequence[Stored],
        given: Mapping[str, Stored],
        transforms: Collection[str] = (),
        states: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.graph, self.calls, self.stored, self.given, self.transforms = graph, calls, stored, given, transforms
        self.states, self.by_rows = states, set[Stored]()
        self.readers = readers_of(graph)
        self.producers = {node.output: node for node in graph.nodes}
        self.edges = {edge: each for each in stored for edge in each.roles}
        self.of_value: dict[str, list[Stored]] = {}
        for each in stored:
            for name in each.values:
                self.of_value.setdefault(name, []).append(each)

    @property
    def readings(self) -> list[Reading]:
        """All that is read, in each of the roles in which it is."""
        return [(stored, role) for stored in self.stored for role in ROLES if stored.edges(role)]

    def nodes(self, edge: Edge) -> list[Node]:
        """The nodes of a call that read a value."""
        reader, name = edge
        return [node for node in self.readers.get(name, ()) if self.calls[node.output] == reader]

    def is_transformed(self, reading: Reading) -> bool:
        """Whether a call that reads values in a role is a Fourier transform. Views may stand before it in the call."""
        calls = {self.calls[output] for output in self.transforms}
        return any(edge[0] in calls for edge in reading[0].edges(reading[1]))

    def readers_of(self, stored: Stored, role: Role) -> list[Node]:
        """The nodes that read values in a role, without those that only move elements."""
        return [node for edge in stored.edges(role) for node in self.nodes(edge)]


def readers_of(graph: Graph) -> dict[str, list[Node]]:
    """The nodes that read each value."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            found.setdefault(name, []).append(node)
    return found


def is_moved(node: Node) -> bool:
    """Whether a node only copies elements, or takes the largest of them."""
    return isinstance(OPS[node.op].int8, Moves | Monotonic)
