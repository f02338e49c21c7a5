"""Lets dispatches keep the states of a graph: what is written last is stored where the next run reads it."""

from __future__ import annotations

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.target import Target

STORE = "store"
"""The operator whose result is the memory that a state is read from."""


def store_states(graph: Graph, target: Target) -> None:
    """Ends the graph with a `store` for every state, when all that reads the old ones has run. Results and new states
    that are an old state's own memory are copied before."""
    stored = {node.output for node in graph.nodes if node.op == STORE}
    if all(state.written in stored for state in graph.states):
        return
    makers = {node.output: node for node in graph.nodes}
    reads = {state.read for state in graph.states}

    def is_read(name: str) -> bool:
        """Whether a value is a state as it was before the run, seen in another shape or not."""
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
    written = [copied(name, f"{s.name}.stored") for name, s in zip(written, graph.states, strict=True)]
    graph.outputs = [*results, *written]
