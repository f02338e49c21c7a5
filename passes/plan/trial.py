"""Nodes that compute one value from another one, as a function that can be tried on numbers; operators in their
place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.passes.rewriter import Rewriter

_REDUCTIONS = ("mean", "sum", "amax")
_NORMS = ("layer_norm", "rms_norm")
_SPREADS = ("view", "expand")
_MOST = 32
"""Nodes that an operator is written as."""


@dataclass(frozen=True)
class Trial:
    """Nodes that compute one value from another one and constants, each read by the others alone but for the last.

    Attributes:
        graph: that they are part of.
        source: the value that they compute from.
        nodes: in execution order.
    """

    graph: Graph
    source: str
    nodes: tuple[Node, ...]

    @property
    def shape(self) -> Shape:
        """The shape of the value that they compute from."""
        return self.graph.types[self.source].shape

    @property
    def constants(self) -> Iterator[Array]:
        """The constants that they read."""
        return iter(self._constants.values())

    @property
    def _constants(self) -> dict[str, Array]:
        names = (name for node in self.nodes for name in node.inputs)
        return {name: self.graph.constants[name] for name in names if name in self.graph.constants}

    @property
    def computes(self) -> bool:
        """Whether several of them compute anything."""
        return sum(node.op not in _SPREADS for node in self.nodes) > 1

    def reduced(self) -> tuple[int, ...] | None:
        """The dimensions that the nodes reduce; none where they work element by element. None where they reduce several
        sets of dimensions, or read what they reduced as anything but one number for each row."""
        found = {self._dims(node) for node in self.nodes if node.op in (*_REDUCTIONS, *_NORMS)}
        if len(found) > 1:
            return None
        dims = next(iter(found), ())
        left = tuple(extent for d, extent in enumerate(self.shape) if d not in dims)
        kept = tuple(1 if d in dims else extent for d, extent in enumerate(self.shape))
        for node in self.nodes:
            if self.graph.types[node.output].shape not in (self.shape, kept, left):
                return None
            read = [name for name in node.inputs if self.graph.types[name].shape == left != kept]
            others = (name for name in node.inputs if name not in read)
            if read and any(self.graph.types[name].numel > 1 for name in others):
                return None
        return dims if self.graph.types[self.nodes[-1].output].shape == self.shape else None

    def _dims(self, node: Node) -> tuple[int, ...]:
        if node.op in _REDUCTIONS:
            return tuple(sorted(node.attrs["dims"]))
        rank = len(self.shape)
        return tuple(range(rank - len(self.graph.types[node.inputs[1]].shape), rank))

    def __call__(self, x: Array) -> Array:
        """What they give for a value, float32 of the value's rank; it may have fewer elements where it is not reduced
        and constants do not differ."""
        values = {**self._constants, self.source: np.asarray(x, np.float32)}
        with np.errstate(all="ignore"):
            for node in self.nodes:
                values[node.output] = self._result(node, [values[name] for name in node.inputs])
        return values[self.nodes[-1].output]

    def _result(self, node: Node, operands: Sequence[Array]) -> Array:
        if node.op in _SPREADS:
            return operands[0]
        call = self.graph.call(node)
        if node.op in _REDUCTIONS:
            call = replace(call, attrs={**node.attrs, "keepdim": True})
        return np.asarray(OPS[node.op].reference(call, operands))


@dataclass(frozen=True)
class Operator:
    """What several nodes compute.

    Attributes:
        op, attrs: operator and attributes.
        parameters: its constant operands, by name.
        moved: moves before and after it, operators with their attributes, where it would not read rows otherwise.
    """

    op: str
    attrs: Attrs
    parameters: Mapping[str, Array] = field(default_factory=dict)
    moved: tuple[tuple[str, Attrs], tuple[str, Attrs]] | None = None

    def place(self, rewriter: Rewriter, trial: Trial) -> tuple[Node, ...]:
        """Puts the operator in place of a trial's nodes; returns the new ones."""
        graph, end, source = rewriter.graph, trial.nodes[-1], trial.source
        named = self.parameters.items()
        parameters = tuple(graph.add_constant(f"{end.output}.{name}", a.astype(np.float32)) for name, a in named)
        if self.moved is None:
            return (rewriter.replace(end, Node(self.op, (source, *parameters), end.output, self.attrs, end.source)),)
        (before, there), (after, back) = self.moved
        x = _inserted(rewriter, end, before, (source,), there)
        y = _inserted(rewriter, end, self.op, (x.output, *parameters), self.attrs)
        return x, y, rewriter.replace(end, Node(after, (y.output,), end.output, back, end.source))


def _inserted(rewriter: Rewriter, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs) -> Node:
    to = infer(rewriter.graph, Node(op, inputs, "", attrs))
    made = rewriter.producer(rewriter.insert(before, op, inputs, attrs, to, f"{before.output}.{op}"))
    assert made is not None
    return made


def trials(rewriter: Rewriter, places: Mapping[str, int], end: Node) -> Iterator[Trial]:
    """Every Trial that ends with a node, the shortest first."""
    graph, nodes, waiting = rewriter.graph, dict[str, Node](), {end.output}
    while len(nodes) < _MOST:
        name = max(waiting, key=lambda name: places.get(name, -1))
        node = rewriter.producer(name)
        if node is None or not _may_join(graph, node) or name in graph.in_float:
            return
        if nodes and (name in graph.outputs or any(reader.output not in nodes for reader in rewriter.readers(name))):
            return
        nodes[name] = node
        waiting = (waiting - {name}).union(n for n in node.inputs if n not in graph.constants)
        if len(waiting) == 1:
            yield Trial(graph, next(iter(waiting)), tuple(reversed(nodes.values())))
        if not waiting:
            return


def _may_join(graph: Graph, node: Node) -> bool:
    """Whether a node works element by element, reduces, or gives each row's number a shape."""
    kind = OPS[node.op].int8
    pointwise = isinstance(kind, Elementwise) or (isinstance(kind, Arithmetic) and len(node.inputs) == 2)
    floats = all(graph.types[name].dtype == FLOAT32 for name in (node.output, *node.inputs[:2]))
    return (pointwise or node.op in (*_REDUCTIONS, *_NORMS, *_SPREADS)) and floats
