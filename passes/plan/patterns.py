"""Operators that programs write as several: each row of `PATTERNS` is one, found in a graph and put in its place.

A pattern is what an operator is made of, as nested calls. `X` captures what it reads: the same value everywhere.
Every value within is read by the next call alone. The operator takes the place of the last call, before values are
rounded: where nothing within is quantized, it is one region, one table, one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from q8ta_wgpu.ir.graph import Attrs, Graph, Node
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Capture:
    """Any value, the same one in every place."""

    name: str


@dataclass(frozen=True)
class Match:
    """A call of an operator with these attributes (others are free) on these operands, in either order of a sum."""

    op: str
    operands: tuple[Match | Capture, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """What an operator is written as.

    Attributes:
        op: the operator.
        inputs: the captures that it reads, in order.
        made_of: its last call.
        attrs: the operator's attributes.
    """

    op: str
    inputs: tuple[Capture, ...]
    made_of: Match
    attrs: Attrs = field(default_factory=dict)


X = Capture("x")

PATTERNS: tuple[Pattern, ...] = (
    Pattern("softsign", (X,), Match("div", (X, Match("affine", (Match("abs", (X,)),), {"factor": 1.0, "term": 1.0})))),
)

_COMMUTES = ("add", "mul", "maximum", "minimum")


def combine(graph: Graph) -> None:
    """Puts each operator of `PATTERNS` in place of what it is written as."""
    combined(graph)


def combined(graph: Graph) -> dict[str, list[Node]]:
    """The same; returns the nodes whose place an operator took, by its output."""
    rewriter, found = Rewriter(graph), dict[str, list[Node]]()
    for node in rewriter.nodes():
        for pattern in PATTERNS:
            match = _Search(rewriter)
            if match.finds(node, pattern.made_of):
                inputs = tuple(match.captured[name] for name in pattern.inputs)
                rewriter.replace(node, Node(pattern.op, inputs, node.output, pattern.attrs, node.source))
                found[node.output] = match.nodes
                break
    rewriter.commit()
    return found


class _Search:
    """Looks for a pattern; knows the values that are captured so far, and the nodes that were met."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.captured: dict[Capture, str] = {}
        self.nodes: list[Node] = []

    def finds(self, node: Node, wanted: Match) -> bool:
        """Whether a node is what a pattern asks for."""
        kept = node.output in self.rewriter.graph.kept
        if kept or node.op != wanted.op or len(node.inputs) != len(wanted.operands):
            return False
        if any(node.attrs[name] != value for name, value in wanted.attrs.items()):
            return False
        before = dict(self.captured), list(self.nodes)
        self.nodes.append(node)
        for inputs in (node.inputs, node.inputs[::-1]) if node.op in _COMMUTES else (node.inputs,):
            if all(self._reads(name, one) for name, one in zip(inputs, wanted.operands, strict=True)):
                return True
            self.captured, self.nodes = dict(before[0]), [*before[1], node]
        self.captured, self.nodes = before
        return False

    def _reads(self, name: str, wanted: Match | Capture) -> bool:
        if isinstance(wanted, Capture):
            return self.captured.setdefault(wanted, name) == name
        node = self.rewriter.only_producer(name)
        return node is not None and self.finds(node, wanted)
