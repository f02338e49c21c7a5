"""Constants that calls of a float graph are made with: read, multiplied by channel, and given anew."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.norms import new_constant, tensor_of
from q8ta_wgpu.frontend.nodes import is_constant, is_transposed, is_weighted, named_arguments


def by_output(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight with what belongs to each output multiplied."""
    if is_weighted(node) and is_transposed(node):  # (inputs, outputs / groups, ...), of each group its own outputs
        groups = named_arguments(node).get("groups", 1)
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        return (by_group * factor.reshape(groups, 1, -1, *_ones(weight))).reshape(weight.shape)
    return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))


def by_input(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight with what belongs to each input multiplied."""
    if is_transposed(node):
        return weight * factor.reshape(-1, 1, *_ones(weight))
    groups = named_arguments(node).get("groups", 1)  # (outputs, inputs / groups, ...)
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    return (by_group * factor.reshape(groups, 1, -1, *_ones(weight))).reshape(weight.shape)


def _ones(weight: Tensor) -> tuple[int, ...]:
    return (1,) * (weight.dim() - 2)


def tensors_of(model: GraphModule, node: Node) -> dict[str, Tensor]:
    """The constants that a node is called with, by name."""
    given = named_arguments(node)
    return {name: tensor_of(model, n) for name, n in given.items() if isinstance(n, Node) and is_constant(n)}


def give(model: GraphModule, node: Node, tensors: Mapping[str, Tensor]) -> None:
    """Lets a node be called with other constants."""
    before = node.all_input_nodes
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    with model.graph.inserting_before(node):
        arguments = named_arguments(node)
        arguments |= {name: new_constant(model, node, name, value) for name, value in tensors.items()}
    positional = names[: max(len(node.args), *(names.index(name) + 1 for name in tensors))]
    node.args = tuple(arguments.pop(name, None) for name in positional)  # what is left out before a weight or bias
    node.kwargs = arguments
    for n in before:
        if is_constant(n) and not n.users:
            model.graph.erase_node(n)
