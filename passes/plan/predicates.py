"""Truth tables: a value that depends only on predicates (tensors of bools) and constants, for every combination.

A mask is often arithmetic with bools: `(1 - m) * -1e9`, `where(m & causal, 0, -inf)`. Its truth table says what it is,
however it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, Array, Attrs, Graph, Node, TensorType
from q8ta_wgpu.ir.int8 import works_by_element
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.recursion import Question, answer
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter

MOST = 3
"""Limit of predicates in a truth table, which has 2^n combinations."""


@dataclass(frozen=True)
class TruthTable:
    """A value that predicates determine, element by element.

    Attributes:
        predicates: names of int8 values that hold bools, each of a shape that broadcasts to the value's.
        values: the value for each combination: in entry n, predicate i is true if bit i of n is set.
    """

    predicates: tuple[str, ...]
    values: tuple[Array, ...]

    def over(self, predicates: Sequence[str]) -> Iterator[Array]:
        """The values for every combination of `predicates`, which include those of the table."""
        bits = [predicates.index(name) for name in self.predicates]
        for number in range(1 << len(predicates)):
            yield self.values[sum((number >> bit & 1) << i for i, bit in enumerate(bits))]


def union(*tables: TruthTable) -> tuple[str, ...]:
    """The predicates of all tables, each once."""
    return tuple(dict.fromkeys(name for table in tables for name in table.predicates))


class Predicates:
    """Finds truth tables of a graph's values, and inserts nodes that compute with predicates."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self._found: dict[str, TruthTable | None] = {}

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.rewriter.graph

    def table(self, name: str) -> TruthTable | None:
        """The truth table of a value; None where it depends on anything else, or on more than MOST predicates."""
        return answer(self._ask, name, self._found)

    def _ask(self, name: str) -> Question[TruthTable | None]:
        node, constant = self.rewriter.producer(name), self.graph.constants.get(name)
        if constant is not None:
            return TruthTable((), (constant,))
        if node is None:
            return None
        if node.op == "dequantize":
            return (yield from self._predicate(node.inputs[0]))
        if is_move(node):
            source = yield node.inputs[0]
            return None if source is None else self.moved(node, source)
        if node.op != "cat" and not works_by_element(kind_of(node)):
            return None
        tables = list[TruthTable]()
        for operand in node.inputs:
            if (table := (yield operand)) is not None:
                tables.append(table)
        if node.op == "cat":
            return self._cat(node, tables)
        predicates = union(*tables)
        if len(tables) < len(node.inputs) or len(predicates) > MOST:
            return None
        combinations = zip(*(table.over(predicates) for table in tables), strict=True)
        return TruthTable(predicates, tuple(_result(self.graph, node, values) for values in combinations))

    def _predicate(self, int8: str) -> Question[TruthTable | None]:
        """The truth table of bools: of what they are computed from, else they are a predicate themselves."""
        if self.graph.types[int8].q != BOOL:
            return None
        quantize = self.rewriter.producer(int8)
        found = (yield quantize.inputs[0]) if quantize is not None and quantize.op == "quantize" else None
        return found or _itself(int8)

    def moved(self, move: Node, source: TruthTable) -> TruthTable | None:
        """The truth table of a move's result, given that of its operand. Predicates and values are moved alike. None
        where the move fills elements, as pad does, and the operand depends on predicates."""
        shape = self.graph.types[move.inputs[0]].shape
        if move.op == "view" and shape == self.graph.types[move.output].shape:
            return source
        fills = getattr(kind_of(move), "fill", None) is not None
        numbers = all(value.size == 1 for value in source.values) and not fills
        if fills and source.predicates:
            return None
        predicates = []
        for name in source.predicates:
            full = name
            if self.graph.types[name].shape != shape:
                full = self.call(move, "expand", (name,), {"shape": shape})
            predicates.append(self.call(move, move.op, (full,), move.attrs))
        if numbers:
            return TruthTable(tuple(predicates), source.values)
        values = (np.broadcast_to(value, shape).astype(np.float32) for value in source.values)
        return TruthTable(tuple(predicates), tuple(_result(self.graph, move, (value,)) for value in values))

    def _cat(self, cat: Node, tables: Sequence[TruthTable]) -> TruthTable | None:
        """The truth table of a cat of predicates and constant bools: a new predicate, their cat as int8."""
        if len(tables) < len(cat.inputs) or not all(map(_is_bool, tables)):
            return None
        if not any(table.predicates for table in tables):
            return None
        bools = [self._bools(cat, table, self.graph.types[x]) for table, x in zip(tables, cat.inputs, strict=True)]
        return _itself(self.call(cat, "cat", tuple(bools), cat.attrs))

    def _bools(self, cat: Node, table: TruthTable, operand: TensorType) -> str:
        """An operand of a cat as a predicate of the operand's shape."""
        if not table.predicates:
            bools = np.broadcast_to(table.values[0], operand.shape).astype(np.int8)
            return self.graph.add_constant(f"{cat.output}.bools", bools, BOOL.dtype, BOOL)
        (name,), (off, _) = table.predicates, table.values
        if off.any():
            name = self.logical(cat, "eq_scalar", (name,), {"number": 0.0})
        if self.graph.types[name].shape == operand.shape:
            return name
        return self.call(cat, "expand", (name,), {"shape": operand.shape})

    def number(self, name: str) -> float | None:
        """The number of a constant with one element; None of any other value."""
        values = self.graph.constants.get(name)
        return float(values.reshape(())) if values is not None and values.size == 1 else None

    def call(self, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs) -> str:
        """Inserts a node before another one; returns its value's name."""
        return self.rewriter.insert(before, op, inputs, attrs, f"{before.output}.{op}")

    def constant(self, before: Node, value: Array) -> str:
        """Adds a float32 constant, named after a node; returns its name."""
        return self.graph.add_constant(f"{before.output}.mask", np.asarray(value, np.float32))

    def real(self, before: Node, predicate: str) -> str:
        """Inserts the float32 numbers 0 and 1 of a predicate; returns their name."""
        return self.call(before, "dequantize", (predicate,), {})

    def logical(self, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs) -> str:
        """Inserts a new predicate, an operator on the numbers 0 and 1 of others; returns its name."""
        found = self.call(before, op, tuple(self.real(before, name) for name in inputs), attrs)
        low, high = BOOL.range
        return self.rewriter.insert(before, "quantize", (found,), {"lo": low, "hi": high}, f"{found}.bools", BOOL)


def _itself(predicate: str) -> TruthTable:
    """The truth table of a predicate by itself: 0 where it is false, 1 where it is true."""
    return TruthTable((predicate,), (np.zeros((), np.float32), np.ones((), np.float32)))


def _is_bool(table: TruthTable) -> bool:
    """Whether a value is a constant of bools, a predicate, or the negation of one."""
    if not table.predicates:
        return bool(np.isin(table.values[0], (0, 1)).all())
    return [value.reshape(-1).tolist() for value in table.values] in ([[0], [1]], [[1], [0]])


def _result(graph: Graph, node: Node, values: Sequence[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[node.op].reference(graph.call(node), [np.asarray(v, np.float32) for v in values]))
