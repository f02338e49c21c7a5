"""Which values of a float graph hold masked scores, and what they are made of: none of them is rounded.

With a step as large as a mask is low nothing would be left of the scores. What a softmax reads is rounded before its
masks; where a maximum, an argmax, a topk or a log_softmax reads it, it stays in float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.masks import Mask, Masking, reads_masks
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass
class Masked:
    """Values by the output of the node that computes them.

    Attributes:
        values: masked scores of which none is rounded, and numbers that masks are made of.
        scores: (node, value): the node adds a mask to scores, or what is masked already, and reads this value too,
            which is rounded for a softmax.
    """

    values: set[str] = field(default_factory=set)
    scores: list[tuple[Node, str]] = field(default_factory=list)


def masked_values(graph: Graph) -> Masked:
    """The masked values of a float graph, which is not changed."""
    return _Finder(graph.copy()).found


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.rewriter = graph, Rewriter(graph)
        self.masking = Masking(self.rewriter)
        self.found = Masked()
        nodes = list(graph.nodes)
        self.supplied = self._follows(nodes)
        masked = self._forwards(nodes)
        ends = self._backwards(nodes, masked)
        passing = {name for name in masked if "int8" not in ends[name]}
        for node in nodes:
            if node.output not in passing:
                continue
            self.found.values.add(node.output)
            if "softmax" in ends[node.output]:
                self.found.scores += [(node, name) for name in node.inputs if name not in passing | self.numbers]
        self._add_numbers(nodes)

    def _forwards(self, nodes: Sequence[Node]) -> set[str]:
        """Values that hold masked scores; `numbers` are what masks them."""
        masked: set[str] = set()
        self.numbers: set[str] = set()
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
                self.numbers |= masks
        return masked

    def _is_mask(self, node: Node, name: str) -> bool:
        """Whether an operand masks: low numbers where predicates say so, the condition of a choice beside a low
        number, or numbers that the user supplies beside scores that are computed."""
        table = self.masking.predicates.table(name)
        if node.op == "where":
            return table is not None and self.masking.filled(node) is not None
        if table is not None:
            alpha = node.attrs["alpha"] if name == node.inputs[1] else 1.0
            return Mask.of(self.masking.scaled(name, alpha)) is not None
        other = node.inputs[1 - node.inputs.index(name)]
        supplied = name in self.supplied and other not in self.supplied and other not in self.graph.constants
        return supplied and node.attrs["alpha"] == 1 and self._is_softmaxed(node.output)

    def _follows(self, nodes: Sequence[Node]) -> set[str]:
        """Values that follow from inputs, and constants, element by element; a constant by itself does not."""
        found = set(self.graph.inputs)
        for node in nodes:
            read = [n for n in node.inputs if n not in self.graph.constants]
            pointwise = isinstance(kind_of(node), Moves | Elementwise | Arithmetic) or node.op == "dequantize"
            if pointwise and read and found.issuperset(read):
                found.add(node.output)
        return found

    def _is_softmaxed(self, name: str) -> bool:
        """Whether softmax alone reads a value, or views of it."""
        readers = self.rewriter.readers(name)
        whole = bool(readers) and name not in self.graph.outputs
        return whole and all(reads_masks(r) or (is_move(r) and self._is_softmaxed(r.output)) for r in readers)

    def _backwards(self, nodes: Sequence[Node], masked: set[str]) -> dict[str, set[str]]:
        """What reads each masked value in the end."""
        ends: dict[str, set[str]] = {}
        for node in reversed(nodes):
            if node.output not in masked:
                continue
            ends[node.output] = found = {"float"} if node.output in self.graph.outputs else set()
            for reader in self.rewriter.readers(node.output):
                kind = kind_of(reader)
                if reads_masks(reader):
                    found.add("softmax")
                elif reader.output in masked:
                    found |= ends[reader.output]
                elif kind is None or isinstance(kind, Monotonic) or (isinstance(kind, Elementwise) and not kind.clamp):
                    found.add("float")
                else:
                    found.add("int8")
        return ends

    def _add_numbers(self, nodes: Sequence[Node]) -> None:
        """The numbers that nothing but masked values is made of, and what those follow from alone."""
        for node in reversed(nodes):
            readers = self.rewriter.readers(node.output)
            follows = self.masking.predicates.table(node.output) is not None or node.output in self.supplied
            inside = all(r.output in self.found.values for r in readers)
            if follows and readers and inside and node.output not in self.graph.outputs:
                self.found.values.add(node.output)
