"""Reads a float torch module, as it will be quantized, as a FloatProgram."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.export.recurrent_layers import first_states
from q8ta_wgpu.frontend.export.states import states_of
from q8ta_wgpu.frontend.importer.importer import Imported, import_float
from q8ta_wgpu.frontend.nodes import argument_names, constant, is_constant, is_float, is_transform, kind, module_paths
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.int8 import Monotonic, Moves, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.fold_constants import fold_constants
from q8ta_wgpu.quantization.float_program import FloatProgram, Moved
from q8ta_wgpu.quantization.prepare import name_operators


def float_program(module: GraphModule) -> FloatProgram:
    """A float module as a float graph.

    Every call of the module has a value of its own. `names` has torch's name of each input, parameter and call whose
    value is one tensor, `calls` those of the calls.
    """
    imported = import_float(module)
    nodes = {node.name: node for node in module.graph.nodes}
    moved = _moved(imported.graph, imported)
    fold_constants(imported.graph)
    graph, values = imported.graph, imported.values
    found = FloatProgram(
        graph,
        observable={name for name, node in values.items() if is_float(node) and not is_constant(node)},
        calls=dict(imported.calls),
        moving={name: int8 for name, n in nodes.items() if isinstance(int8 := kind(n), Moves | Monotonic)},
        names={name: node.name for name, node in values.items()},
        paths={name: tuple(module_paths(node)) for name, node in nodes.items()},
        results=_results(module, imported),
        states=_states(module, imported),
        begins={node.name for node in first_states(module.graph)},
        tables={name for name, node in values.items() if _is_learned_table(module, node)},
        moved={name: each for name, each in moved.items() if name in graph.constants},
        unfitted={node.output for node in graph.nodes if _has_no_bias(nodes, node.output, imported)},
        transforms={name for name, call in imported.calls.items() if is_transform(nodes[call])},
    )
    name_operators(found)
    return found


def _results(module: GraphModule, imported: Imported) -> list[str]:
    """The values of the results that are no states."""
    names = {node: name for name, node in imported.values.items()}
    leaves = pytree.tree_leaves(module.graph.output_node().args[0])
    results = leaves[: len(leaves) - len(states_of(module))]
    return list(dict.fromkeys(names[node] for node in results if node in names))


def _states(module: GraphModule, imported: Imported) -> dict[str, str]:
    names = {node: name for name, node in imported.values.items()}
    return {names[read]: names[written] for read, written in states_of(module) if written in names}


def _is_learned_table(module: GraphModule, node: Node) -> bool:
    """Whether a node is a table of learned rows that an embedding reads. A computed table, of sines for example, is a
    buffer."""
    reads = any(user.target is torch.ops.aten.embedding.default for user in node.users)
    return reads and is_constant(node) and isinstance(constant(module, node), torch.nn.Parameter)


def _has_no_bias(nodes: dict[str, Node], output: str, imported: Imported) -> bool:
    """Whether a weighted sum belongs to a call that is no convolution or linear, and takes no bias."""
    call = nodes[imported.calls[output]]
    return not (isinstance(kind(call), WeightedSum) and "bias" in argument_names(call))


def _moved(graph: Graph, imported: Imported) -> dict[str, Moved]:
    """The constants that are parameters in another order, as weights of transposed convolutions are."""
    found: dict[str, Moved] = {}
    for node in graph.nodes:
        if node.op in ("view", "permute") and isinstance(OPS[node.op].int8, Moves):
            (name,) = node.inputs
            if name in found or name in graph.constants:
                found[node.output] = found.get(name, Moved(name)).then(graph.call(node))
    return {name: each for name, each in found.items() if each.source in imported.values}
