"""Row indices that a host knows before a call: they follow from inputs, and from states that only count.

Torch raises an IndexError at an index behind the last row of a table or cache, where a device writes nothing and reads
the last row. Such a call is refused instead. A network that counts its tokens in a state gives no input to look at, so
the host follows the state: it is never read back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import INT32, Array, Graph, Node
from q8ta_wgpu.kernels import OPS

_MOVING = ("view", "permute", "expand", "slice", "cat", "clone", "index_select")
"""Operators whose results hold elements of their operands, and nothing else."""

_ANY = (-(1 << 31), (1 << 31) - 1)
"""Bounds of integers that nothing bounds."""

_SAME = ("to_float32", "to_int32")
"""Operators that give integers another dtype."""


@dataclass(frozen=True)
class Sums:
    """Integers of a graph, each as a sum: an element of an input or state, plus a number. For `ids + 2` of three token
    numbers the elements are 0, 1 and 2, and the terms 2, 2 and 2.

    Attributes:
        element: int64, the position of each one's element, counted over all sources one after the other; -1 where the
            integer is the number alone.
        term: int64 of the same shape, the numbers.
    """

    element: Array
    term: Array

    def of(self, known: Array) -> Array:
        """The integers, from the elements of all sources."""
        return np.where(self.element < 0, 0, known[self.element]) + self.term


def _no_numbers() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RowIndices:
    """The row indices of a graph that a host knows before a call.

    Attributes:
        sources: the names of inputs and states that they follow from, with the number of elements of each.
        rows: all indices, a list.
        least: for each index, the lowest allowed one: 0, or minus the number of rows where it may count from the end.
        counts: for each index, how many rows there are.
        tables: for each index, the number in `described` of what has these rows.
        described: of tables and caches, what they are in messages.
        states: what a call makes of each state among the sources, by the name that it is read by.
        names: of the module's buffers, by the names that they are read by.
    """

    sources: Mapping[str, int] = field(default_factory=dict)
    rows: Sums = field(default_factory=lambda: Sums(_no_numbers(), _no_numbers()))
    least: Array = field(default_factory=_no_numbers)
    counts: Array = field(default_factory=_no_numbers)
    tables: Array = field(default_factory=_no_numbers)
    described: Sequence[str] = ()
    states: Mapping[str, Sums] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, only: Collection[str] = ()) -> RowIndices:
        """The row indices of a graph. Elements of an input whose bounds lie within the rows need no check. `only`: the
        inputs and states that indices follow from, if they are known."""
        integers = (name for name in graph.inputs if graph.types[name].dtype == INT32)
        sources = {name: graph.types[name].numel for name in only or integers}
        names = {state.read: state.name for state in graph.states}
        if not sources:
            return RowIndices()
        forms = _forms(graph, sources)
        written = {s.read: forms[s.written] for s in graph.states if s.read in sources and s.written in forms}
        owners = np.repeat(np.arange(len(sources)), list(sources.values()))  # the source of each element
        kept = _followed(list(sources), owners, written, graph.arguments)
        bounds = np.array([(n in graph.arguments and graph.values[n].bounds) or _ANY for n in sources])[owners]
        known = np.array([name in graph.arguments or name in kept for name in sources])[owners]
        rows, described = [], dict[str, int]()
        # Columns of rows: element, term, the lowest index allowed, how many rows the table has, which table.
        for node in graph.nodes:
            if (count := OPS[node.op].rows) is None or (indices := forms.get(node.inputs[-1])) is None:
                continue
            element, term = indices.element.ravel(), indices.term.ravel()
            extent = count(graph.call(node))
            least = -extent if node.attrs["from_end"] else 0
            low, high = bounds[element].T + term
            met = (element >= 0) & known[element] & ~((low >= least) & (high < extent))
            if met.any():
                number = described.setdefault(_table(graph, node), len(described))
                rows.append(np.stack(np.broadcast_arrays(element[met], term[met], least, extent, number), 1))
        if not rows:
            return RowIndices()
        element, term, least, counts, tables = _each_once(np.concatenate(rows)).T
        used = _used(list(sources), owners, Sums(element, term), kept)
        if used != sources.keys():
            return RowIndices.of(graph, [name for name in sources if name in used])
        return RowIndices(sources, Sums(element, term), least, counts, tables, list(described), kept, names)

    def check(self, values: Mapping[str, Array]) -> None:
        """Raises InputError where an index has no row, for arrays of all sources."""
        if not self.sources:
            return
        known = self._joined(values)
        indices = self.rows.of(known)
        beyond = (indices >= self.counts) | (indices < self.least)
        if beyond.any():
            raise self._refusal(int(np.argmax(beyond)), known)

    def after(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """What the states among the sources are after a call, from arrays of all sources before it."""
        known = self._joined(values) if self.states else _no_numbers()
        return {name: sums.of(known) for name, sums in self.states.items()}

    def _joined(self, values: Mapping[str, Array]) -> Array:
        return np.concatenate([np.asarray(values[name], np.int64).ravel() for name in self.sources])

    def _refusal(self, number: int, known: Array) -> InputError:
        element, count = int(self.rows.element[number]), int(self.counts[number])
        first, size, name = next(each for each in self.spans() if each[0] <= element < sum(each[:2]))
        what, held = self.names.get(name), int(known[element])
        said = f"element {element - first} of " * (size > 1) + (f"state {what!r}" if what else f"input {name!r}")
        way = (
            f"session.reset() lets the network begin anew, session.state[{what!r}] = ... sets this state"
            if what
            else f"give row indices from {self.least[number]} to {count - 1}"
        )
        index, table = held + int(self.rows.term[number]), self.described[int(self.tables[number])]
        return InputError(f"{said} is {held}, and the call takes row {index} of {table}, which has {count} rows: {way}")

    def spans(self) -> Iterator[tuple[int, int, str]]:
        """The first element of each source, how many it has, and its name."""
        first = 0
        for name, size in self.sources.items():
            yield first, size, name
            first += size


def _forms(graph: Graph, sources: Mapping[str, int]) -> dict[str, Sums]:
    """The values of a graph that are sums of an element and a number, by name."""
    forms: dict[str, Sums] = {}
    first = 0
    for name, size in sources.items():
        shape = graph.types[name].shape
        forms[name] = Sums(np.arange(first, first + size).reshape(shape), np.zeros(shape, np.int64))
        first += size
    for node in graph.nodes:
        if any(name in forms for name in node.inputs) and (found := _form(graph, node, forms)) is not None:
            forms[node.output] = found
    return forms


def _form(graph: Graph, node: Node, forms: Mapping[str, Sums]) -> Sums | None:
    """The result of a call as such sums; None where it is none."""
    given = [forms.get(name) or _number(graph, name) for name in node.inputs]
    operands = [sums for sums in given if sums is not None]
    if len(operands) < len(given):
        return None
    first = operands[0]
    if node.op in _SAME:
        return first
    if node.op in _MOVING:
        call, op = graph.call(node), OPS[node.op]
        if node.op == "index_select":
            index = graph.constants[node.inputs[1]]
            return Sums(*(op.reference(call, [part, index]) for part in (first.element, first.term)))
        parts = ([sums.element for sums in operands], [sums.term for sums in operands])
        return Sums(*(np.asarray(op.reference(call, part)) for part in parts))
    if node.op == "affine" and node.attrs["factor"] == 1 and float(node.attrs["term"]).is_integer():
        return Sums(first.element, first.term + int(node.attrs["term"]))
    if node.op == "add" and abs(node.attrs["alpha"]) == 1:
        alpha, second = int(node.attrs["alpha"]), operands[1]
        element, other = np.broadcast_arrays(first.element, second.element)
        if (other < 0).all() or (alpha == 1 and (element < 0).all()):
            return Sums(np.maximum(element, other), first.term + alpha * second.term)
    return None


def _number(graph: Graph, name: str) -> Sums | None:
    """A constant of integers."""
    array = graph.constants.get(name)
    if array is None or graph.types[name].dtype != INT32:
        return None
    return Sums(np.full(array.shape, -1), array.astype(np.int64))


def _followed(
    sources: Sequence[str], owners: Array, written: Mapping[str, Sums], arguments: Sequence[str]
) -> dict[str, Sums]:
    """The states that follow from inputs, numbers and such states alone."""
    found = dict(written)
    while True:
        known = np.array([name in arguments or name in found for name in sources])[owners]
        lost = [name for name, sums in found.items() if not known[sums.element[sums.element >= 0]].all()]
        if not lost:
            return found
        for name in lost:
            del found[name]


def _each_once(rows: Array) -> Array:
    """Rows without those that differ from an earlier one in the table at most."""
    _, first = np.unique(rows[:, :4], axis=0, return_index=True)
    return rows[np.sort(first)]


def _used(sources: Sequence[str], owners: Array, rows: Sums, states: Mapping[str, Sums]) -> set[str]:
    """The sources that row indices follow from, and those that states among them follow from."""
    used, waiting = set[str](), [rows]
    for sums in waiting:
        new = {sources[owner] for owner in np.unique(owners[sums.element[sums.element >= 0]])} - used
        used |= new
        waiting += [states[name] for name in new & states.keys()]
    return used


def _table(graph: Graph, node: Node) -> str:
    """What a call reads or writes rows of, for messages."""
    name = next((state.name for state in graph.states if state.read == node.inputs[0]), "")
    return f"{name!r}{node.origin}" if name else f"the table of {node.output}{node.origin}"
