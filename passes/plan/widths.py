"""What is stored in 16 bits, or not rounded at all, for what reads it, whatever calibration meets.

An input that norms read keeps what is left when its mean is taken out, which may be less than a step of 8 bits: a batch
norm reads it in float32, norms of rows in 16 bits. Functions and products that only sums and averages read are stored
in 16 bits: of squares, most are less than a step of 8 bits where the largest sets it, though all of them count. So are
such averages, and functions of them, that other values are divided or multiplied by: there is one for many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Rowwise
from q8ta_wgpu.passes.plan.regions import Region, Regions, is_move, kind_of
from q8ta_wgpu.passes.plan.storage import INT16, Storage


class Widths:
    """Widths of a float graph's values.

    Args:
        regions: of the graph.
        gives: the storage of values before the one that is asked for.

    Attributes:
        inputs: of the network, that are stored in 16 bits.
    """

    def __init__(self, regions: Regions, gives: Mapping[str, Storage]) -> None:
        self.regions, self.graph, self.gives = regions, regions.graph, gives
        self._floats = set(self.graph.inputs).intersection(regions.observable or ())
        self.inputs = {name for name in self._floats if self._only_read_by(name, self._is_norm_of_rows)}

    def takes_input(self, node: Node) -> bool:
        """Whether a node reads a float input of the network, moved or not, and rounds it itself."""
        kind, name = kind_of(node), node.inputs[0]
        while (made := self.regions.rewriter.producer(name)) is not None and is_move(made):
            name = made.inputs[0]
        return (
            kind is not None and kind.reads_float32 and node.output not in self.graph.in_float and name in self._floats
        )

    def moves_input(self, name: str) -> bool:
        """Whether all that reads what a move gives takes an input that it moves."""
        return self._only_read_by(name, self.takes_input)

    def needs_16(self, region: Region) -> bool:
        """Whether the result of a region is such a function or product, such an average, or a function of one."""
        first, end = region.first, self.regions.result(region.end)
        if not all(kind is not None and kind.gives_int16 for kind in map(kind_of, region.nodes)):
            return False
        kind, source = kind_of(first), self.regions.source(first.inputs[0])
        computes = (isinstance(kind, Elementwise) and kind.clamp is None) or first.op in ("mul", "div")
        if computes and self._only_read_by(end, _averages):
            return True
        follows = _averages(first) or isinstance(kind, Elementwise)
        return follows and self.gives.get(source) == INT16 and self._only_read_by(end, _computes)

    def _only_read_by(self, name: str, takes: Callable[[Node], bool]) -> bool:
        """Whether all that reads a value, moved or not, are nodes of a kind."""
        readers = self.regions.rewriter.readers(name)
        read = all(self._only_read_by(r.output, takes) if is_move(r) else takes(r) for r in readers)
        return bool(readers) and name not in self.graph.outputs and read

    def _is_norm_of_rows(self, node: Node) -> bool:
        kind = kind_of(node)
        norm = isinstance(kind, Rowwise) and kind.result is None and kind.reads_int16
        return norm and node.output not in self.graph.in_float


def _averages(node: Node) -> bool:
    """Whether a node sums up elements, and takes 16 bits of each."""
    kind = kind_of(node)
    return isinstance(kind, Arithmetic) and len(node.inputs) == 1 and kind.reads_int16


def _computes(node: Node) -> bool:
    """Whether a node works element by element on 16 bits, or averages."""
    kind = kind_of(node)
    return isinstance(kind, Elementwise | Arithmetic) and kind.reads_int16
