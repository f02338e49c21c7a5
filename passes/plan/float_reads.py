"""Finds results that no reader needs in int8: they are only compared, converted to integers, or read in float32."""

from __future__ import annotations

from collections.abc import Collection

from q8ta_wgpu.ir.graph import BOOL, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Normalization, WeightedSum
from q8ta_wgpu.passes.plan.recursion import Question, answer
from q8ta_wgpu.passes.plan.regions import Region, Regions, is_move, kind_of


def only_float_reads(regions: Regions, name: str) -> bool:
    """Whether all readers of a value were asked to stay in float32."""
    name = regions.result(name)
    readers = regions.rewriter.readers(name)
    skipped = all(regions.graph.values[r.output].in_float for r in readers)
    return bool(readers) and name not in regions.graph.outputs and skipped


class FloatReads:
    """What reads the results of regions.

    Args:
        regions: of a float graph.
        masked: outputs of nodes that read masked scores, which are not rounded.
        joins: outputs of nodes that join values whose parts keep scales of their own.
    """

    def __init__(self, regions: Regions, masked: Collection[str], joins: Collection[str]) -> None:
        self.regions, self.rewriter, self.graph = regions, regions.rewriter, regions.graph
        self.masked, self.joins = masked, joins
        self._only_integers: dict[str, bool] = {}

    def ends_in_float(self, region: Region) -> bool:
        """Whether no reader needs a region's result in int8. This holds where

        * only operators that were asked to stay in float32 read it;
        * it is a function of one value, and only compared with numbers: the comparison is one more function;
        * it is a function or a weighted sum, and only converted to integers;
        * it is a weighted sum that no operator with an int8 form reads. A pixel_shuffle that gives an output does not
          count: it is fused into the sum.
        """
        if only_float_reads(self.regions, region.end) or self._is_compared(region) or self.becomes_integers(region):
            return True
        if isinstance(kind_of(region.first), WeightedSum) and self.integers_follow(self.regions.result(region.end)):
            return True
        norms = all(isinstance(kind_of(node), Normalization) for node in region.nodes[1:])
        if not isinstance(kind_of(region.first), WeightedSum) or not norms:
            return False
        return all(self._stays_float(r) for r in self.rewriter.readers(self.regions.result(region.end)))

    def becomes_integers(self, region: Region) -> bool:
        """Whether a region is functions of one value whose result is only converted to integers."""
        elementwise = isinstance(kind_of(region.first), Elementwise)
        return elementwise and self.integers_follow(self.regions.result(region.end))

    def integers_follow(self, name: str) -> bool:
        """Whether a value is only converted to integers, perhaps after functions and moves."""
        return answer(self._ask_integers, name, self._only_integers)

    def _ask_integers(self, name: str) -> Question[bool]:
        readers = self.rewriter.readers(name)
        for reader in readers:
            if not self.converts(reader) and not (
                self._leads_on(reader) and (yield self.regions.result(reader.output))
            ):
                return False
        return bool(readers) and name not in self.graph.outputs

    def _makes_integers(self, node: Node) -> bool:
        """Whether a node converts its operand to integers, or is a function or move whose result only is."""
        if self.converts(node):
            return True
        return self._leads_on(node) and self.integers_follow(self.regions.result(node.output))

    def _leads_on(self, node: Node) -> bool:
        return isinstance(kind_of(node), Elementwise) or is_move(node)

    def converts(self, node: Node) -> bool:
        """Whether a node converts its operand to integers."""
        return node.op == "trunc" and node.output not in (self.regions.observable or ())

    def _is_compared(self, region: Region) -> bool:
        """Whether a region is functions of one value whose result is only compared with numbers."""
        end = self.regions.result(region.end)
        readers = self.rewriter.readers(end)
        if not isinstance(kind_of(region.first), Elementwise) or not readers:
            return False
        return all(self._gives_bools(r) and self._other_operands_are_numbers(r, end) for r in readers)

    def _gives_bools(self, node: Node) -> bool:
        quantize = self.rewriter.only_reader(node.output)
        stored = self.graph.types[quantize.output].q if quantize is not None and quantize.op == "quantize" else None
        return isinstance(kind_of(node), Elementwise | Arithmetic) and stored == BOOL

    def _other_operands_are_numbers(self, node: Node, operand: str) -> bool:
        constants = self.graph.constants
        return all(n == operand or (n in constants and constants[n].size == 1) for n in node.inputs)

    def _stays_float(self, node: Node) -> bool:
        """Whether a node does not need its operand in int8."""
        if kind_of(node) is None or node.output in self.masked or self._makes_integers(node):
            return True
        if node.output in self.joins:
            return True
        return (
            node.op == "pixel_shuffle" and node.output in self.graph.outputs and not self.rewriter.readers(node.output)
        )
