"""Finds the values of a float graph that hold masked scores, as `x.masked_fill(m, -inf)`. None of them is rounded.

A mask's low numbers would stretch the range so far that one step is larger than all scores. For a softmax the scores
are rounded before the mask is added. For amax, argmax, topk and log_softmax the masked scores stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.masks import Mask, Masking, reads_masks
from q8ta_wgpu.passes.plan.recursion import readers_behind_moves
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass
class Masked:
    """Masked values.

    Attributes:
        values: names of masked scores, and of numbers that only masks are made of. None of them is rounded.
        scores: (node, value): an operand without mask that a node with a masked result reads, to be rounded for a
            softmax. In `x.masked_fill(m, -inf).softmax(-1)` it is `x`.
    """

    values: set[str] = field(default_factory=set)
    scores: list[tuple[Node, str]] = field(default_factory=list)


def masked_values(graph: Graph) -> Masked:
    """Finds the masked values of a float graph, which is not changed."""
    return _Finder(graph.copy()).found


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.rewriter = graph, Rewriter(graph)
        self.masking = Masking(self.rewriter)
        self.found = Masked()
        nodes = list(graph.nodes)
        self.supplied = self._from_inputs(nodes)
        masked = self._masked(nodes)
        readers = self._final_readers(nodes, masked)
        unrounded = {name for name in masked if "int8" not in readers[name]}
        for node in nodes:
            if node.output not in unrounded:
                continue
            self.found.values.add(node.output)
            if "softmax" in readers[node.output]:
                self.found.scores += [(node, name) for name in node.inputs if name not in unrounded | self.masks]
        self._add_sources(nodes)

    def _masked(self, nodes: Sequence[Node]) -> set[str]:
        """Values that hold masked scores; also collects the masks themselves in `masks`."""
        masked: set[str] = set()
        self.masks: set[str] = set()
        for node in nodes:
            if self.masking.predicates.table(node.output) is not None:
                continue
            if node.op in ("add", "where"):
                masks = {name for name in node.inputs if self._is_mask(node, name)}
            elif affine_of(node) is not None or is_move(node) or node.op == "cat":
                masks = set()
            else:
                continue
            others = [name for name in node.inputs if name not in masks]
            if (masks and others) or masked.intersection(others):
                masked.add(node.output)
                self.masks |= masks
        return masked

    def _is_mask(self, node: Node, name: str) -> bool:
        """Whether an operand of an `add` or `where` is a mask: a term that predicates make low, the condition of a
        `where` with a low number, or a term from the user's inputs beside computed scores that softmax reads."""
        table = self.masking.predicates.table(name)
        if node.op == "where":
            return table is not None and self.masking.filled(node) is not None
        if table is not None:
            alpha = node.attrs["alpha"] if name == node.inputs[1] else 1.0
            return Mask.of(self.masking.scaled(name, alpha)) is not None
        other = node.inputs[1 - node.inputs.index(name)]
        supplied = name in self.supplied and other not in self.supplied and other not in self.graph.constants
        return supplied and node.attrs["alpha"] == 1 and self._is_softmaxed(node.output)

    def _from_inputs(self, nodes: Sequence[Node]) -> set[str]:
        """Inputs, and values computed element by element from inputs and constants; not from constants alone."""
        found = set(self.graph.inputs)
        for node in nodes:
            read = [n for n in node.inputs if n not in self.graph.constants]
            pointwise = isinstance(kind_of(node), Moves | Elementwise | Arithmetic) or node.op == "dequantize"
            if pointwise and read and found.issuperset(read):
                found.add(node.output)
        return found

    def _is_softmaxed(self, name: str) -> bool:
        """Whether only softmax reads a value, moved or not."""
        return all(r is not None and reads_masks(r) for r in readers_behind_moves(self.rewriter, name))

    def _final_readers(self, nodes: Sequence[Node], masked: set[str]) -> dict[str, set[str]]:
        """For each masked value, the kinds of unmasked results made of it: "softmax", "float" or "int8"."""
        kinds: dict[str, set[str]] = {}
        for node in reversed(nodes):
            if node.output not in masked:
                continue
            kinds[node.output] = found = {"float"} if node.output in self.graph.outputs else set()
            for reader in self.rewriter.readers(node.output):
                kind = kind_of(reader)
                if reads_masks(reader):
                    found.add("softmax")
                elif reader.output in masked:
                    found |= kinds[reader.output]
                elif kind is None or isinstance(kind, Monotonic) or (isinstance(kind, Elementwise) and not kind.clamp):
                    found.add("float")
                else:
                    found.add("int8")
        return kinds

    def _add_sources(self, nodes: Sequence[Node]) -> None:
        """Adds values that follow from predicates or inputs, and that only masked values are made of."""
        for node in reversed(nodes):
            readers = self.rewriter.readers(node.output)
            known = self.masking.predicates.table(node.output) is not None or node.output in self.supplied
            inside = all(r.output in self.found.values for r in readers)
            if known and readers and inside and node.output not in self.graph.outputs:
                self.found.values.add(node.output)
