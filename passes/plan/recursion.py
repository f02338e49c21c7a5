"""Recursive questions about a graph, such as "is this computed from constants alone?", without Python's recursion.

A network may have thousands of operators in a row, and Python allows about a thousand calls within each other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.rewriter import Rewriter

Answer = TypeVar("Answer")
Question = Generator[str, Answer, Answer]
"""The answer for one value, as a generator: it yields names of other values, and is sent the answer for each."""


def answer(ask: Callable[[str], Question[Answer]], name: str, known: dict[str, Answer]) -> Answer:
    """The answer for a value.

    Args:
        ask: begins the question for a value.
        name: the value.
        known: answers by value; all that are found on the way are added.
    """
    if name in known:
        return known[name]
    waiting = [(name, ask(name))]
    found: Answer | None = None  # a generator is begun by sending None
    while waiting:
        name, question = waiting[-1]
        try:
            other = question.send(found)  # type: ignore[arg-type]
        except StopIteration as end:
            found = known[name] = end.value
            waiting.pop()
            continue
        found = known.get(other)
        if other not in known:
            waiting.append((other, ask(other)))
    return known[name]


def readers_behind_moves(rewriter: Rewriter, name: str) -> Iterator[Node | None]:
    """The readers of a value, moved or not: those that are no moves themselves. None stands for the reader of a value
    that nothing reads, or that is an output of the graph."""
    waiting = [name]
    while waiting:
        value = waiting.pop()
        readers = rewriter.readers(value)
        if not readers or value in rewriter.graph.outputs:
            yield None
        for reader in readers:
            if is_move(reader):
                waiting.append(reader.output)
            else:
                yield reader
