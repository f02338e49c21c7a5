"""Edits of torch's graphs: new calls, new constants, and traced operators in place of a call.

A new node takes over the position of a call in the user's model. Its value (`meta["val"]`) is computed, since
quantizers need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.nodes import argument_names, constant, is_constant, named_arguments, origins
from q8ta_wgpu.frontend.notes import MADE_OF, note


def call(before: Node, target: Any, *args: Any, like: Node | None = None, value: Any = None, **kwargs: Any) -> Node:
    """A new call before a node, named after its operator, with the position of `like` in the user's model (by default
    the node's). Its value is computed unless `value` is passed."""
    with before.graph.inserting_before(before):
        made = before.graph.create_node("call_function", target, args, kwargs, name_of(target))
    made.meta = {**(like or before).meta, "val": value_of(made) if value is None else value}
    return made


def name_of(target: Any) -> str:
    """The name of an operator, without that of its overload."""
    return str(target.overloadpacket.__name__ if isinstance(target, OpOverload) else target.__name__)


def value_of(node: Node, target: Any = None) -> Any:
    """The value of a call, or of another operator with the call's arguments, from the values of its operands."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    target = target or node.target
    return target(*args, **kwargs)


def new_constant(model: GraphModule, before: Node, name: str, value: Tensor, like: Node | None = None) -> Node:
    """A new buffer or parameter of the model, read before a node, with the position of `like` in the user's model."""
    if isinstance(value, torch.nn.Parameter):
        model.register_parameter(name, value)
    else:
        model.register_buffer(name, value)
    with before.graph.inserting_before(before):
        made = before.graph.get_attr(name)
    made.meta = dict((like or before).meta)
    known = [v for v in pytree.tree_leaves(made.meta.get("val")) if hasattr(v, "fake_mode")]
    if known:  # torchao's own calls have no values
        made.meta["val"] = known[0].fake_mode.from_tensor(value, static_shapes=True)
    return made


def operators_of(function: Callable[..., Any], values: Sequence[Any], table: Mapping[Any, Callable[..., Any]]) -> Graph:
    """The operators that torch traces for a function of tensors with these values. `table` has the decompositions."""
    graph: Graph = make_fx(function, decomposition_table=dict(table))(*values).graph
    return graph


def splice(before: Node, operators: Graph, sources: Sequence[Node]) -> list[Node]:
    """Inserts traced operators before a node, with its position in the user's model and with `sources` as inputs.
    Returns the nodes of their results."""
    nodes: dict[Node, Node] = dict(zip(operators.find_nodes(op="placeholder"), sources, strict=True))
    with before.graph.inserting_before(before):
        for made in operators.nodes:
            if made.op not in ("placeholder", "output"):
                nodes[made] = before.graph.node_copy(made, nodes.__getitem__)
                nodes[made].meta = {**before.meta, "val": made.meta["val"]}
    return [nodes[result] for result in pytree.tree_leaves(operators.output_node().args[0])]


def replace(program: ExportedProgram, node: Node, same: Node) -> None:
    """Replaces a node by another one of the same value, also as a result of the program."""
    node.replace_all_uses_with(same, delete_user_cb=lambda user: user is not same)
    program.graph_signature.replace_all_uses(node.name, same.name)


def tensors_of(model: GraphModule, node: Node) -> dict[str, Tensor]:
    """The constant arguments of a node by name, in float64."""
    arguments = named_arguments(node)
    constants = {name: n for name, n in arguments.items() if isinstance(n, Node) and is_constant(n)}
    return {name: constant(model, n).detach().double() for name, n in constants.items()}


def set_constants(model: GraphModule, node: Node, tensors: Mapping[str, Tensor], other: Node | None = None) -> None:
    """Replaces constant arguments of a node by what was computed from them, and from those of another node; parameters
    become float32."""
    before = node.all_input_nodes
    read = [*before, *(other.all_input_nodes if other is not None else ())]
    made_of = list(dict.fromkeys(name for source in read if is_constant(source) for name in origins(source)))
    names, arguments = argument_names(node), named_arguments(node)
    for name, value in tensors.items():
        arguments[name] = folded(model, node, name, value)
        note(arguments[name], MADE_OF, made_of)
    positional = names[: max(len(node.args), *(names.index(name) + 1 for name in tensors))]
    node.args = tuple(
        arguments.pop(name, None) for name in positional
    )  # None for arguments before a weight or bias that the call leaves out
    node.kwargs = arguments
    for n in before:
        if is_constant(n) and not n.users:
            model.graph.erase_node(n)


def folded(model: GraphModule, node: Node, name: str, value: Tensor, before: Node | None = None) -> Node:
    """A new float32 parameter for a node to read as `name`. It is inserted before the node, or before the node through
    which it is read."""
    parameter = torch.nn.Parameter(value.float().contiguous(), requires_grad=False)
    made = new_constant(model, before or node, f"{node.name}_folded_{name}", parameter, like=node)
    made.meta = {"val": made.meta["val"]}  # without the notes of the call
    return made
