"""The generic rule: dequantize -> x -> (clamps) -> quantize becomes the int8 form of x, whatever x is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import (
    RESIDUAL,
    Arithmetic,
    Elementwise,
    Int8Form,
    Normalization,
    QuantizedCall,
    Weight,
    WeightedSum,
)
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS


@dataclass(frozen=True)
class Tail:
    """What follows an operator: the value that is quantized, clamps on the way, and what joins before rounding."""

    value: str
    clamps: tuple[tuple[float, float], ...] = ()
    residual: str | None = None
    activation: Node | None = None


class View:
    """Producers and readers of a graph's values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers: Mapping[str, Node] = graph.producers()
        self.users: Mapping[str, list[Node]] = graph.users()

    def int8_behind(self, name: str) -> str | None:
        """The int8 value whose dequantize is `name`."""
        node = self.producers.get(name)
        return node.inputs[0] if node is not None and node.op == "dequantize" else None

    def only_reader(self, name: str) -> Node | None:
        """The single node that reads `name`, if there is one and it is no graph output."""
        readers = self.users[name]
        return readers[0] if len(readers) == 1 and name not in self.graph.outputs else None

    def tail(self, node: Node) -> Tail:
        """Follows single readers: for weighted operators one residual add or one activation, then clamps."""
        value = node.output
        reader = self.only_reader(value) if isinstance(OPS[node.op].int8, WeightedSum) else None
        function = OPS[reader.op].int8 if reader is not None else None
        if reader is not None and isinstance(function, Elementwise) and not function.clamp:
            active = self.clamped(reader.output, None)
            if any(u.op == "quantize" for u in self.users[active.value]):
                return replace(active, activation=reader)
        if reader is not None and reader.op == "add" and reader.attrs["alpha"] == 1:
            other = reader.inputs[1] if reader.inputs[0] == value else reader.inputs[0]
            int8 = self.int8_behind(other)
            shape = self.graph.types[reader.output].shape
            if int8 is not None and self.graph.types[value].shape == shape == self.graph.types[other].shape:
                joined = self.clamped(reader.output, int8)
                if any(u.op == "quantize" for u in self.users[joined.value]):
                    return joined
        return self.clamped(value, None)

    def clamped(self, value: str, residual: str | None) -> Tail:
        """The tail from `value` on, through clamps that are each the only reader."""
        clamps: list[tuple[float, float]] = []
        while (reader := self.only_reader(value)) is not None:
            function = OPS[reader.op].int8
            if not isinstance(function, Elementwise) or not function.clamp:
                break
            clamps.append(function.clamp(reader.attrs))
            value = reader.output
        return Tail(value, tuple(clamps), residual)


def fuse_int8(graph: Graph) -> None:
    """Makes every int8 form there is; notes each operator that stays in float between int8 values, and why."""
    view = View(graph)
    replaced: dict[str, Node] = {}
    for node in graph.nodes:
        op = OPS[node.op]
        if not isinstance(op.int8, WeightedSum | Normalization | Arithmetic | Elementwise):
            continue
        tail = view.tail(node)
        quantizes = [u for u in view.users[tail.value] if u.op == "quantize" and u.output not in replaced]
        for quantize in quantizes:
            reason = _lower(graph, view, op, node, tail, quantize, replaced)
            if reason:
                _note(graph, node, reason)
        floats = [u for u in view.users[tail.value] if u.op != "quantize"]
        if isinstance(op.int8, WeightedSum) and (floats or tail.value in graph.outputs):
            reason = _lower(graph, view, op, node, Tail(node.output), None, replaced)
            if reason and reason is not NOT_QUANTIZED:
                _note(graph, node, reason)
    graph.nodes = [replaced.get(node.output, node) for node in graph.nodes]


NOT_QUANTIZED = "an input is not quantized"


def _note(graph: Graph, node: Node, reason: str) -> None:
    place = f" ({node.source})" if node.source else ""
    text = f"{node.output}: {node.op} stays in float32: {reason}{place}"
    if text not in graph.notes:
        graph.notes.append(text)


def _lower(
    graph: Graph, view: View, op: Op, node: Node, tail: Tail, quantize: Node | None, replaced: dict[str, Node]
) -> str:
    """Records the int8 node that replaces `quantize` (or, with None, `node` itself); returns why it cannot."""
    call = _quantized_call(graph, view, op, node, tail, quantize)
    form = call if isinstance(call, str) else _int8_form(op, call)
    if isinstance(form, str):
        return form
    output = quantize.output if quantize else node.output
    inputs: list[str] = []
    for operand in form.operands:
        if isinstance(operand, np.ndarray):
            name = OPS[form.op].operand(len(inputs), form.attrs).name
            inputs.append(graph.add_constant(f"{output}.{name}", operand))
        elif operand == RESIDUAL:
            assert tail.residual is not None
            inputs.append(tail.residual)
        else:
            inputs.append(_int8_operand(view, node.inputs[operand]))
    replaced[output] = Node(form.op, tuple(inputs), output, form.attrs, node.source)
    return ""


def _int8_operand(view: View, name: str) -> str:
    found = view.int8_behind(name)
    assert found is not None
    return found


def _quantized_call(
    graph: Graph, view: View, op: Op, node: Node, tail: Tail, quantize: Node | None
) -> QuantizedCall | str:
    q: list[QParams | None] = []
    constants: dict[int, Weight | Array] = {}
    for position, name in enumerate(node.inputs):
        int8 = view.int8_behind(name)
        if int8 is not None and not op.operand(position, node.attrs).constant:
            q.append(graph.types[int8].q)
            continue
        q.append(None)
        constant = _constant(graph, view, name)
        if constant is None:
            return NOT_QUANTIZED
        constants[position] = constant
    out = graph.types[quantize.output].q if quantize else None
    lo, hi = (quantize.attrs["lo"], quantize.attrs["hi"]) if quantize else (-128, 127)
    if tail.clamps:
        assert out is not None
        low, high = tail.clamps[0]
        for bounds in tail.clamps[1:]:  # the last one wins where they do not overlap
            low, high = (float(np.clip(end, *bounds)) for end in (low, high))
        lo, hi = arithmetic.clamp_bounds(out, low, high, lo, hi)
    residual = graph.types[tail.residual].q if tail.residual else None
    activation = _function(tail.activation) if tail.activation else None
    inputs = tuple(graph.types[name] for name in node.inputs)
    return QuantizedCall(node.attrs, inputs, tuple(q), constants, out, lo, hi, residual, activation)


def _function(node: Node) -> Callable[[Array], Array]:
    kind = OPS[node.op].int8
    assert isinstance(kind, Elementwise)
    return lambda x: kind.function(x, node.attrs)


def _constant(graph: Graph, view: View, name: str) -> Weight | Array | None:
    if name in graph.constants:
        return graph.constants[name]
    node = view.producers.get(name)
    if node is None or any(i not in graph.constants for i in node.inputs):
        return None
    if node.op == "dequantize_weight":
        values, scale, zero = (graph.constants[i] for i in node.inputs)
        return Weight(values, scale.astype(np.float64), zero.astype(np.int64), node.attrs["axis"])
    if node.op == "dequantize":
        t = graph.types[node.inputs[0]]
        assert t.q is not None
        channels = t.shape[0] if t.shape else 1
        scale = np.full(channels, t.q.scale)
        return Weight(graph.constants[node.inputs[0]], scale, np.full(channels, t.q.zero), 0)
    return None


def _int8_form(op: Op, call: QuantizedCall) -> Int8Form | str:
    match op.int8:
        case Elementwise(function):
            if call.q[0] is None or call.out is None:
                return NOT_QUANTIZED
            values = function(arithmetic.levels(call.q[0]), call.attrs)
            return Int8Form("q8ta_table", (0, arithmetic.table(values, call.out, call.lo, call.hi)), {})
        case WeightedSum(lower) | Normalization(lower) | Arithmetic(lower):
            return lower(call)
    return NOT_QUANTIZED
