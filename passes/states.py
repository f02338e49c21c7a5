"""Where a graph's states are stored: as integers where they are read and written as such, and, for a target, in the
memory that the next run reads them from."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.arithmetic import quantize
from q8ta_wgpu.ir.graph import Graph, Node, State
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.update import in_words
from q8ta_wgpu.passes.rewriter import Rewriter

STORE = "store"
"""The operator whose result is the memory that a state is read from."""


ROWS, TURNED = "update_rows", "q8ta_rotary_update"
"""The operators that write only some rows into that memory: as they are, or after a rotary embedding."""


def round_states(graph: Graph) -> None:
    """Stores each state as integers that is written by a dequantize, and that all readers quantize in the same way."""
    for place, state in enumerate(graph.states):
        _round(graph, len(graph.results) + place, state)


def _round(graph: Graph, place: int, state: State) -> None:
    rewriter = Rewriter(graph)
    dequantize, readers = rewriter.producer(state.written), rewriter.readers(state.read)
    if dequantize is None or dequantize.op != "dequantize" or state.read in graph.outputs:
        return
    integers = dequantize.inputs[0]
    t, q = graph.types[integers], graph.types[integers].q
    if q is None or integers in graph.inputs:
        return
    stored = (q, *q.range)
    if any(r.op != "quantize" or (graph.types[r.output].q, r.attrs["lo"], r.attrs["hi"]) != stored for r in readers):
        return
    initial = quantize(graph.constants[state.initial], q, *q.range)
    names = {reader.output: state.read for reader in readers}
    graph.nodes = [
        replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.output not in names
    ]
    graph.types[state.read] = t
    graph.outputs = [names.get(name, name) for name in graph.outputs]
    graph.outputs[place] = integers
    added = graph.add_constant(f"{state.name}.initial", initial, t.dtype, q)
    graph.buffers[state.name] = replace(graph.buffers[state.name], initial=added)


def store_states(graph: Graph, target: Target) -> None:
    """Ends the graph with a `store` for each state, after all readers of the old one. Results and new states that lie
    in an old state's memory are copied first. An `update` of some rows writes them in place, if no later node reads the
    old state."""
    for state in graph.states:
        _write_rows(graph, state)
    stored = {node.output for node in graph.nodes if node.op in (STORE, ROWS, TURNED)}
    if all(state.written in stored for state in graph.states):
        return
    makers = {node.output: node for node in graph.nodes}
    reads = {state.read for state in graph.states}

    def is_read(name: str) -> bool:
        """Whether a value is an old state, or a view of one."""
        while name in makers and makers[name].op in ("view", "permute"):
            name = makers[name].inputs[0]
        return name in reads

    def copied(name: str, hint: str) -> str:
        made = graph.fresh(hint)
        graph.types[made] = graph.types[name]
        graph.nodes.append(Node(STORE, (name,), made, {}, f"{name} is kept"))
        return made

    results = [copied(name, f"{name}.before") if is_read(name) else name for name in graph.results]
    written = [s.written for s in graph.states]
    written = [copied(name, f"{name}.before") if is_read(name) else name for name in written]
    written = [
        name if name in stored else copied(name, f"{s.name}.stored")
        for name, s in zip(written, graph.states, strict=True)
    ]
    graph.outputs = [*results, *written]


def _write_rows(graph: Graph, state: State) -> None:
    """Replaces an `update` of a state by an operator that writes its rows in place, where no later node reads the old
    state."""
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    place = places.get(state.written, -1)
    node = graph.nodes[place]
    alone = [each.written for each in graph.states].count(state.written) == 1
    if place < 0 or node.op != "update" or node.inputs[0] != state.read or not alone:
        return
    if in_words(graph.types[state.read], node.attrs["dim"]):
        return
    seen = {state.read}
    for at, reader in enumerate(graph.nodes):
        if seen.isdisjoint(reader.inputs) or at == place:
            continue
        if at > place:
            return
        if reader.op in ("view", "permute"):
            seen.add(reader.output)
    if seen.isdisjoint(graph.outputs) and seen.isdisjoint(node.inputs[1:]):
        dim = node.attrs["dim"]
        attrs = {**node.attrs, "extent": graph.types[state.read].shape[dim]}
        made = _rotary_before(graph, node.inputs[1])
        op, rows, more = (ROWS, node.inputs[1:2], {}) if made is None else (TURNED, made.inputs, made.attrs)
        graph.nodes[place] = Node(op, (*rows, *node.inputs[2:]), node.output, {**more, **attrs}, node.source)


def _rotary_before(graph: Graph, name: str) -> Node | None:
    """The rotary embedding whose result is only read as rows of an update. None where its operands may lie in a state's
    memory, which would be overwritten while it is read."""
    made = next((node for node in graph.nodes if node.output == name and node.op == "q8ta_rotary"), None)
    once = [name in node.inputs for node in graph.nodes].count(True) == 1 and name not in graph.outputs
    states = {state.read for state in graph.states}
    for node in graph.nodes:
        if node.op in ("view", "permute") and node.inputs[0] in states:
            states.add(node.output)
    return made if made is not None and once and states.isdisjoint(made.inputs) else None
