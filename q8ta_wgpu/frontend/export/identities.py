"""Operators of a float graph that change nothing at inference: none may part what is rounded as one."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import named_arguments

_DROPOUTS = tuple(f"aten.{name}.default" for name in ("dropout", "dropout_", "feature_dropout", "feature_dropout_"))


def is_idle_dropout(node: Node) -> bool:
    """Whether a node is a dropout that is not training."""
    return str(node.target) in _DROPOUTS and not named_arguments(node)["train"]


def remove_identities(model: GraphModule) -> None:
    """Takes aliases, dropouts that are not training, and what only asks for the dtype of a tensor that is converted out
    of a graph. A clone may be what a view needs: it stays."""
    for node in list(model.graph.nodes):
        if str(node.target) == "aten._assert_tensor_metadata.default":
            model.graph.erase_node(node)
            continue
        if str(node.target) != "aten.alias.default" and not is_idle_dropout(node):
            continue
        source = node.args[0]
        assert isinstance(source, Node)
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
