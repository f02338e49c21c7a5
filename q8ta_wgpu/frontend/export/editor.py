"""Edits of torch's graphs: new calls, new constants, and traced operators in place of a call.

What is made takes over where a call is in the user's model, and knows its value (`meta["val"]`), as quantizers need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.nodes import argument_names, constant, is_constant, named_arguments


def call(before: Node, target: Any, *args: Any, like: Node | None = None, value: Any = None, **kwargs: Any) -> Node:
    """A call in front of a node, at the place of `like` in the user's model, by default that node's. Its value is
    computed, unless it is given."""
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, args, kwargs)
    made.meta = {**(like or before).meta, "val": value_of(made) if value is None else value}
    return made


def call_module(model: GraphModule, before: Node, name: str, module: torch.nn.Module, *args: Any) -> Node:
    """A call of a module of the model's own, new or known by this name, in front of a node."""
    if not hasattr(model, name):
        model.add_submodule(name, module)
    with before.graph.inserting_before(before):
        return before.graph.call_module(name, args)


def value_of(node: Node, target: Any = None) -> Any:
    """The value of a call, or of another operator's with its arguments, by those of what it reads."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    target = target or node.target
    return target(*args, **kwargs)


def new_constant(model: GraphModule, before: Node, name: str, value: Tensor, like: Node | None = None) -> Node:
    """A buffer of the model's own, or a parameter, in front of a node, at the place of `like` in the user's model."""
    if isinstance(value, torch.nn.Parameter):
        model.register_parameter(name, value)
    else:
        model.register_buffer(name, value)
    with before.graph.inserting_before(before):
        made = before.graph.get_attr(name)
    made.meta = dict((like or before).meta)
    known = [v for v in pytree.tree_leaves(made.meta.get("val")) if hasattr(v, "fake_mode")]
    if known:  # the calls that torchao makes have no values
        made.meta["val"] = known[0].fake_mode.from_tensor(value, static_shapes=True)
    return made


def operators_of(function: Callable[..., Any], values: Sequence[Any], table: Mapping[Any, Callable[..., Any]]) -> Graph:
    """The operators that torch makes of a function of tensors for these values; `table` says how they decompose."""
    graph: Graph = make_fx(function, decomposition_table=dict(table))(*values).graph
    return graph


def splice(before: Node, operators: Graph, sources: Sequence[Node]) -> list[Node]:
    """Traced operators in front of a node and at its place in the user's model, reading `sources`; what gives their
    results."""
    nodes: dict[Node, Node] = dict(zip(operators.find_nodes(op="placeholder"), sources, strict=True))
    with before.graph.inserting_before(before):
        for made in operators.nodes:
            if made.op not in ("placeholder", "output"):
                nodes[made] = before.graph.node_copy(made, nodes.__getitem__)
                nodes[made].meta = {**before.meta, "val": made.meta["val"]}
    return [nodes[result] for result in pytree.tree_leaves(operators.output_node().args[0])]


def replace(program: ExportedProgram, node: Node, same: Node) -> None:
    """Puts another node in place of one whose value it has, also where the program returns that."""
    node.replace_all_uses_with(same, delete_user_cb=lambda user: user is not same)
    program.graph_signature.replace_all_uses(node.name, same.name)


def tensors_of(model: GraphModule, node: Node) -> dict[str, Tensor]:
    """The constants that a node is called with, by name, in float64."""
    given = named_arguments(node)
    constants = {name: n for name, n in given.items() if isinstance(n, Node) and is_constant(n)}
    return {name: constant(model, n).detach().double() for name, n in constants.items()}


def give(model: GraphModule, node: Node, tensors: Mapping[str, Tensor]) -> None:
    """Lets a node be called with other constants, parameters in float32."""
    before = node.all_input_nodes
    names, arguments = argument_names(node), named_arguments(node)
    arguments |= {name: folded(model, node, name, value) for name, value in tensors.items()}
    positional = names[: max(len(node.args), *(names.index(name) + 1 for name in tensors))]
    node.args = tuple(arguments.pop(name, None) for name in positional)  # what is left out before a weight or bias
    node.kwargs = arguments
    for n in before:
        if is_constant(n) and not n.users:
            model.graph.erase_node(n)


def folded(model: GraphModule, node: Node, name: str, value: Tensor, before: Node | None = None) -> Node:
    """A parameter in float32 that a node is to read as `name`, in front of it or of what it reads that by."""
    parameter = torch.nn.Parameter(value.float().contiguous(), requires_grad=False)
    made = new_constant(model, before or node, f"{node.name}_folded_{name}", parameter, like=node)
    made.meta = {"val": made.meta["val"]}  # nothing that was noted of the call
    return made
