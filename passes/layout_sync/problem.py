"""Layout sync as an optimization problem: choose an option for each node and a layout for each read.

`L` is any hashable type of layouts. A value is stored in the layout that its producer writes. A read in another layout
needs a copy of the stored value; all reads in that layout share one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from q8ta_wgpu.errors import GraphError

L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True)
class Option(Generic[L]):
    """One way to run a node: a kernel and the layout of its result. The layout of each operand is still open.

    Attributes:
        kernel: None for a free view, whose result is its operand's buffer.
        reads: for each operand its allowed layouts, and the cost of reading each; empty for constants without a layout.
        out: the layout of the result.
        cost: all costs but those of reads.
    """

    kernel: Any
    reads: tuple[Mapping[L, float], ...]
    out: L
    cost: float

    def dominates(self, other: Option[L]) -> bool:
        """Whether it has the same result, allows all reads that `other` allows, and never costs more."""
        return (
            self.out == other.out
            and self.cost <= other.cost
            and all(
                theirs.keys() <= ours.keys() and all(ours[layout] <= cost for layout, cost in theirs.items())
                for ours, theirs in zip(self.reads, other.reads, strict=True)
            )
        )


def undominated(options: Sequence[Option[L]]) -> tuple[Option[L], ...]:
    """The options that no other one dominates, in order; of equal ones the first."""
    found: list[Option[L]] = []
    for option in options:
        if not any(other.dominates(option) for other in found):
            found = [other for other in found if not option.dominates(other)] + [option]
    return tuple(found)


@dataclass(frozen=True)
class Choice(Generic[L]):
    """A node: the names of its operands and its result, and its options."""

    inputs: tuple[str, ...]
    output: str
    options: tuple[Option[L], ...]


@dataclass(frozen=True)
class Problem(Generic[L]):
    """A graph to plan.

    Attributes:
        choices: its nodes, in execution order.
        free: graph inputs, with the layouts in which they can be supplied.
        constants: names of values that are available in every layout.
        transition: (name, from, to) -> cost of a copy; infinite if no kernel makes it.
    """

    choices: tuple[Choice[L], ...]
    free: Mapping[str, tuple[L, ...]]
    constants: Collection[str]
    transition: Callable[[str, L, L], float]

    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """(index of the choice, operand position) of each read, by name of the value; without constants."""
        reads: dict[str, list[tuple[int, int]]] = {name: [] for name in self.free}
        for index, choice in enumerate(self.choices):
            for position, name in enumerate(choice.inputs):
                if name not in self.constants and choice.options[0].reads[position]:
                    reads[name].append((index, position))
            reads[choice.output] = []
        return reads


@dataclass(frozen=True)
class Assignment(Generic[L]):
    """A solution of a problem.

    Attributes:
        options: the option of each choice.
        reads: for each choice the layout of each operand, None for those without a layout.
        free: the layout of each graph input.
    """

    options: tuple[Option[L], ...]
    reads: tuple[tuple[L | None, ...], ...]
    free: Mapping[str, L] = field(default_factory=dict)

    def written(self, problem: Problem[L]) -> dict[str, L]:
        """The layout in which each value is stored."""
        outs = {c.output: o.out for c, o in zip(problem.choices, self.options, strict=True)}
        return {**self.free, **outs}

    def copies(self, problem: Problem[L]) -> list[tuple[str, L]]:
        """(name, layout) of the copies that are needed, in the order of their first reader."""
        stored = self.written(problem)
        return list(
            dict.fromkeys(
                (name, layout)
                for choice, reads in zip(problem.choices, self.reads, strict=True)
                for name, layout in zip(choice.inputs, reads, strict=True)
                if layout is not None and name not in problem.constants and stored[name] != layout
            )
        )

    def cost(self, problem: Problem[L]) -> float:
        """The total cost. Raises GraphError if a node reads a layout that its option does not allow."""
        stored = self.written(problem)
        total = sum(problem.transition(name, stored[name], layout) for name, layout in self.copies(problem))
        for choice, option, reads in zip(problem.choices, self.options, self.reads, strict=True):
            total += option.cost
            for allowed, layout in zip(option.reads, reads, strict=True):
                if layout is not None and layout not in allowed:
                    raise GraphError(f"{choice.output} reads {layout}, its kernel allows {list(allowed)}")
                total += allowed[layout] if layout is not None else 0.0
        return total


def cheapest(layouts: Mapping[L, float]) -> L | None:
    """The cheapest layout, the first of equal ones; None of an empty mapping. Constants are read in it."""
    return min(layouts, key=layouts.__getitem__) if layouts else None
