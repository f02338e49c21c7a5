"""Regions: nodes that are rounded once, as one int8 operator.

A region begins with an operator that has an int8 form. What follows it joins while each value is read by the next node
alone: a batch norm, an addend, an activation, further elementwise functions, a factor, clamps. The kind of the first
operator says which of them, in which order.

The same code finds the regions of a float graph, to say where values are rounded, and those of a graph that holds
quantizes, to fuse them. There a quantize ends a region, and another quantizer may have put more into one than we would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Graph, Node, QParams
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Int8, Moves, Normalization, PRelu, Product, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.operands import factor_of, int8_behind, is_scale
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Region:
    """Nodes that are rounded once.

    Attributes:
        first: the operator.
        end: the value that is rounded.
        nodes: all of them in order, `first` included.
        norm: a batch norm before rounding.
        addend: a value that is added before rounding.
        activation: an elementwise function or a PReLU behind the sum, the norm and the addend.
        functions: further functions of an elementwise operator.
        factor: a positive number that a product is multiplied by.
        clamps: (low, high) in order.
    """

    first: Node
    end: str
    nodes: tuple[Node, ...]
    norm: Node | None = None
    addend: str | None = None
    activation: Node | None = None
    functions: tuple[Node, ...] = ()
    factor: float = 1.0
    clamps: tuple[tuple[float, float], ...] = ()

    @staticmethod
    def of(node: Node) -> Region:
        """A node by itself."""
        return Region(node, node.output, (node,))

    def and_then(self, node: Node) -> Region:
        """The region with one more node."""
        return replace(self, nodes=(*self.nodes, node), end=node.output)


@dataclass
class Regions:
    """Finds the regions of a graph.

    Attributes:
        rewriter: of the graph, which is not changed here.
        observable: names of the float values that may be stored, of a float graph; None of a graph that holds
            quantizes, which say what is stored. A value that is not observable lies within one operator of the user's
            program, or is no float there.
        taken: outputs of nodes that belong to a region already, so that no other takes them.
        places: where each node is among the graph's, by its output.
    """

    rewriter: Rewriter
    observable: Collection[str] | None = None
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.places = {node.output: place for place, node in enumerate(self.graph.nodes)}

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.rewriter.graph

    def find(self, node: Node) -> Region:
        """The longest region that begins with a node."""
        kind, region = kind_of(node), Region.of(node)
        if isinstance(kind, WeightedSum) and self.observable is not None:
            region = _unfolded_norm(self, region)
        if isinstance(kind, WeightedSum | Arithmetic | Normalization | PRelu):
            for what in kind.fusible if not isinstance(kind, Arithmetic) or self._has_tensors(node) else ():
                region = _JOINS[what](self, region)
            if isinstance(kind, WeightedSum) and self.observable is None:
                region = _factor(self, region)
        elif isinstance(kind, Product):
            region = _factor(self, region)
        elif isinstance(kind, Elementwise):
            region = _functions(self, region)
        region = _clamps(self, region)
        if self.observable is not None or any(r.op == "quantize" for r in self.rewriter.readers(region.end)):
            return region
        return _clamps(self, Region.of(node))

    def _has_tensors(self, node: Node) -> bool:
        """Whether both operands of arithmetic are tensors of floats."""
        if self.observable is None:
            return True
        return all(self.is_constant(n) or self.source(n) in self.observable for n in node.inputs)

    def next(self, name: str) -> tuple[Node, str] | None:
        """The node that alone reads a value and may join its region, and what it reads of it: the value itself, or
        its elements as an operator of the user's program moves them at its end."""
        name = self.result(name)
        reader = self.rewriter.only_reader(name)
        if reader is None or reader.output in self.graph.in_float or reader.output in self.taken:
            return None
        return reader, name

    def source(self, name: str) -> str:
        """A value as an operator of the user's program reads it, before the operator moves its elements."""
        node = self.rewriter.producer(name)
        while node is not None and self._is_inner(node.output) and _moves_one(node):
            name = node.inputs[0]
            node = self.rewriter.producer(name)
        return name

    def result(self, name: str) -> str:
        """A value as an operator of the user's program gives it, behind moves of its elements at its end."""
        reader = self.rewriter.only_reader(name)
        while reader is not None and self._is_inner(name) and _moves_one(reader):
            name = reader.output
            reader = self.rewriter.only_reader(name)
        return name

    def maker(self, name: str) -> Node | None:
        """The node that computes what an operator of the user's program gives, before moves at its end."""
        node = self.rewriter.producer(name)
        while node is not None and _moves_one(node) and self._is_inner(node.inputs[0]):
            node = self.rewriter.producer(node.inputs[0])
        return node

    def _is_inner(self, name: str) -> bool:
        computed = name in self.places and name not in self.graph.constants
        return self.observable is not None and name not in self.observable and computed

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, moved within an operator or not."""
        return self.source(name) in self.graph.constants

    def is_later_sum(self, name: str, than: str) -> bool:
        """Whether a value is a weighted sum that is computed after another value."""
        node = self.maker(name)
        weighted = node is not None and isinstance(kind_of(node), WeightedSum)
        return weighted and self.places[name] > self.places[than]


def kind_of(node: Node) -> Int8 | None:
    """What a node is in int8."""
    return OPS[node.op].int8


def is_move(node: Node) -> bool:
    """Whether a node moves the elements of one value, and does nothing else."""
    return isinstance(kind_of(node), Moves) and len(node.inputs) == 1


def _moves_one(node: Node) -> bool:
    """Whether a node moves the elements of one value, to places that are constant."""
    op = OPS[node.op]
    places = (op.operand(i, node.attrs).constant for i in range(1, len(node.inputs)))
    return isinstance(op.int8, Moves) and all(places)


def has_channels(graph: Graph, node: Node, name: str) -> bool:
    """Whether dimension 1 of a weighted sum's result counts its outputs: of a linear where there is no other."""
    return node.op != "linear" or len(graph.types[name].shape) == 2


def _norm(found: Regions, region: Region) -> Region:
    """A batch norm whose parameters are constants."""
    after = found.next(region.end)
    if after is None or not isinstance(kind_of(after[0]), Normalization):
        return region
    constant = all(map(found.is_constant, after[0].inputs[1:]))
    return replace(region.and_then(after[0]), norm=after[0]) if constant else region


def _unfolded_norm(found: Regions, region: Region) -> Region:
    """A batch norm behind a weighted sum of a float graph, which torchao folds into it when training ends."""
    after = found.next(region.end)
    if after is None or not isinstance(kind_of(after[0]), Normalization):
        return region
    return region.and_then(after[0]) if has_channels(found.graph, region.first, after[1]) else region


def _addend(found: Regions, region: Region) -> Region:
    """Another value of the same shape: of a float graph one that is not computed by a later weighted sum."""
    after, types = found.next(region.end), found.graph.types
    if after is None or after[0].op != "add" or after[0].attrs["alpha"] != 1:
        return region
    node, value = after
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    shapes = {types[name].shape for name in (value, other, node.output)}
    if found.observable is None:
        joins = int8_behind(found.rewriter, other) is not None
    else:
        deep = len(types[value].shape) == 5 and region.first.op != "linear"  # its images are moved before the sum
        joins = found.source(other) in found.observable and not deep and not found.is_later_sum(other, value)
    fits = joins and other != value and len(shapes) == 1
    return replace(region.and_then(node), addend=other) if fits else region


def _activation(found: Regions, region: Region) -> Region:
    """An elementwise function, which in a float graph has a bounded slope, or a PReLU of the sum's outputs."""
    if (after := found.next(region.end)) is None:
        return region
    node, value = after
    kind = kind_of(node)
    if isinstance(kind, Elementwise):
        joins = kind.clamp is None and not kind.wraps
        if found.observable is not None:
            joins = joins and kind.as_curve
        elif isinstance(kind_of(region.first), WeightedSum):  # a factor joins by itself
            joins = joins and factor_of(node) is None
    else:
        slopes = isinstance(kind, PRelu) and found.is_constant(node.inputs[1])
        joins = slopes and has_channels(found.graph, region.first, value)
    return replace(region.and_then(node), activation=node) if joins else region


def _factor(found: Regions, region: Region) -> Region:
    """A positive number."""
    after = found.next(region.end)
    factor = factor_of(after[0]) if after is not None else None
    if after is None or factor is None:
        return region
    return replace(region.and_then(after[0]), factor=factor)


def _functions(found: Regions, region: Region) -> Region:
    """Elementwise operators, without the clamps at their end."""
    longer, functions = region, list[Node]()
    while (after := found.next(longer.end)) is not None:
        node = after[0]
        if not isinstance(kind_of(node), Elementwise) or not _gives_float(found, node) or scales_operand(found, node):
            break
        longer = longer.and_then(node)
        functions.append(node)
        if not _is_clamp(node):
            region = replace(longer, functions=tuple(functions))
    return region


def _gives_float(found: Regions, node: Node) -> bool:
    """Whether a node gives floats in the user's program, no bools."""
    return found.observable is None or found.result(node.output) in found.observable


def scales_operand(found: Regions, node: Node) -> bool:
    """Whether a node multiplies an operand of products, and of nothing else, by a positive number."""
    readers = found.rewriter.readers(found.result(node.output))
    return is_scale(node) and bool(readers) and all(isinstance(kind_of(reader), Product) for reader in readers)


def _is_clamp(node: Node) -> bool:
    kind = kind_of(node)
    return isinstance(kind, Elementwise) and kind.clamp is not None


def _clamps(found: Regions, region: Region) -> Region:
    """Clamps, each the only reader."""
    while (after := found.next(region.end)) is not None:
        kind = kind_of(after[0])
        if not isinstance(kind, Elementwise) or not kind.clamp:
            break
        clamp = kind.clamp(after[0].attrs)
        region = replace(region.and_then(after[0]), clamps=(*region.clamps, clamp))
    return region


_JOINS: Mapping[str, Callable[[Regions, Region], Region]] = {
    "norm": _norm,
    "addend": _addend,
    "activation": _activation,
}
"""What `Int8.fusible` names."""


def rounded_to(graph: Graph, region: Region, quantize: Node) -> tuple[QParams, int, int]:
    """How the result of a region is rounded before its factor is applied: scale and zero point, and the range that its
    clamps leave."""
    out, lo, hi = graph.types[quantize.output].q, quantize.attrs["lo"], quantize.attrs["hi"]
    assert out is not None
    if region.clamps:
        low, high = region.clamps[0]
        for bounds in region.clamps[1:]:  # the last one wins where they do not overlap
            low, high = (float(np.clip(end, *bounds)) for end in (low, high))
        lo, hi = arithmetic.clamp_bounds(out, low, high, lo, hi)
    if region.factor != 1.0:  # rounding factor * x at a scale is rounding x at the scale / factor
        out = replace(out, scale=out.scale / region.factor)
    return out, lo, hi
