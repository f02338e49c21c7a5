"""The values that a plan stores, and the roles in which a graph reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT32, Array, Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Moves, Product, Recurrent, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.lib.mask import shortened
from q8ta_wgpu.passes.plan.storage import INT8, Rounding, Shared, Storage
from q8ta_wgpu.quantization.finite import asked_of_inputs, asks_whether_finite
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.ranges import Range
from q8ta_wgpu.quantization.stored import (
    RESULT,
    ROLES,
    Edge,
    Fixed,
    Role,
    Shares,
    Stored,
    StoredValues,
    Table,
    readers_of,
)

_SUMS = (WeightedSum, Recurrent, Product)


SHORTEST_ROW = 16
"""The fewest elements of a table's row for it to be rounded: shorter rows save less than three quarters, since each
also has a scale."""


def planned(
    program: FloatProgram,
    plan: Rounding,
    transforms: Collection[str],
    left_out: Collection[str],
    tables: Sequence[Table],
    norm: Callable[[Array], float],
) -> StoredValues:
    """The values that a plan stores, of which calibration has met nothing yet.

    Args:
        program: the float program.
        plan: how values are stored.
        transforms: weighted sums, by output, whose weights are not the network's.
        left_out: values of which a `where` leaves elements out.
        tables: of learned rows.
        norm: the root of the sum of squares of an array.
    """
    graph, calls, states = program.graph, program.calls, program.states
    found = _Planned(graph, calls, plan, stored_at(plan, states, norm), transforms)
    found.note_states(states)
    stored = list(dict.fromkeys(found.at.values()))
    for each in stored:
        each.zeros = not set(each.values).isdisjoint(left_out)
    given = {name: found.at["", name] for name in plan.gives}
    order = {name: place for place, name in enumerate(found.names)}
    stored.sort(key=lambda each: min(map(order.__getitem__, each.values), default=0))
    return StoredValues(graph, calls, [*stored, *tables, *found.shares()], given, transforms, states)


def stored_at(plan: Rounding, states: Mapping[str, str], norm: Callable[[Array], float]) -> dict[Edge, Stored]:
    """What is stored at each place where a plan rounds a value: (call that reads it, value), or ("", value) where it is
    computed. Places that share a scale store one.

    Args:
        plan: how values are stored.
        states: the values that the next run reads as others were written, by these.
        norm: the root of the sum of squares of an array.
    """
    first: dict[str, Edge] = {}
    for place in plan.reads:
        first.setdefault(place[0], place)
    storages: dict[Edge, Storage] = {**{("", name): each for name, each in plan.gives.items()}, **plan.reads}
    groups = {place: [place] for place in storages}

    def own(place: Edge) -> Storage:
        while isinstance(storage := storages[place], Shared):
            place = first[storage.call]
        return storage

    def join(one: Edge, other: Edge) -> None:
        short, long = sorted((groups[one], groups[other]), key=len)
        if short is not long:
            long += short
            groups.update(dict.fromkeys(short, long))

    alike: dict[tuple[str, Storage], Edge] = {}
    for place, storage in storages.items():
        if isinstance(storage, Shared):
            join(first[storage.call], place)
        join(alike.setdefault((place[1], own(place)), place), place)
    for read, written in states.items():  # the next run reads a state at the scale at which it was written
        for place in [p for p in plan.reads if p[1] == read and written in plan.gives]:
            if own(place) == own(("", written)):
                join(("", written), place)
    made = {id(group): Stored(own(group[0]), Range(own(group[0]), norm)) for group in groups.values()}
    return {place: made[id(group)] for place, group in groups.items()}


def tables_of(program: FloatProgram, in_groups: Callable[[Sequence[int]], bool]) -> list[Table]:
    """The tables of learned rows that are rounded.

    Args:
        program: the float program.
        in_groups: whether a table of a shape has 4 bits.
    """
    graph, found = program.graph, dict[str, Table]()
    for node in graph.nodes:
        name = node.inputs[0] if node.inputs else ""
        if node.op != "gather" or name not in program.tables or graph.values[node.output].in_float:
            continue
        shape = graph.types[name].shape
        if len(shape) != 2 or shape[1] < SHORTEST_ROW:
            continue
        table = found.setdefault(name, Table(INT8, Fixed(), [name], fixed=in_groups(shape)))
        table.roles[program.calls[node.output], name] = frozenset({"others"})
    return list(found.values())


class _Planned:
    """Finds the edges of a graph that read what is stored, from its end to its beginning."""

    def __init__(
        self,
        graph: Graph,
        calls: Mapping[str, str],
        plan: Rounding,
        at: Mapping[Edge, Stored],
        transforms: Collection[str],
    ) -> None:
        self.graph, self.calls, self.plan, self.at, self.transforms = graph, calls, plan, at, transforms
        self.readers, self.producers = readers_of(graph), {node.output: node for node in graph.nodes}
        self._asked = asked_of_inputs(graph)
        self._computing = {calls[node.output] for node in graph.nodes if isinstance(OPS[node.op].int8, _SUMS)}
        of_value: dict[str, dict[Stored, None]] = {}
        for (_, name), stored in at.items():
            of_value.setdefault(name, {})[stored] = None
        given = (name for name in graph.types if name not in self.producers)
        self.names = [n for n in (*given, *self.producers) if n in of_value]
        for name in self.names:
            for stored in of_value[name]:
                stored.values.append(name)
        self._roles = self._roles_of_nodes()
        self._behind: dict[tuple[str, Stored], set[Role]] = {}
        self._given_by: dict[str, list[str]] = {}
        for name in filter(self._is_given, self.producers):
            self._given_by.setdefault(calls[name], []).append(name)
        for name in reversed(self.names):
            self._add_edges(name)

    def note_states(self, states: Mapping[str, str]) -> None:
        """Lets the next run read states in all roles in which they are read as they were written."""
        for read, written in states.items():
            stored = self._at((RESULT, written))
            if stored is None:
                continue
            roles = {role for edge, found in stored.roles.items() if edge[1] == read for role in found}
            stored.roles[RESULT, written] = frozenset(roles or {"others"})
            stored.moves.update([(RESULT, written)] if roles else [])

    def shares(self) -> list[Shares]:
        """The shares of attentions, of which operands are stored."""
        edges = {edge for stored in self.at.values() for edge in stored.roles}
        found = []
        for each in self.plan.attention:
            product, softmax, context = map(self.producers.get, (each.product, each.softmax, each.context))
            if product is None or softmax is None or context is None:
                continue
            read = [(product, name) for name in product.inputs] + [(context, context.inputs[1])]
            operands = [edge for pair in read if (edge := self._stored_before(edges, *pair)) is not None]
            if len(operands) < len(read):
                continue
            end = context.output
            while not any(name == end for _, name in edges) and len(behind := self.readers.get(end, [])) == 1:
                end = behind[0].output
            results = tuple(edge for edge in edges if edge[1] == end)
            found.append(
                Shares(
                    INT8,
                    Fixed(),
                    [softmax.output],
                    {(self.calls[context.output], softmax.output): frozenset({"others"})},
                    operands=tuple(operands),
                    results=results,
                    bias=shortened(each.bias).astype(np.float32),
                )
            )
        return found

    def _stored_before(self, edges: Collection[Edge], node: Node, name: str) -> Edge | None:
        """The edge by which a node reads an operand, before factors and moves; None where it is not stored."""
        while (edge := (self.calls[node.output], name)) not in edges:
            made = self.producers.get(name)
            read = [] if made is None else [n for n in made.inputs if n not in self.graph.constants]
            if made is None or len(read) != 1 or not isinstance(OPS[made.op].int8, Arithmetic | Elementwise | Moves):
                return None
            node, name = made, read[0]
        return edge

    def _at(self, edge: Edge) -> Stored | None:
        """What an edge reads rounded; None where it reads what is not stored."""
        return self.at.get(edge, self.at.get(("", edge[1])))

    def _is_given(self, name: str) -> bool:
        """Whether a value is rounded where it is computed."""
        return name in self.plan.gives

    def _add_edges(self, name: str) -> None:
        """Adds the edges that read a value. Those behind it are known."""
        found = dict.fromkeys(self.calls[node.output] for node in self.readers.get(name, ()))
        for edge in ((call, name) for call in (*found, *([RESULT] if name in self.graph.outputs else []))):
            if (stored := self._at(edge)) is None:
                continue
            if moved := self._moved(edge, stored):
                stored.moves.add(edge)
                roles = {role for each in moved for role in self._behind.get((each, stored), ())}
            else:
                read = [node for node in self.readers.get(name, ()) if self.calls[node.output] == edge[0]]
                roles = {self._roles[node.output] for node in read}
            stored.roles[edge] = frozenset(roles or {"others"})
            self._behind.setdefault((name, stored), set()).update(stored.roles[edge])

    def _moved(self, edge: Edge, stored: Stored) -> list[str]:
        """The values that a call gives which share the scale of what it reads; none of a call that computes."""
        if edge not in self.plan.reads or edge[0] in self._computing:
            return []
        given = self._given_by.get(edge[0], ())
        return [name for name in given if name != edge[1] and self.at["", name] is stored]

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
                if not self._is_given(node.output):
                    unstored = (n for n in behind if (self.calls[n.output], node.output) not in self.plan.reads)
                    roles.update(found[reader.output] for reader in unstored)
                found[node.output] = next(role for role in ROLES if role in roles)
        return found

    def _takes_steps(self, node: Node) -> bool:
        """Whether a node makes whole numbers from floats, such as floor, argmax or a comparison. A small change of a
        float may then change the result by one."""
        int8, given = OPS[node.op].int8, self.graph.types[node.output]
        made = self.producers.get(node.inputs[0]) if node.op == "quantize" else node  # of bools
        if made is not None and asks_whether_finite(made):
            return made.output in self._asked
        if not any(self.graph.types[name].dtype == FLOAT32 for name in node.inputs if name not in self.graph.constants):
            return False
        return given.q == BOOL or given.dtype == INT32 or (isinstance(int8, Elementwise) and int8.whole)

    def _has_constant(self, node: Node) -> bool:
        return any(name in self.graph.constants for name in node.inputs)
