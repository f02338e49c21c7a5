"""Chooses layouts and kernels together for least total cost, as a sum of cost tables (min_sum.py).

Each node is a variable, whose values are its options. Each value with several reads is one more variable: in which
layouts copies of it exist, so that a shared transition is paid once. The layout of a read depends only on these two,
so the cheapest one is in their table already.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.passes.layout_sync import min_sum
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Choice, L, Option, Problem, cheapest

Table = NDArray[np.float64]


@dataclass(frozen=True)
class _Value(Generic[L]):
    """A tensor of the graph, with the variables and tables that it adds to the problem.

    Attributes:
        source: the variable that determines its stored layout: of its producer, or its own if it is a graph input.
        stored: the stored layout for each value of `source`.
        wanted: layouts that some reader can read.
        transition: [value of source, index in wanted] cost of a copy in that layout; 0 where it is stored so.
        reads: (variable of the reader, operand position, [option, index in wanted] cost of reading) for each read.
        copies: the variable of its copies, and for each of its values a 0/1 row over `wanted`; None with one read.
    """

    source: int
    stored: tuple[L, ...]
    wanted: tuple[L, ...]
    transition: Table
    reads: list[tuple[int, int, Table]]
    copies: tuple[int, Table] | None


@dataclass
class _Model(Generic[L]):
    """A layout problem as variables (`sizes`) and cost tables (`factors`)."""

    problem: Problem[L]
    sizes: list[int] = field(default_factory=list)
    factors: list[min_sum.Factor] = field(default_factory=list)
    values: dict[str, _Value[L]] = field(default_factory=dict)
    readable: dict[object, tuple[L, ...]] = field(default_factory=dict)
    reading: dict[object, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        source = {choice.output: index for index, choice in enumerate(problem.choices)}
        stored = {choice.output: tuple(o.out for o in choice.options) for choice in problem.choices}
        for index, choice in enumerate(problem.choices):
            self.sizes.append(len(choice.options))
            self.factors.append(((index,), np.array([self._own_cost(choice, option) for option in choice.options])))
        for name, layouts in problem.free.items():
            source[name], stored[name] = len(self.sizes), layouts
            self.sizes.append(len(layouts))
        for name, readers in problem.readers().items():
            if readers:
                self._add(name, source[name], stored[name], readers)

    def _own_cost(self, choice: Choice[L], option: Option[L]) -> float:
        """The cost of an option without reads of activations."""
        constants = (
            min(read.values())
            for name, read in zip(choice.inputs, option.reads, strict=True)
            if read and name in self.problem.constants
        )
        return option.cost + sum(constants)

    def _add(self, name: str, source: int, stored: tuple[L, ...], readers: list[tuple[int, int]]) -> None:
        """Adds the variables and tables of a value with readers."""
        options = [(index, position, self.problem.choices[index].options) for index, position in readers]
        wanted = tuple(dict.fromkeys(layout for _, p, found in options for layout in self._readable(found, p)))
        price = self.problem.transition
        rows = {s: [0.0 if s == w else price(name, s, w) for w in wanted] for s in dict.fromkeys(stored)}
        transition = np.array([rows[layout] for layout in stored])
        reads = [(index, p, self._reading(found, p, wanted)) for index, p, found in options]
        copies = None
        if len(reads) == 1:
            index, _, cost = reads[0]
            self._factor(source, index, (transition[:, None] + cost[None]).min(axis=2))
        else:
            copies = len(self.sizes), _subsets(len(wanted), len(reads))
            self.sizes.append(len(copies[1]))
            absent = np.where(copies[1], 0.0, math.inf)
            self._factor(source, copies[0], self._copying(transition, copies[1]))
            for index, _, cost in reads:
                self._factor(copies[0], index, (absent[:, None] + cost[None]).min(axis=2))
        self.values[name] = _Value(source, stored, wanted, transition, reads, copies)

    def _readable(self, options: tuple[Option[L], ...], position: int) -> tuple[L, ...]:
        """The layouts in which some option reads an operand, cached by the identity of `options`."""
        key = id(options), position
        if key not in self.readable:
            self.readable[key] = tuple(dict.fromkeys(layout for o in options for layout in o.reads[position]))
        return self.readable[key]

    def _reading(self, options: tuple[Option[L], ...], position: int, wanted: tuple[L, ...]) -> Table:
        """[option, index in wanted] cost of reading; infinite where the option cannot read that layout."""
        key = id(options), position, wanted
        if key not in self.reading:
            rows = [[option.reads[position].get(layout, math.inf) for layout in wanted] for option in options]
            self.reading[key] = np.array(rows)
        return self.reading[key]

    @staticmethod
    def _copying(transition: Table, subsets: Table) -> Table:
        """[value of source, subset] cost of all copies of a subset."""
        finite = np.where(np.isinf(transition), 0.0, transition)
        impossible = np.isinf(transition).astype(float) @ subsets.T > 0
        return np.where(impossible, math.inf, finite @ subsets.T)

    def _factor(self, a: int, b: int, table: Table) -> None:
        if a == b:
            raise AssertionError("a node reads what it writes")
        self.factors.append(((a, b), table) if a < b else ((b, a), table.T))

    def assignment(self, values: tuple[int, ...]) -> Assignment[L]:
        """The assignment that values of the variables stand for."""
        choices = self.problem.choices
        options = tuple(choice.options[values[index]] for index, choice in enumerate(choices))
        reads: list[list[L | None]] = [[cheapest(read) for read in option.reads] for option in options]
        for value in self.values.values():
            for index, position, cost in value.reads:
                if value.copies is None:
                    copying = value.transition[values[value.source]]
                else:
                    copying = np.where(value.copies[1][values[value.copies[0]]], 0.0, math.inf)
                reads[index][position] = value.wanted[int((copying + cost[values[index]]).argmin())]
        first = len(choices)
        free = {name: layouts[values[first + i]] for i, (name, layouts) in enumerate(self.problem.free.items())}
        return Assignment(options, tuple(map(tuple, reads)), free)


@functools.lru_cache(maxsize=256)
def _subsets(members: int, largest: int) -> Table:
    """The non-empty subsets of `members` elements, of at most `largest` each, as rows of 0 and 1."""
    sizes = range(1, min(members, largest) + 1)
    found = [chosen for size in sizes for chosen in itertools.combinations(range(members), size)]
    rows = np.zeros((len(found), members))
    for row, chosen in zip(rows, found, strict=True):
        row[list(chosen)] = 1.0
    return rows


def optimal(problem: Problem[L], cap: int = min_sum.CAP) -> tuple[Assignment[L], float]:
    """The best assignment found, and a proved lower bound of the cost: if optimal, its own cost but for rounding."""
    model = _Model(problem)
    solution = min_sum.minimize(model.sizes, model.factors, cap)
    return model.assignment(solution.values), solution.bound
