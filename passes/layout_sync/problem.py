"""The question layout sync asks, free of operators: which option for every node, which layout for every read.

`L` is anything hashable that names a layout. A value is stored in the layout its producer writes; a read in another
layout needs a copy, made once however many read it, always from what the producer wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from q8ta_wgpu.errors import GraphError

L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True)
class Option(Generic[L]):
    """Variants of a node that differ in what they read alone, each operand choosing among layouts of its own: together
    one option, so that a node of many operands has few.

    Attributes:
        kernel: what runs it; None if its result is its operand's own buffer.
        reads: for each operand the layouts it may be read in and what that costs; nothing for one without a layout.
        out: the layout of the result.
        cost: everything else.
    """

    kernel: Any
    reads: tuple[Mapping[L, float], ...]
    out: L
    cost: float

    def dominates(self, other: Option[L]) -> bool:
        """Whether it does all that `other` does for no more."""
        return (
            self.out == other.out
            and self.cost <= other.cost
            and all(
                theirs.keys() <= ours.keys() and all(ours[layout] <= cost for layout, cost in theirs.items())
                for ours, theirs in zip(self.reads, other.reads, strict=True)
            )
        )


def undominated(options: Sequence[Option[L]]) -> tuple[Option[L], ...]:
    """The options worth considering, in order; of equal ones the first."""
    kept: list[Option[L]] = []
    for option in options:
        if not any(other.dominates(option) for other in kept):
            kept = [other for other in kept if not option.dominates(other)] + [option]
    return tuple(kept)


@dataclass(frozen=True)
class Choice(Generic[L]):
    """A node: what it reads and writes and the ways to run it."""

    inputs: tuple[str, ...]
    output: str
    options: tuple[Option[L], ...]


@dataclass(frozen=True)
class Problem(Generic[L]):
    """A graph of choices in execution order.

    Attributes:
        free: graph inputs, which come in whichever of these layouts is asked for.
        constants: values that exist in every layout.
        transition: cost of a copy of a value: (name, from, to); infinite if there is none.
    """

    choices: tuple[Choice[L], ...]
    free: Mapping[str, tuple[L, ...]]
    constants: Collection[str]
    transition: Callable[[str, L, L], float]

    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """(choice, operand position) of every read of every value that has a layout and is no constant."""
        reads: dict[str, list[tuple[int, int]]] = {name: [] for name in self.free}
        for index, choice in enumerate(self.choices):
            for position, name in enumerate(choice.inputs):
                if name not in self.constants and choice.options[0].reads[position]:
                    reads[name].append((index, position))
            reads[choice.output] = []
        return reads


@dataclass(frozen=True)
class Assignment(Generic[L]):
    """An answer: an option and the layouts it reads for every choice, and a layout for every free value.

    Attributes:
        reads: None for operands without a layout.
    """

    options: tuple[Option[L], ...]
    reads: tuple[tuple[L | None, ...], ...]
    free: Mapping[str, L] = field(default_factory=dict)

    def written(self, problem: Problem[L]) -> dict[str, L]:
        """The layout every value is stored in."""
        outs = {c.output: o.out for c, o in zip(problem.choices, self.options, strict=True)}
        return {**self.free, **outs}

    def copies(self, problem: Problem[L]) -> list[tuple[str, L]]:
        """The transitions it needs, in the order of their first reader."""
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
        """What it costs by definition. Raises GraphError if a node reads a layout its option does not list."""
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
    """The layout a constant is read in: the first of the cheapest, None where there is none."""
    return min(layouts, key=layouts.__getitem__) if layouts else None
