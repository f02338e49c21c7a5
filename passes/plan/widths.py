"""Finds values that need more than 8 bits because of the operators that read them, whatever calibration finds.

* Inputs of the network that batch norms read: float32. A norm subtracts the mean, and what is left may be less than a
  step of 8 bits.
* Functions and products that only sums and averages read, as in `x.pow(2).mean()`: 16 bits. The largest square sets the
  step, most squares are below it, but all of them count.
* These averages, and functions of them: 16 bits. Many values are divided or multiplied by one average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise
from q8ta_wgpu.passes.plan.recursion import readers_behind_moves
from q8ta_wgpu.passes.plan.regions import Region, Regions, is_move, kind_of
from q8ta_wgpu.passes.plan.storage import INT16, Storage


class Widths:
    """Widths of a float graph's values.

    Args:
        regions: of the graph.
        gives: storage of the values that are planned so far; the planner goes on filling it.
    """

    def __init__(self, regions: Regions, gives: Mapping[str, Storage]) -> None:
        self.regions, self.graph, self.gives = regions, regions.graph, gives
        self._floats = set(self.graph.inputs).intersection(regions.observable or ())

    def takes_input(self, node: Node) -> bool:
        """Whether a node reads a float32 input of the network, moved or not, in float32."""
        kind, name = kind_of(node), node.inputs[0]
        while (producer := self.regions.rewriter.producer(name)) is not None and is_move(producer):
            name = producer.inputs[0]
        in_float = self.graph.values[node.output].in_float
        return kind is not None and kind.reads_float32 and not in_float and name in self._floats

    def moves_input(self, name: str) -> bool:
        """Whether all readers of a move's result read a float32 input through it."""
        return self._only_read_by(name, self.takes_input)

    def needs_16(self, region: Region) -> bool:
        """Whether a region's result is a function or product that is averaged, such an average, or a function of it."""
        first, end = region.first, self.regions.result(region.end)
        if not all(kind is not None and kind.gives_int16 for kind in map(kind_of, region.nodes)):
            return False
        kind, source = kind_of(first), self.regions.source(first.inputs[0])
        computes = (isinstance(kind, Elementwise) and kind.clamp is None) or first.op in ("mul", "div")
        if computes and self._only_read_by(end, _averages):
            return True
        is_average = _averages(first) or isinstance(kind, Elementwise)
        return is_average and self.gives.get(source) == INT16 and self._only_read_by(end, _computes)

    def _only_read_by(self, name: str, matches: Callable[[Node], bool]) -> bool:
        """Whether all readers of a value, moved or not, match."""
        return all(r is not None and matches(r) for r in readers_behind_moves(self.regions.rewriter, name))


def _averages(node: Node) -> bool:
    """Whether a node is a sum or an average of elements that it reads in 16 bits."""
    kind = kind_of(node)
    return isinstance(kind, Arithmetic) and len(node.inputs) == 1 and kind.reads_int16


def _computes(node: Node) -> bool:
    """Whether a node is an elementwise function or arithmetic that reads 16 bits."""
    kind = kind_of(node)
    return isinstance(kind, Elementwise | Arithmetic) and kind.reads_int16
