"""Writes quantizes and dequantizes into a float graph, and weights on their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.quantization.stored import RESULT, WIDTHS, Choice, Edge, Stored, StoredValues

Weights = Callable[[Node], Sequence[Array]]
"""The weight of a weighted sum in int8, its scale, zero point, and bias."""


def quantized(values: StoredValues, chosen: Choice, sums: Mapping[str, Node], weights: Weights | None) -> Graph:
    """A copy of a float graph with quantizes and dequantizes.

    Args:
        values: what is stored.
        chosen: widths other than the plan's.
        sums: weighted sums with weights of the network, by output.
        weights: rounds the weights of those that read rounded values; None leaves all weights as they are.
    """
    return _Insertion(values, chosen, sums, weights).run()


@dataclass
class _Insertion:
    """One copy of a graph on its way.

    Attributes:
        real: the names under which values are read that are rounded where they are computed.
        again: values that are rounded, by name and how.
    """

    values: StoredValues
    chosen: Choice
    sums: Mapping[str, Node]
    weights: Weights | None
    real: dict[str, tuple[str, QParams]] = field(default_factory=dict)
    again: dict[tuple[str, QParams], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.values.graph.copy()
        self.nodes: list[Node] = []
        self._edges: dict[str, list[tuple[Edge, Stored]]] = {}
        self._edges_of_calls: dict[str, list[tuple[Edge, Stored]]] = {}
        for stored in self.values.stored:
            for edge in stored.roles:
                self._edges.setdefault(edge[1], []).append((edge, stored))
                self._edges_of_calls.setdefault(edge[0], []).append((edge, stored))

    def run(self) -> Graph:
        """The graph."""
        graph, calls = self.graph, self.values.calls
        for name in (*graph.inputs, *graph.constants):
            self._store(name)
        for given in graph.nodes:
            call, names = calls[given.output], list(given.inputs)
            weighted = given.output in self.sums
            for i, name in enumerate(names):
                if not (weighted and i):
                    names[i] = self._read((call, name))
            node = replace(given, inputs=tuple(names))
            rounds = weighted and self.weights is not None and self._is_rounded(given)
            self.nodes.append(self._with_weight(node, given) if rounds else node)
            self._store(given.output)
        outputs = [self._read((RESULT, name)) for name in graph.outputs]
        graph.nodes, graph.outputs = self.nodes, outputs
        return graph

    def _store(self, name: str) -> None:
        """Rounds a value where it is computed, if it is stored there and an edge reads it rounded."""
        if (own := self.values.given.get(name)) is None:
            return
        edges = self._edges.get(name, [])
        widths = {stored.width_for(edge, self.chosen) for edge, stored in edges if stored is own} - {"float32"}
        others = any(stored is not own and stored.width_for(e, self.chosen) != "float32" for e, stored in edges)
        if widths or others or not edges:
            q = own.q(max(widths, key=WIDTHS.index, default=own.width))
            self.real[name] = self._rounded(name, q), q

    def _read(self, edge: Edge) -> str:
        """The name under which an edge reads a value."""
        name = edge[1]
        if (stored := self.values.edges.get(edge)) is None:
            return name
        width = stored.width_for(edge, self.chosen)
        if width == "float32":
            return name
        q = stored.q(width)
        read, given = self.real.get(name, (name, None))
        return read if given == q else self._rounded(read, q)

    def _is_rounded(self, node: Node) -> bool:
        """Whether a weighted sum reads a rounded value."""
        read = [
            stored.width_for(edge, self.chosen)
            for edge, stored in self._edges_of_calls.get(self.values.calls[node.output], ())
            if not stored.roles[edge].isdisjoint(("sums", "products"))
        ]
        return any(width != "float32" for width in read)

    def _rounded(self, name: str, q: QParams) -> str:
        """A value quantized and dequantized."""
        if (name, q) in self.again:
            return self.again[name, q]
        graph, (low, high) = self.graph, q.range
        shape = graph.types[name].shape
        made, back = graph.fresh(f"{name}.stored"), f"{name}.real"
        graph.types[made] = TensorType(shape, q.dtype, q)
        self.nodes.append(Node("quantize", (name,), made, {"lo": low, "hi": high}))
        back = graph.fresh(back)
        graph.types[back] = TensorType(shape)
        self.nodes.append(Node("dequantize", (made,), back))
        self.again[name, q] = back
        return back

    def _with_weight(self, node: Node, given: Node) -> Node:
        """A weighted sum that reads int8 weights with a scale for each output, made of the one of the float graph."""
        assert self.weights is not None
        graph, names = self.graph, list(node.inputs)
        *rounded, bias = self.weights(given)
        hints = ("w", "scale", "zero")
        made = [graph.add_constant(f"{node.output}.{hint}", x) for hint, x in zip(hints, rounded, strict=True)]
        if bias is not graph.constants[names[2]]:
            names[2] = graph.add_constant(f"{node.output}.bias", bias)
        names[1] = graph.fresh(f"{node.output}.weight")
        graph.types[names[1]] = graph.types[node.inputs[1]]
        self.nodes.append(Node("dequantize_weight", tuple(made), names[1], {"axis": 0}, node.source))
        return replace(node, inputs=tuple(names))
