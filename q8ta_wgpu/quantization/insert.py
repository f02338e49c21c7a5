"""Writes quantizes and dequantizes into a float graph, and weights on their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Recurrent
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.fuse_attention import SHARES
from q8ta_wgpu.quantization.stored import RESULT, WIDTHS, Choice, Edge, Shares, Stored, StoredValues, Table, Width
from q8ta_wgpu.quantization.weights import RoundedWeights, Steps


def quantized(
    values: StoredValues,
    chosen: Choice,
    sums: Mapping[str, Node],
    weights: RoundedWeights,
    shifts: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    apart: bool = False,
    runs: bool = False,
) -> Graph:
    """A copy of a float graph with quantizes and dequantizes.

    Args:
        values: what is stored.
        chosen: widths other than the plan's.
        sums: weighted sums with weights of the network, by output. Weights of those that read rounded values are
            rounded.
        weights: rounds weights.
        shifts: fraction bits that the states of recurrent layers have less, by call.
        apart: whether each operand of a weighted sum has a scale of its own, also where it shares one with others, and
            is rounded nowhere else.
        runs: whether the graph is run as it is, so that it shows how attention rounds its shares. One that is compiled
            leaves that to the operator.
    """
    return _Insertion(values, chosen, sums, weights, shifts, apart, runs).run()


@dataclass
class _Insertion:
    """One copy of a graph on its way.

    Attributes:
        real: the names under which values are read that are rounded where they are computed.
        again: values that are rounded, by name and how.
        by_rows: values whose rows are rounded, by name.
        constants: those that are rounded, by name and integers.
    """

    values: StoredValues
    chosen: Choice
    sums: Mapping[str, Node]
    weights: RoundedWeights
    shifts: Mapping[str, tuple[int, int]]
    apart: bool
    runs: bool
    real: dict[str, tuple[str, QParams]] = field(default_factory=dict)
    again: dict[tuple[str, QParams], str] = field(default_factory=dict)
    by_rows: dict[str, str] = field(default_factory=dict)
    constants: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.values.graph.copy()
        self.nodes: list[Node] = []
        pairs = ((edge, stored) for stored in self.values.stored for edge in stored.roles)
        self._widths = {(edge, stored): stored.width_for(edge, self.chosen) for edge, stored in pairs}
        self._edges: dict[str, list[tuple[Edge, Stored]]] = {}
        self._edges_of_calls: dict[str, list[tuple[Edge, Stored]]] = {}
        for edge, stored in self._widths:
            self._edges.setdefault(edge[1], []).append((edge, stored))
            self._edges_of_calls.setdefault(edge[0], []).append((edge, stored))

    def run(self) -> Graph:
        """The graph."""
        graph, calls = self.graph, self.values.calls
        made = {node.output for node in graph.nodes}
        for name in [name for name in graph.types if name not in made]:
            self._store(name)
        for given in graph.nodes:
            call, names = calls[given.output], list(given.inputs)
            weighted = given.output in self.sums
            for i, name in enumerate(names):
                if not (weighted and i):
                    names[i] = self._read((call, name))
            node = replace(given, inputs=tuple(names))
            if weighted and self._is_rounded(given):
                node = self._with_weight(node, given)
            elif isinstance(int8 := OPS[given.op].int8, Recurrent) and self._is_rounded(given):
                node = self._recurrent(node, given, int8)
            self.nodes.append(node)
            self._store(given.output)
        outputs = [self._read((RESULT, name)) for name in graph.outputs]
        graph.nodes, graph.outputs = self.nodes, outputs
        return graph

    def _store(self, name: str) -> None:
        """Rounds a value where it is computed, if it is stored there and an edge reads it rounded."""
        if (own := self.values.given.get(name)) is None:
            return
        edges = self._edges.get(name, [])
        widths = {self._widths[read] for read in edges if read[1] is own} - {"float32"}
        others = any(read[1] is not own and self._widths[read] != "float32" for read in edges)
        if widths or others or not edges:
            q = own.q(max(widths, key=WIDTHS.index, default=own.width))
            self.real[name] = self._rounded(name, q), q

    def _read(self, edge: Edge) -> str:
        """The name under which an edge reads a value."""
        name = edge[1]
        if (stored := self.values.edges.get(edge)) is None:
            return name
        width = self._widths[edge, stored]
        if width == "float32":
            return name
        if isinstance(stored, Table):
            return self._on_steps(name, f"{name}.rows", self.weights.table(name, width))
        if isinstance(stored, Shares):
            return self._shares(name, stored, width)
        if self.apart and edge in stored.moves and width == stored.width:  # what is moved is rounded where it is read
            return name
        own = self.apart and width == stored.width and stored.roles[edge] == {"sums"}
        q = stored.q_of(name) if own else stored.q(width)
        read, given = (name, None) if own else self.real.get(name, (name, None))
        found = read if given == q else self._rounded(read, q)
        by_rows = stored in self.values.by_rows and stored.roles[edge] == {"sums"} and edge not in stored.moves
        return self._rows(found) if by_rows else found

    def _shares(self, name: str, stored: Shares, width: Width) -> str:
        """Shares as the kernels of attention have them."""
        if not self.runs:
            return self._rounded(name, SHARES) if width == "int16" else name
        if any(self._width(edge) == "int16" for edge in stored.operands):  # three operators, the softmax in int16
            return name
        fine = width == "int16" or any(self._width(edge) == "int16" for edge in stored.results)
        names = name, self.graph.add_constant(f"{name}.bias", stored.bias)
        return self._emit("round_shares", names, self.graph.types[name], f"{name}.shares", {"fine": fine})

    def _width(self, edge: Edge) -> Width:
        return self._widths[edge, self.values.edges[edge]]

    def _rows(self, name: str) -> str:
        """A value whose rows are rounded to 8 bits by scales that the device computes."""
        if name not in self.by_rows:
            shape = self.graph.types[name].shape
            scale = self._emit("row_scale", (name,), TensorType((*shape[:-1], 1)), f"{name}.scale")
            unit = arithmetic.row_unit(None)
            rows = self._emit("quantize_rows", (name, scale), TensorType(shape, unit.dtype, unit), f"{name}.rows")
            real = self._emit("dequantize", (rows,), TensorType(shape), f"{name}.rows")
            self.by_rows[name] = self._emit("mul", (real, scale), TensorType(shape), f"{name}.rows")
        return self.by_rows[name]

    def _emit(
        self, op: str, inputs: tuple[str, ...], to: TensorType, hint: str, attrs: Attrs = MappingProxyType({})
    ) -> str:
        name = self.graph.fresh(hint)
        self.graph.types[name] = to
        self.nodes.append(Node(op, inputs, name, attrs))
        return name

    def _is_rounded(self, node: Node) -> bool:
        """Whether a weighted sum reads a rounded value."""
        read = [
            self._widths[edge, stored]
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
        names = list(node.inputs)
        names[1] = self._on_steps(given.inputs[1], f"{node.output}.weight", self.weights.weight(given), node.source)
        if (bias := self.weights.bias(given)) is not None:
            names[2] = self.graph.add_constant(f"{node.output}.bias", bias)
        return replace(node, inputs=tuple(names))

    def _recurrent(self, node: Node, given: Node, int8: Recurrent) -> Node:
        """The steps of a recurrent layer that read a rounded projected input and int8 weights."""
        names = list(node.inputs)
        names[0] = self._rounded(given.inputs[0], int8.projected)
        names[1] = self._on_steps(given.inputs[1], f"{node.output}.weight", self.weights.table(given.inputs[1], "int8"))
        shifts = self.shifts.get(self.values.calls[given.output], node.attrs["shifts"])
        return replace(node, inputs=tuple(names), attrs={**node.attrs, "shifts": shifts})

    def _on_steps(self, name: str, hint: str, steps: Steps, source: str = "") -> str:
        """The name of a constant that is rounded to steps of each of its outputs."""
        graph = self.graph
        if (known := self.constants.get((name, id(steps[0])))) is not None:
            return known
        made = [graph.add_constant(f"{hint}.{part}", x) for part, x in zip(("w", "scale", "zero"), steps, strict=True)]
        real = graph.fresh(hint)
        graph.types[real] = graph.types[name]
        self.nodes.append(Node("dequantize_weight", tuple(made), real, {"axis": 0}, source))
        self.constants[name, id(steps[0])] = real
        return real
