"""Operators of a float graph that change nothing at inference: none may part what is rounded as one."""

from __future__ import annotations

from torch.fx import GraphModule, Node

_IDENTITIES = ("aten.dropout.default", "aten.feature_dropout.default", "aten.alias.default")


def remove_identities(model: GraphModule) -> None:
    """Takes aliases, and dropouts that are not training, out of a graph. A clone may be what a view needs: it stays."""
    for node in list(model.graph.nodes):
        if str(node.target) not in _IDENTITIES or (len(node.args) > 2 and node.args[2]):
            continue
        source = node.args[0]
        assert isinstance(source, Node)
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
