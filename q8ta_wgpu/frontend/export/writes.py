"""Computes constants that a program assembles by writing into them once, such as masks of shifted windows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from q8ta_wgpu.frontend.export.folding import parameters


def compute_written(program: ExportedProgram) -> None:
    """Makes a constant of values that depend on no input and that a program, which is changed, writes into.

    Torch runs these nodes in the order of the program, including views. Nothing is changed if a value is read before
    the last write into it, if a written value depends on an input, or if a parameter or buffer is written into.
    """
    values, last = _run(program) if any(map(_writes, program.graph.nodes)) else ({}, {})
    written = {
        node: value for node, value in values.items() if isinstance(value, torch.Tensor) and _storage(value) in last
    }
    readers = {node: [user for user in node.users if user not in written] for node in written}
    for node, users in readers.items():
        if any(user < last[_storage(written[node])] or _writes(user) for user in users):
            return
    for node, users in readers.items():
        if users:
            made = _constant(program, node, written[node].clone())
            program.graph_signature.replace_all_uses(node.name, made.name)
            for user in users:
                user.replace_input_with(node, made)
    for node in reversed(written):
        program.graph.erase_node(node)


def _run(program: ExportedProgram) -> tuple[dict[Node, Any], dict[int, Node]]:
    """The values that depend on no input, after all writes into them, and the last write into the memory of each. Empty
    if a parameter or buffer is written into."""
    values: dict[Node, Any] = dict(parameters(program))
    memory = {_storage(value) for value in values.values()}
    last: dict[int, Node] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if not _follows(node, values):
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if _writes(node):
                if not isinstance(args[0], torch.Tensor) or _storage(args[0]) in memory:
                    return {}, {}
                last[_storage(args[0])] = node
            values[node] = node.target(*args, **kwargs)
    return values, last


def _writes(node: Node) -> bool:
    """Whether a call changes its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _follows(node: Node, values: dict[Node, Any]) -> bool:
    """Whether a call's value depends only on known values."""
    target = node.target
    known = all(source in values for source in node.all_input_nodes)
    if isinstance(target, torch._ops.OpOverload):
        return known and torch.Tag.nondeterministic_seeded not in target.tags
    return known and target is operator.getitem


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _constant(program: ExportedProgram, node: Node, value: torch.Tensor) -> Node:
    """Replaces a node of a program by a constant, and returns it."""
    specs = program.graph_signature.input_specs
    position = next(i for i, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT)
    with program.graph.inserting_before(program.graph.find_nodes(op="placeholder")[position]):
        made: Node = program.graph.placeholder(f"c_written_{node.name}")
    made.meta = {"val": node.meta["val"]}
    program.constants[made.name] = value
    specs.insert(position, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), made.name))
    return made
