"""Finds results that no reader needs in int8, since all read them in float32."""

from __future__ import annotations

from collections.abc import Collection

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.ir.int8 import Normalization, WeightedSum
from q8ta_wgpu.passes.plan.regions import Region, Regions, kind_of


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

    def ends_in_float(self, region: Region) -> bool:
        """Whether no reader needs a region's result in int8: only operators that were asked to stay in float32 read it,
        or it is a weighted sum that no operator with an int8 form reads. A pixel_shuffle that gives an output does not
        count: it is fused into the sum."""
        if only_float_reads(self.regions, region.end):
            return True
        norms = all(isinstance(kind_of(node), Normalization) for node in region.nodes[1:])
        if not isinstance(kind_of(region.first), WeightedSum) or not norms:
            return False
        return all(self._stays_float(r) for r in self.rewriter.readers(self.regions.result(region.end)))

    def _stays_float(self, node: Node) -> bool:
        """Whether a node does not need its operand in int8."""
        if kind_of(node) is None or node.output in self.masked or node.output in self.joins:
            return True
        return (
            node.op == "pixel_shuffle" and node.output in self.graph.outputs and not self.rewriter.readers(node.output)
        )
