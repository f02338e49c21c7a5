"""Quantizes and dequantizes where a plan says that a float graph stores values, and weights on their steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.passes.plan.left_out import taken_elements
from q8ta_wgpu.passes.plan.rounding import rounding_of
from q8ta_wgpu.passes.plan.storage import Rounding, Shared, Storage
from q8ta_wgpu.quantization.ranges import EPS, LARGEST_WEIGHT, Range
from q8ta_wgpu.quantization.weight_rounding import Inputs, rounded
from q8ta_wgpu.quantization.zeros import Zeros

Slot = tuple[str, str]
"""A place where a value is rounded: (call that reads it, value), or ('', value) where it is computed."""


@dataclass
class FloatProgram:
    """A float graph and what its values are in the user's program.

    Attributes:
        graph: without quantizes, but for those of bools.
        observable: the floats that calls of the user's program give, and inputs.
        calls: the call that each node is part of, by the node's output.
        moving: kinds of the calls that give elements of what they read.
        names: observable values by their names in the user's program.
    """

    graph: Graph
    observable: set[str] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    moving: dict[str, Int8] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


class Calibration:
    """A float program on its way to int8.

    Args:
        program: whose graph becomes the quantized one.
        streams: whether residual streams are stored in 16 bits.
        fit_weights: whether weights are fitted to what their layers read, and biases corrected.
    """

    def __init__(self, program: FloatProgram, streams: bool, fit_weights: bool) -> None:
        self._streams = streams
        self._weights: dict[str, Sequence[Array]] = {}
        self.graph, self.calls = program.graph, program.calls
        self.plan = rounding_of(self.graph, program.observable, program.calls, program.moving, streams=streams)
        calls, kept = self.calls, self.plan.in_float
        self.graph.in_float |= {n.output: kept[calls[n.output]] for n in self.graph.nodes if calls[n.output] in kept}
        self._slots, self._taken = _Slots(self.plan), taken_elements(self.graph)
        self._ranges = {root: Range() for root in self._slots.roots}
        read = {call for call, _ in self.plan.reads}
        sums = [n for n in self.graph.nodes if self._has_weight(n) and self.calls[n.output] in read]
        self._sums = {node.output: node for node in sums}
        self._inputs = {n.output: _inputs(self.graph, n) for n in sums} if fit_weights else {}

    def _has_weight(self, node: Node) -> bool:
        constant = all(name in self.graph.constants for name in node.inputs[1:3])
        return isinstance(OPS[node.op].int8, WeightedSum) and constant

    def meet(self, inputs: Mapping[str, Array], item: int, known: Mapping[str, Array] | None = None) -> None:
        """Counts the values that the graph computes of one item's inputs, but for those that are known. Raises
        InputError where one is NaN or infinite."""
        readers: dict[str, list[Inputs]] = {}
        for node in self._sums.values() if self._inputs else ():
            readers.setdefault(node.inputs[0], []).append(self._inputs[node.output])

        def met(name: str, array: Array) -> None:
            ranges = self._slots.of_value.get(name, ())
            if (ranges or name in readers) and not np.isfinite(array).all():
                raise InputError(
                    f"item {item} of the calibration leads to NaN or an infinity at {name}: clean the calibration data"
                )
            for root in ranges:
                self._ranges[root].meet(array)
            for layer in readers.get(name, ()):
                layer.meet(array)

        zeros = Zeros(self._taken, self.graph.constants, met)
        for name, array in {**({} if item else self.graph.constants), **inputs}.items():
            zeros.meet(name, array)
        known = known or {}
        run(self._needed(known), inputs, met=zeros.meet, known=known)
        for each in self._ranges.values():
            each.peaks.end_item()

    @property
    def wanted(self) -> set[str]:
        """The values that are counted."""
        return {*self._slots.of_value, *(node.inputs[0] for node in self._sums.values() if self._inputs)}

    def _needed(self, known: Collection[str]) -> Graph:
        """The graph of what is counted and of what it is computed from."""
        graph, needed = self.graph.copy(), self.wanted.union(*self._taken.values())
        for node in reversed(graph.nodes):
            if node.output in needed and node.output not in known:
                needed.update(node.inputs)
        graph.nodes, graph.outputs = [node for node in graph.nodes if node.output in needed], []
        return graph

    def quantized(self) -> Graph:
        """The graph with quantizes and dequantizes, and weights in int8."""
        graph, nodes = self.graph, list[Node]()
        q = {root: met.stored(self._slots.storage(root)) for root, met in self._ranges.items()}
        real: dict[str, str] = {}
        again: dict[tuple[str, Slot], str] = {}

        def stored(name: str, root: Slot) -> str:
            """A value rounded as all of a root are."""
            if (name, root) not in again:
                again[name, root] = _round(graph, nodes, name, q[root])
            return again[name, root]

        for name in (*graph.inputs, *graph.constants):
            if name in self.plan.gives:
                real[name] = stored(name, self._slots.root(("", name)))
        for given in graph.nodes:
            call, names = self.calls[given.output], list(given.inputs)
            for i, name in enumerate(names):
                names[i] = real.get(name, name)
                slot = (call, name)
                if slot in self.plan.reads and not self._is_weight(given, i):
                    root = self._slots.root(slot)
                    given_root = self._slots.root(("", name)) if name in self.plan.gives else None
                    names[i] = names[i] if root == given_root else stored(names[i], root)
            node = replace(given, inputs=tuple(names))
            nodes.append(self._with_weight(node, nodes) if given.output in self._sums else node)
            if given.output in self.plan.gives:
                real[given.output] = stored(given.output, self._slots.root(("", given.output)))
        graph.nodes = nodes
        graph.outputs = [real.get(name, name) for name in graph.outputs]
        return graph

    def quantized_like(self, program: FloatProgram) -> Graph:
        """The graph of the same program at other sizes of its inputs, quantized with the same numbers."""
        other = Calibration(program, self._streams, fit_weights=False)
        other._ranges = {root: self._ranges.get(root, met) for root, met in other._ranges.items()}
        other._weights = self._weights
        return other.quantized()

    def _is_weight(self, node: Node, position: int) -> bool:
        return position > 0 and self._has_weight(node)

    def _with_weight(self, node: Node, nodes: list[Node]) -> Node:
        """A weighted sum that reads int8 weights with a scale for each output."""
        graph, names = self.graph, list(node.inputs)
        if node.output not in self._weights:
            self._weights[node.output] = self._rounded(node)
        hints = ("w", "scale", "zero", "bias")
        *made, names[2] = (
            graph.add_constant(f"{node.output}.{hint}", array)
            for hint, array in zip(hints, self._weights[node.output], strict=True)
        )
        names[1] = graph.fresh(f"{node.output}.weight")
        graph.types[names[1]] = graph.types[node.inputs[1]]
        nodes.append(Node("dequantize_weight", tuple(made), names[1], {"axis": 0}, node.source))
        return replace(node, inputs=tuple(names))

    def _rounded(self, node: Node) -> Sequence[Array]:
        """Weight in int8, scale, zero point, and bias of a weighted sum."""
        graph, inputs = self.graph, self._inputs.get(node.output)
        weight, bias = (graph.constants[name].astype(np.float64) for name in node.inputs[1:3])
        largest = np.abs(weight).max(tuple(range(1, weight.ndim)))
        scale = np.maximum(largest / LARGEST_WEIGHT, EPS).astype(np.float32)
        step = scale.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
        ends = (-LARGEST_WEIGHT, LARGEST_WEIGHT)
        values = rounded(weight, step, ends, inputs.covariance() if inputs is not None else None)
        if inputs is not None and inputs.mean is not None:
            moved = _moved(graph, node, inputs.mean, values - weight)
            bias = np.where(bias == 0, bias, bias - moved) if inputs.zeros else bias - moved
        steps = np.rint(values / step).astype(np.int8)
        return steps, scale, np.zeros(len(scale), np.int32), bias.astype(np.float32)


class _Slots:
    """The places where values are rounded, those that share a scale under one root.

    Attributes:
        of_value: by a value's name, the roots of the places where it is rounded.
    """

    def __init__(self, plan: Rounding) -> None:
        self.plan = plan
        self._first: dict[str, Slot] = {}
        for slot in plan.reads:
            self._first.setdefault(slot[0], slot)
        self._parent: dict[Slot, Slot] = {}
        alike: dict[tuple[str, Storage], Slot] = {}
        given = [(("", name), storage) for name, storage in plan.gives.items()]
        for slot, storage in (*given, *plan.reads.items()):
            self._parent.setdefault(slot, slot)
            if isinstance(storage, Shared):
                self._join(self._first[storage.call], slot)
            self._join(alike.setdefault((slot[1], self._own(slot)), slot), slot)
        self.of_value: dict[str, list[Slot]] = {}
        for slot in self._parent:
            roots = self.of_value.setdefault(slot[1], [])
            if (root := self.root(slot)) not in roots:
                roots.append(root)

    @property
    def roots(self) -> set[Slot]:
        """One of each place that shares a scale."""
        return set(map(self.root, self._parent))

    def root(self, slot: Slot) -> Slot:
        """The place that stands for all that share its scale."""
        while (parent := self._parent[slot]) != slot:
            slot = parent
        return slot

    def storage(self, slot: Slot) -> Storage:
        """How what shares a scale with a place is stored."""
        return self._own(self.root(slot))

    def _own(self, slot: Slot) -> Storage:
        storage = self.plan.reads[slot] if slot[0] else self.plan.gives[slot[1]]
        while isinstance(storage, Shared):
            storage = self.plan.reads[self._first[storage.call]]
        return storage

    def _join(self, first: Slot, second: Slot) -> None:
        self._parent.setdefault(first, first)
        a, b = self.root(first), self.root(second)
        self._parent[b] = a


def _round(graph: Graph, nodes: list[Node], name: str, q: QParams) -> str:
    """A value rounded: quantized and dequantized."""
    shape, (low, high) = graph.types[name].shape, q.range
    made, back = graph.fresh(f"{name}.stored"), f"{name}.real"
    graph.types[made] = TensorType(shape, q.dtype, q)
    nodes.append(Node("quantize", (name,), made, {"lo": low, "hi": high}))
    back = graph.fresh(back)
    graph.types[back] = TensorType(shape)
    nodes.append(Node("dequantize", (made,), back))
    return back


def _inputs(graph: Graph, node: Node) -> Inputs:
    """What a weighted sum reads, counted."""
    shape, attrs = graph.types[node.inputs[1]].shape, node.attrs
    if node.op != "conv2d":
        return Inputs(shape, [], 1, told=node.op == "linear")
    top, left, bottom, right = attrs["padding"]
    pads = ((top, bottom), (left, right))
    return Inputs(shape, list(zip(attrs["stride"], pads, attrs["dilation"], strict=True)), attrs["groups"], told=True)


def _moved(graph: Graph, node: Node, mean: Array, change: Array) -> Array:
    """By how much a change of the weight moves each output on average."""
    channels = graph.types[node.inputs[2]].shape
    given = graph.call(node)
    types = (TensorType(mean.shape), TensorType(change.shape), TensorType(channels))
    shape = (1, *given.output.shape[-1 if node.op == "linear" else 1 :])
    arrays = (mean.astype(np.float32), change.astype(np.float32), np.zeros(channels, np.float32))
    call = Call(node.op, given.attrs, types, TensorType(shape, FLOAT32))
    found = np.asarray(OPS[node.op].reference(call, arrays)).astype(np.float64)
    axis = found.ndim - 1 if node.op == "linear" else 1
    return np.asarray(found.mean(tuple(i for i in range(found.ndim) if i != axis)))
