"""Nodes that compute one value from another one, as a function to call on numbers, and the operator to replace them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Graph, Node
from q8ta_wgpu.ir.int8 import works_by_element
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

_REDUCTIONS = ("mean", "sum", "amax")
_NORMS = ("layer_norm", "rms_norm")
_SPREADS = ("view", "expand")
_MOST = 32
"""Limit of nodes that are tried as one operator."""

_MOST_BYTES = 1 << 27
"""About as many bytes of values are kept. All trials of a node with a thousand channels need a tenth of that."""


class Computed:
    """Values of nodes that were computed from the same numbers in place of the same source.

    Trials that end at neighbouring nodes share all others: without this, each node would be computed for every trial
    that it is part of, up to _MOST times as often.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, Shape, bytes], dict[str, Array]] = {}
        self._bytes = 0

    def of(self, source: str, x: Array) -> dict[str, Array]:
        """The values by name, to which others may be added, if x takes the place of a source."""
        if self._bytes > _MOST_BYTES:
            self._found, self._bytes = {}, 0
        key = source, x.shape, x.tobytes()
        self._bytes += (_MOST + 1) * x.nbytes * (key not in self._found)
        return self._found.setdefault(key, {source: x})


@dataclass(frozen=True)
class Trial:
    """Nodes that compute one value from another one and constants. Only the last result is read by other nodes.

    Attributes:
        graph: the graph of the nodes.
        source: name of the value that they compute from.
        nodes: the nodes, in execution order.
        computed: values of earlier trials of the same graph.
    """

    graph: Graph
    source: str
    nodes: tuple[Node, ...]
    computed: Computed = field(default_factory=Computed)

    @property
    def shape(self) -> Shape:
        """The shape of the source."""
        return self.graph.types[self.source].shape

    @property
    def constants(self) -> Iterator[Array]:
        """The constants that the nodes read."""
        return iter(self._constants.values())

    @property
    def _constants(self) -> dict[str, Array]:
        names = (name for node in self.nodes for name in node.inputs)
        return {name: self.graph.constants[name] for name in names if name in self.graph.constants}

    @property
    def computes(self) -> bool:
        """Whether at least two nodes do more than view or expand."""
        return sum(node.op not in _SPREADS for node in self.nodes) > 1

    def reduced(self) -> tuple[int, ...] | None:
        """The dimensions that the nodes reduce; () where they work element by element. None where they reduce several
        sets of dimensions, or use a reduced value as anything but one number per row."""
        found = {self._dims(node) for node in self.nodes if node.op in (*_REDUCTIONS, *_NORMS)}
        if len(found) > 1:
            return None
        dims = next(iter(found), ())
        without_dims = tuple(extent for d, extent in enumerate(self.shape) if d not in dims)
        keepdim = tuple(1 if d in dims else extent for d, extent in enumerate(self.shape))
        for node in self.nodes:
            if self.graph.types[node.output].shape not in (self.shape, keepdim, without_dims):
                return None
            read = [name for name in node.inputs if self.graph.types[name].shape == without_dims != keepdim]
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
        """The last node's result for a source x, float32 of the source's rank. x may have extent 1 in dimensions that
        are not reduced and along which no constant differs."""
        values, constants = self.computed.of(self.source, np.asarray(x, np.float32)), self.graph.constants
        with np.errstate(all="ignore"):
            for node in self.nodes:
                if node.output not in values:
                    operands = [constants[name] if name in constants else values[name] for name in node.inputs]
                    values[node.output] = self._result(node, operands)
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
    """An operator that computes what several nodes do.

    Attributes:
        op, attrs: operator and attributes.
        parameters: its constant operands, by name.
        moved: (op, attrs) of moves before and after it, where its rows or channels are in other dimensions; or None.
    """

    op: str
    attrs: Attrs
    parameters: Mapping[str, Array] = field(default_factory=dict)
    moved: tuple[tuple[str, Attrs], tuple[str, Attrs]] | None = None

    def substitute(self, rewriter: Rewriter, trial: Trial) -> tuple[Node, ...]:
        """Replaces a trial's nodes by the operator; returns the new nodes."""
        graph, end, source = rewriter.graph, trial.nodes[-1], trial.source
        named = self.parameters.items()
        parameters = tuple(graph.add_constant(f"{end.output}.{name}", a.astype(np.float32)) for name, a in named)
        if self.moved is None:
            return (rewriter.replace(end, Node(self.op, (source, *parameters), end.output, self.attrs, end.source)),)
        (before, forth), (after, back) = self.moved
        x = _inserted(rewriter, end, before, (source,), forth)
        y = _inserted(rewriter, end, self.op, (x.output, *parameters), self.attrs)
        return x, y, rewriter.replace(end, Node(after, (y.output,), end.output, back, end.source))


def _inserted(rewriter: Rewriter, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs) -> Node:
    node = rewriter.producer(rewriter.insert(before, op, inputs, attrs, f"{before.output}.{op}"))
    assert node is not None
    return node


def trials(rewriter: Rewriter, positions: Mapping[str, int], end: Node, computed: Computed) -> Iterator[Trial]:
    """Every Trial that ends with a node, the shortest first. `positions` is the index of each node, by its output;
    `computed` is one for the whole graph."""
    graph, nodes, waiting = rewriter.graph, dict[str, Node](), {end.output}
    while len(nodes) < _MOST:
        name = max(waiting, key=lambda name: positions.get(name, -1))
        node = rewriter.producer(name)
        if node is None or not _can_be_tried(graph, node) or graph.values[name].in_float:
            return
        if nodes and (name in graph.outputs or any(reader.output not in nodes for reader in rewriter.readers(name))):
            return
        nodes[name] = node
        waiting = (waiting - {name}).union(n for n in node.inputs if n not in graph.constants)
        if len(waiting) == 1:
            yield Trial(graph, next(iter(waiting)), tuple(reversed(nodes.values())), computed)
        if not waiting:
            return


def _can_be_tried(graph: Graph, node: Node) -> bool:
    """Whether a node of floats works element by element, reduces, or views or expands."""
    pointwise = works_by_element(OPS[node.op].int8) and len(node.inputs) < 3
    floats = all(graph.types[name].dtype == FLOAT32 for name in (node.output, *node.inputs[:2]))
    return (pointwise or node.op in (*_REDUCTIONS, *_NORMS, *_SPREADS)) and floats
