"""Regions, or fusion groups: nodes that become one int8 operator, whose result is rounded once.

For example `relu(batch_norm(conv(x)) + y)`. A region begins with an operator that has an int8 form. The following nodes
are fused into it as long as each is the only reader of the value before it: a batch norm, an addend, an activation,
further elementwise functions, a factor, clamps. The kind of the first operator says which of them, in which order.

The same code finds the regions of a float graph, to decide where to round, and of a graph with quantizes, to fuse them.
In the latter a quantize ends a region, and another quantizer may have fused more than ours would.
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
    """Nodes that become one int8 operator.

    Attributes:
        first: the operator that the others are fused into.
        end: name of the value that is rounded.
        nodes: all nodes in order, `first` included.
        norm: the batch norm, if any.
        addend: name of a value that is added, if any.
        activation: an elementwise function or a PReLU after the sum, the norm and the addend, if any.
        functions: elementwise functions after a first elementwise operator.
        factor: a positive number that the result is multiplied by.
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
        """The region of one node."""
        return Region(node, node.output, (node,))

    def and_then(self, node: Node) -> Region:
        """The region with one more node."""
        return replace(self, nodes=(*self.nodes, node), end=node.output)


@dataclass
class Regions:
    """Finds the regions of a graph.

    Attributes:
        rewriter: of the graph, which is not changed here.
        observable: in a float graph, names of the float values that may be stored. Any other value is computed within
            one operator of the user's program, or is no float there. None for a graph with quantizes.
        claimed: outputs of nodes that belong to a region already.
        positions: index of each node in the graph, by its output.
    """

    rewriter: Rewriter
    observable: Collection[str] | None = None
    claimed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.positions = {node.output: position for position, node in enumerate(self.graph.nodes)}

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.rewriter.graph

    def find(self, node: Node) -> Region:
        """The longest region that begins with a node. In a graph with quantizes it must end in one; otherwise the
        region is the node with its clamps."""
        kind, region = kind_of(node), Region.of(node)
        if isinstance(kind, WeightedSum) and self.observable is not None:
            region = _unfolded_norm(self, region)
        if isinstance(kind, WeightedSum | Arithmetic | Normalization | PRelu):
            for what in kind.fusible if not isinstance(kind, Arithmetic) or self._has_tensors(node) else ():
                region = _FUSE[what](self, region)
            if isinstance(kind, WeightedSum):
                region = _fuse_factor(self, region)
        elif isinstance(kind, Product):
            region = _fuse_factor(self, region)
        elif isinstance(kind, Elementwise):
            region = _fuse_functions(self, region)
        region = _fuse_clamps(self, region)
        if self.observable is not None or any(r.op == "quantize" for r in self.rewriter.readers(region.end)):
            return region
        return _fuse_clamps(self, Region.of(node))

    def _has_tensors(self, node: Node) -> bool:
        """Whether both operands of an arithmetic operator are float tensors, not computed from integers or bools."""
        if self.observable is None:
            return True
        return all(self.is_constant(n) or self.source(n) in self.observable for n in node.inputs)

    def next(self, name: str) -> tuple[Node, str] | None:
        """The only reader of a value, if it may be fused into its region, and the name that it reads: the value's
        `result`."""
        name = self.result(name)
        reader = self.rewriter.only_reader(name)
        if reader is None or self.graph.values[reader.output].in_float or reader.output in self.claimed:
            return None
        return reader, name

    def source(self, name: str) -> str:
        """The value before moves that belong to the user's operator: `conv3d` begins with a permute of its input."""
        node = self.rewriter.producer(name)
        while node is not None and self._is_inner(node.output) and _moves_one(node):
            name = node.inputs[0]
            node = self.rewriter.producer(name)
        return name

    def result(self, name: str) -> str:
        """The value after moves that belong to the user's operator: `conv3d` ends with a permute."""
        reader = self.rewriter.only_reader(name)
        while reader is not None and self._is_inner(name) and _moves_one(reader):
            name = reader.output
            reader = self.rewriter.only_reader(name)
        return name

    def producer(self, name: str) -> Node | None:
        """The node that computes a result of the user's operator, before the moves that end the operator."""
        node = self.rewriter.producer(name)
        while node is not None and _moves_one(node) and self._is_inner(node.inputs[0]):
            node = self.rewriter.producer(node.inputs[0])
        return node

    def _is_inner(self, name: str) -> bool:
        """Whether a value is computed within one operator of the user's program."""
        computed = name in self.positions and name not in self.graph.constants
        return self.observable is not None and name not in self.observable and computed

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, or one that the user's operator moves."""
        return self.source(name) in self.graph.constants

    def is_later_sum(self, name: str, than: str) -> bool:
        """Whether a value is a weighted sum that is computed after another value."""
        node = self.producer(name)
        weighted = node is not None and isinstance(kind_of(node), WeightedSum)
        return weighted and self.positions[name] > self.positions[than]


_MOST = 32
"""Limit of functions in a row that are rounded as one. Without it a chain of thousands takes time that is quadratic."""


def kind_of(node: Node) -> Int8 | None:
    """What a node becomes in int8."""
    return OPS[node.op].int8


def is_move(node: Node) -> bool:
    """Whether a node only moves the elements of its one operand, as `view` and `permute` do."""
    return isinstance(kind_of(node), Moves) and len(node.inputs) == 1


def _moves_one(node: Node) -> bool:
    """Whether a node only moves the elements of its first operand, and others, such as indices, are constants."""
    op = OPS[node.op]
    constant = (op.operand(i, node.attrs).constant for i in range(1, len(node.inputs)))
    return isinstance(op.int8, Moves) and all(constant)


def has_channels(graph: Graph, node: Node, name: str) -> bool:
    """Whether dimension 1 of a weighted sum's result is its output channels: of a linear only where it has rank 2."""
    return node.op != "linear" or len(graph.types[name].shape) == 2


def _fuse_norm(found: Regions, region: Region) -> Region:
    """Extends a region by a batch norm whose parameters are constants."""
    after = found.next(region.end)
    if after is None or not isinstance(kind_of(after[0]), Normalization):
        return region
    constant = all(map(found.is_constant, after[0].inputs[1:]))
    return replace(region.and_then(after[0]), norm=after[0]) if constant else region


def _unfolded_norm(found: Regions, region: Region) -> Region:
    """Extends a region of a float graph by a batch norm, which torchao folds into the weighted sum after training."""
    after = found.next(region.end)
    if after is None or not isinstance(kind_of(after[0]), Normalization):
        return region
    return region.and_then(after[0]) if has_channels(found.graph, region.first, after[1]) else region


def _fuse_addend(found: Regions, region: Region) -> Region:
    """Extends a region by the sum with a value of the same shape. In a float graph that value must not come from a
    later weighted sum, into which the sum is fused then."""
    after, types = found.next(region.end), found.graph.types
    if after is None or after[0].op != "add" or after[0].attrs["alpha"] != 1:
        return region
    node, value = after
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    shapes = {types[name].shape for name in (value, other, node.output)}
    if found.observable is None:
        stored = int8_behind(found.rewriter, other) is not None
    else:
        is_conv3d = len(types[value].shape) == 5 and region.first.op != "linear"  # a 2-d convolution, then a permute
        stored = found.source(other) in found.observable and not is_conv3d and not found.is_later_sum(other, value)
    fits = stored and other != value and len(shapes) == 1
    return replace(region.and_then(node), addend=other) if fits else region


def _fuse_activation(found: Regions, region: Region) -> Region:
    """Extends a region by an elementwise function, or by a PReLU with a slope for each output channel. In a float graph
    the function's slope must be bounded, so that a piecewise linear curve is close to it."""
    if (after := found.next(region.end)) is None:
        return region
    node, value = after
    kind = kind_of(node)
    if isinstance(kind, Elementwise):
        fits = kind.clamp is None and not kind.jumps
        if found.observable is not None:
            fits = fits and kind.as_curve
        elif isinstance(kind_of(region.first), WeightedSum):  # a factor is fused as `Region.factor`
            fits = fits and factor_of(node) is None
    else:
        slopes = isinstance(kind, PRelu) and found.is_constant(node.inputs[1])
        fits = slopes and has_channels(found.graph, region.first, value)
    return replace(region.and_then(node), activation=node) if fits else region


def _fuse_factor(found: Regions, region: Region) -> Region:
    """Extends a region by a product with a positive number."""
    after = found.next(region.end)
    factor = factor_of(after[0]) if after is not None else None
    if after is None or factor is None:
        return region
    return replace(region.and_then(after[0]), factor=factor)


def _fuse_functions(found: Regions, region: Region) -> Region:
    """Extends a region by elementwise operators, without the clamps that end them."""
    longer, functions = region, list[Node]()
    while (after := found.next(longer.end)) is not None and len(functions) < _MOST:
        node = after[0]
        if not isinstance(kind_of(node), Elementwise) or not _gives_float(found, node) or scales_operand(found, node):
            break
        longer = longer.and_then(node)
        functions.append(node)
        if not _is_clamp(node):
            region = replace(longer, functions=tuple(functions))
    return region


def _gives_float(found: Regions, node: Node) -> bool:
    """Whether a node's result is float in the user's program, not bool."""
    return found.observable is None or found.result(node.output) in found.observable


def scales_operand(found: Regions, node: Node) -> bool:
    """Whether a node multiplies by a positive number, and only products of activations read it: `(q * 0.125) @ k`."""
    readers = found.rewriter.readers(found.result(node.output))
    return is_scale(node) and bool(readers) and all(isinstance(kind_of(reader), Product) for reader in readers)


def _is_clamp(node: Node) -> bool:
    kind = kind_of(node)
    return isinstance(kind, Elementwise) and kind.clamp is not None


def _fuse_clamps(found: Regions, region: Region) -> Region:
    """Extends a region by clamps."""
    while (after := found.next(region.end)) is not None:
        kind = kind_of(after[0])
        if not isinstance(kind, Elementwise) or not kind.clamp:
            break
        clamp = kind.clamp(after[0].attrs)
        region = replace(region.and_then(after[0]), clamps=(*region.clamps, clamp))
    return region


_FUSE: Mapping[str, Callable[[Regions, Region], Region]] = {
    "norm": _fuse_norm,
    "addend": _fuse_addend,
    "activation": _fuse_activation,
}
"""How a region is extended by what `Int8.fusible` names."""


def rounded_to(graph: Graph, region: Region, quantize: Node) -> tuple[QParams, int, int]:
    """(q, lo, hi): quantization of a region's result before its factor, and the int8 range that its clamps leave."""
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
