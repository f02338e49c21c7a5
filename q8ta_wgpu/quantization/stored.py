"""The values of a float graph that are stored, and how operators read them.

A value is read in one of four roles: by weighted sums; by products without weights of the network, which are products
of two activations and Fourier transforms; by operators that take steps, such as floor, argmax and indices; and by all
others. A value may have 8 bits for one role and more for another. An operator that moves elements reads as many bits as
the widest of its own readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT16X4, INT32, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import Elementwise, Monotonic, Moves, Product, Recurrent, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.storage import INT16, Storage
from q8ta_wgpu.quantization.places import Place, Places
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

_SUMS = (WeightedSum, Recurrent, Product)


@dataclass(eq=False)
class Stored:
    """Values that share a scale: a value, and what its elements are moved to.

    Attributes:
        place: the root of the places where they are rounded.
        storage: how the plan stores them.
        met: what calibration met of them.
        values: their names, in the order of the graph.
        roles: the roles in which each edge reads them; of a call that moves elements, the roles of those that read what
            it gives.
        moves: the edges of such calls.
    """

    place: Place
    storage: Storage
    met: Range
    values: list[str] = field(default_factory=list)
    roles: dict[Edge, frozenset[Role]] = field(default_factory=dict)
    moves: set[Edge] = field(default_factory=set)
    _q: dict[Width, QParams] = field(default_factory=dict)

    @property
    def width(self) -> Width:
        """The width in which the plan stores the values."""
        wide = self.storage == INT16 or (isinstance(self.storage, QParams) and self.storage.dtype == INT16X4)
        return "int16" if wide else "int8"

    def q(self, width: Width) -> QParams:
        """Scale and zero point at a width of 8 or 16 bits, once calibration has met all items."""
        if width not in self._q:
            self._q[width] = self.met.stored(self.storage if width == self.width else INT16)
        return self._q[width]

    def edges(self, role: Role) -> list[Edge]:
        """The edges that read the values in a role, without those that only move elements."""
        return [edge for edge, roles in self.roles.items() if role in roles and edge not in self.moves]

    def width_for(self, edge: Edge, chosen: Mapping[tuple[Stored, Role], Width]) -> Width:
        """The width in which the values are stored for an edge: the largest of its roles' widths."""
        return max((chosen.get((self, role), self.width) for role in self.roles[edge]), key=WIDTHS.index)


Reading = tuple[Stored, Role]
"""What is read, and in which role."""

Choice = Mapping[Reading, Width]
"""The widths that were chosen instead of the plan's."""


class StoredValues:
    """All values that a float graph stores.

    Args:
        graph: a float graph.
        calls: the call that each node is part of, by the node's output.
        places: where values are rounded.
        ranges: what calibration meets, by the roots of places.
        transforms: weighted sums, by output, whose weights are not the network's.

    Attributes:
        stored: in the order of the plan.
        readers: the nodes that read each value.
        producers: the node that gives each value.
    """

    def __init__(
        self,
        graph: Graph,
        calls: Mapping[str, str],
        places: Places,
        ranges: Mapping[Place, Range],
        transforms: Collection[str] = (),
    ) -> None:
        self.graph, self.calls, self.places, self.transforms = graph, calls, places, transforms
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)
        self.producers = {node.output: node for node in graph.nodes}
        by_root = {root: Stored(root, places.storage(root), ranges[root]) for root in places.roots}
        self.stored, self.by_root = list(by_root.values()), by_root
        for name in (*graph.inputs, *graph.constants, *self.producers):
            for root in places.of_value.get(name, ()):
                by_root[root].values.append(name)
        self._roles = self._roles_of_nodes()
        for name in reversed([n for n in (*graph.inputs, *graph.constants, *self.producers) if n in places.of_value]):
            self._add_edges(name)

    def at(self, edge: Edge) -> Stored | None:
        """What an edge reads rounded; None where it reads what is not stored."""
        name = edge[1]
        if edge in self.places.plan.reads:
            return self.by_root[self.places.root(edge)]
        return self.by_root[self.places.root(("", name))] if name in self.places.plan.gives else None

    def nodes(self, edge: Edge) -> list[Node]:
        """The nodes of a call that read a value."""
        reader, name = edge
        return [node for node in self.readers.get(name, ()) if self.calls[node.output] == reader]

    def readers_of(self, stored: Stored, role: Role) -> list[Node]:
        """The nodes that read values in a role, without those that only move elements."""
        return [node for edge in stored.edges(role) for node in self.nodes(edge)]

    def is_stored(self, name: str) -> bool:
        """Whether a value is rounded where it is computed."""
        return name in self.places.plan.gives

    def _add_edges(self, name: str) -> None:
        """Adds the edges that read a value. Those behind it are known."""
        found = dict.fromkeys(self.calls[node.output] for node in self.readers.get(name, ()))
        for edge in ((call, name) for call in (*found, *([RESULT] if name in self.graph.outputs else []))):
            if (stored := self.at(edge)) is None:
                continue
            moved = self._moved(edge, stored)
            behind = frozenset(r for n in moved for e, roles in stored.roles.items() if e[1] == n for r in roles)
            if moved:
                stored.moves.add(edge)
            roles = {self._roles[node.output] for node in self.nodes(edge)} if not moved else behind
            stored.roles[edge] = frozenset(roles or {"others"})

    def _moved(self, edge: Edge, stored: Stored) -> list[str]:
        """The values that a call gives which share the scale of what it reads; none of a call that computes."""
        if edge not in self.places.plan.reads:
            return []
        return [
            name
            for name in stored.values
            if name in self.producers and self.calls[name] == edge[0] and name != edge[1] and self.is_stored(name)
        ]

    def _roles_of_nodes(self) -> dict[str, Role]:
        """The role in which each node reads, by its output."""
        steps: dict[str, bool] = {}
        found: dict[str, Role] = {}
        for node in reversed(self.graph.nodes):
            behind = self.readers.get(node.output, ())
            int8 = OPS[node.op].int8
            ahead = self._takes_steps(node) or any(steps[reader.output] for reader in behind)
            steps[node.output] = ahead and not isinstance(int8, _SUMS)
            if node.output in self.transforms or (isinstance(int8, Product) and not self._has_constant(node)):
                found[node.output] = "products"
            elif isinstance(int8, _SUMS):
                found[node.output] = "sums"
            else:
                roles = {"steps" if steps[node.output] else "others"}
                if not self.is_stored(node.output):
                    roles.update(found[reader.output] for reader in behind)
                found[node.output] = next(role for role in ROLES if role in roles)
        return found

    def _takes_steps(self, node: Node) -> bool:
        """Whether a node makes whole numbers from floats, such as floor, argmax or a comparison. A small change of a
        float may then change the result by one."""
        int8, given = OPS[node.op].int8, self.graph.types[node.output]
        if not any(self.graph.types[name].dtype == FLOAT32 for name in node.inputs if name not in self.graph.constants):
            return False
        return given.q == BOOL or given.dtype == INT32 or (isinstance(int8, Elementwise) and int8.whole)

    def _has_constant(self, node: Node) -> bool:
        return any(name in self.graph.constants for name in node.inputs)


def asks_whether_finite(node: Node) -> bool:
    """Whether a node asks which elements are infinite or NaN."""
    return node.op in ("isnan", "isinf") or (node.op in ("ne", "eq") and node.inputs[0] == node.inputs[1])


def is_moved(node: Node) -> bool:
    """Whether a node only copies elements, or takes the largest of them."""
    return isinstance(OPS[node.op].int8, Moves | Monotonic)
