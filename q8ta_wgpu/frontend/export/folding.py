"""Constant folding: torch computes what depends on no input once, before any other step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import UnsupportedError, one_line
from q8ta_wgpu.frontend.export.editor import new_constant
from q8ta_wgpu.frontend.nodes import (
    QDQ,
    constant,
    is_constant,
    named_arguments,
    origins,
    quantizes,
    source_of,
)
from q8ta_wgpu.frontend.notes import MADE_OF, SIZES, note, noted

_CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def parameters(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Parameters, buffers and constants of a program, by their placeholders."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}

    def tensor(target: Any) -> torch.Tensor:
        found = program.state_dict.get(target)
        found = program.constants[target] if found is None else found
        assert isinstance(found, torch.Tensor)
        return found

    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return {n: tensor(specs[n.name].target) for n in placeholders if specs[n.name].kind in _CONSTANT_KINDS}


def computed(graph: torch.fx.Graph, known: Mapping[Node, Any], quantizing: bool = False) -> dict[Node, Any]:
    """`known` and the value of every node that depends only on known ones, or on nothing.

    Calls of quantized_decomposed are not folded: an int8 weight is not dequantized, and a float one is quantized only
    if `quantizing`. Random numbers are not folded either. Raises UnsupportedError if a call fails. torch traces shapes
    only, so an index beyond the end of a table (positions of another length, for example) fails only now.
    """
    values: dict[Node, Any] = dict(known)
    with torch.no_grad():
        for node in graph.nodes:
            if (is_pure(node) or (quantizing and quantizes(node))) and all(n in values for n in node.all_input_nodes):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                try:
                    values[node] = node.target(*args, **kwargs)
                except Exception as error:
                    where = source_of(node) or node.name
                    raise UnsupportedError(f"what {where} computes of constants fails: {one_line(error)}") from error
    return values


def is_pure(node: Node) -> bool:
    """Whether a call's value follows from its arguments, and is read."""
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return node.op == "call_function"
    if not isinstance(target, torch._ops.OpOverload) or target.namespace == QDQ or not node.users:
        return False
    return not target._schema.is_mutable and not _is_random(node, target)


def _is_random(node: Node, target: torch._ops.OpOverload) -> bool:
    """Whether torch draws numbers for a call. torch marks attention and dropout as random even if they drop nothing."""
    arguments = {argument.name: argument.default_value for argument in target._schema.arguments} | named_arguments(node)
    drops_nothing = arguments.get("dropout_p") == 0.0 or arguments.get("train") is False
    return torch.Tag.nondeterministic_seeded in target.tags and not drops_nothing


def fold(module: GraphModule, quantizing: bool = False) -> None:
    """Makes an attribute of every value that follows from attributes alone, and removes nodes that nothing reads."""
    known = {
        node: value
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(value := constant(module, node), torch.Tensor)
    }
    values = computed(module.graph, known, quantizing)
    made_of = _made_of(values)
    for node, value in values.items():
        if node in known or not isinstance(value, torch.Tensor) or all(user in values for user in node.users):
            continue
        folded = new_constant(module, node, f"_folded_{node.name}", value.detach().clone())
        note(folded, MADE_OF, made_of[node])
        if quantizing:  # it is elementwise, so its shape follows from the same sizes
            for source in node.all_input_nodes:
                if "shape" in (said := noted(source, SIZES, {})):
                    note(folded, SIZES, said)
        node.replace_all_uses_with(folded)
    for node in reversed(list(values)):  # torch marks attention as random, and does not remove it
        if not node.users:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()


def _made_of(nodes: Iterable[Node]) -> dict[Node, list[str]]:
    """The names of the parameters and buffers from which each node is computed. Nodes are in execution order."""
    found: dict[Node, list[str]] = {}
    for node in nodes:
        sources = (name for source in node.all_input_nodes for name in found.get(source, ()))
        found[node] = origins(node) if is_constant(node) else list(dict.fromkeys(sources))
    return found
