"""Constants that a program puts together by writing into them, as masks of shifted windows are: computed once."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from q8ta_wgpu.frontend.export.folding import parameters


def compute_written(program: ExportedProgram) -> None:
    """Makes a constant of a program, which is one's own, of what it writes into values that depend on no input.

    Torch runs what makes them in the order of the program, views and all. Nothing is changed where one is read before
    it is written into for the last time, where what is written depends on an input, or where a parameter or buffer is
    written into.
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
    """The values that depend on no input, after all writes into them, and the last write into the memory of each that
    has one; nothing at all where a parameter or buffer is written into."""
    values: dict[Node, Any] = dict(parameters(program))
    kept = {_storage(value) for value in values.values()}
    last: dict[int, Node] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if not _follows(node, values):
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if _writes(node):
                if not isinstance(args[0], torch.Tensor) or _storage(args[0]) in kept:
                    return {}, {}
                last[_storage(args[0])] = node
            values[node] = node.target(*args, **kwargs)
    return values, last


def _writes(node: Node) -> bool:
    """Whether a call changes its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _follows(node: Node, values: dict[Node, Any]) -> bool:
    """Whether a call's value follows from values that are known."""
    target = node.target
    known = all(source in values for source in node.all_input_nodes)
    if isinstance(target, torch._ops.OpOverload):
        return known and torch.Tag.nondeterministic_seeded not in target.tags
    return known and target is operator.getitem


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _constant(program: ExportedProgram, node: Node, value: torch.Tensor) -> Node:
    """A constant of a program that takes the place of a node in it."""
    specs = program.graph_signature.input_specs
    place = next(i for i, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT)
    with program.graph.inserting_before(program.graph.find_nodes(op="placeholder")[place]):
        made: Node = program.graph.placeholder(f"c_written_{node.name}")
    made.meta = {"val": node.meta["val"]}
    program.constants[made.name] = value
    specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), made.name))
    return made
