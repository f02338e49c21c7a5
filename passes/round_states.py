"""Stores states as integers where they are written as dequantized integers and read through quantizes."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.arithmetic import quantize
from q8ta_wgpu.ir.graph import Graph, State
from q8ta_wgpu.passes.rewriter import Rewriter


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
