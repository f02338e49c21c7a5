"""How states are rounded: what a module reads and writes from call to call is stored at one scale, and finely where
errors would add up."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.importer.importer import Imported
from q8ta_wgpu.frontend.nodes import kind
from q8ta_wgpu.frontend.notes import IN_FLOAT, note
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Moves
from q8ta_wgpu.passes.plan.storage import INT8, INT16, Rounding

_STATE = "q8ta_state"
"""In the meta of the input of a state: the place of its result from the end."""

_SUMS = tuple(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub"))


def mark_states(graph: GraphModule, count: int) -> None:
    """Lets the last inputs of a graph, so many, know which result is theirs. Copies are dropped, but for those that lay
    elements out anew: they were made because of writes, and nothing is written into any more."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        source = node.all_input_nodes[0]
        if node.meta["val"].stride() == source.meta["val"].stride():
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
    for place, node in enumerate(graph.graph.find_nodes(op="placeholder")[-count:]):
        node.meta[_STATE] = place - count


def states_of(graph: GraphModule) -> list[tuple[Node, Node]]:
    """Each state as it is read and as it is written: the last inputs and results of a graph."""
    results: Any = graph.graph.output_node().args[0]
    reads = [node for node in graph.graph.find_nodes(op="placeholder") if _STATE in node.meta]
    return [(node, results[node.meta[_STATE]]) for node in reads]


def keep_sums(graph: GraphModule) -> None:
    """Leaves a running sum in float32: what is counted from call to call has no range."""
    for read, written in states_of(graph):
        if written.target in _SUMS and read in written.all_input_nodes:
            note(written, IN_FLOAT, True)


def widen_states(graph: GraphModule, imported: Imported, plan: Rounding) -> None:
    """Stores in 16 bits what is computed from what it was, element by element: such errors last from call to call."""
    for read, written in states_of(graph):
        reads = [key for key in plan.reads if imported.values.get(key[1]) is read]
        gives = [name for name in plan.gives if imported.values.get(name) is written]
        readers = [node for node in read.users if node.op == "call_function"]
        exact = all((int8 := kind(node)) is not None and int8.reads_int16 for node in readers)
        if exact and _is_carried(written, read) and all(plan.gives[name] == INT8 for name in gives):
            plan.gives.update(dict.fromkeys(gives, INT16))
            plan.reads.update(dict.fromkeys(reads, INT16))


def _is_carried(written: Node, read: Node) -> bool:
    """Whether a state is computed from what it was, element by element, not moved or chosen alone."""
    met = {(written, False)}
    for node, computed in (waiting := list(met)):
        int8, chosen = kind(node), node.target is torch.ops.aten.where.self
        if not isinstance(int8, Arithmetic | Elementwise | Moves):
            continue
        computed = computed or not (chosen or isinstance(int8, Moves))
        for found in ((source, computed) for source in node.all_input_nodes):
            if found not in met:
                met.add(found)
                waiting.append(found)
    return (read, True) in met


def share_states(observed: GraphModule) -> None:
    """Lets one observer watch a state as it is read and as it is written, where both have one width: it is stored at
    one scale."""
    for state, result in states_of(observed):
        written = observer_of(observed, result)
        for user in list(state.users):
            read = observer_of(observed, user)
            if read is None or written is None or read is written or read.quant_max != written.quant_max:
                continue
            for call in observed.graph.find_nodes(op="call_module"):
                if observer_of(observed, call) is read:
                    setattr(observed, str(call.target), written)


def store_finely(observed: GraphModule) -> None:
    """Stores a state in 16 bits where that is what the next call reads of it."""
    output = observed.graph.output_node()
    results: Any = output.args[0]
    found = list(results)
    for read, written in states_of(observed):
        reading = [observer_of(observed, user) for user in read.users]
        for value in written.all_input_nodes if observer_of(observed, written) is not None else ():
            observer = observer_of(observed, value)
            if observer is not None and observer in reading:
                found[read.meta[_STATE]] = value
    output.args = (tuple(found),)
