"""Modules that watch the values of a prepared module while it is calibrated, and give nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call_module

_PREFIX = "_watch_of_"


def watch(model: GraphModule, node: Node, watcher: torch.nn.Module, values: tuple[Any, ...], before: Node) -> None:
    """Calls a module on the values of a node's calls, in front of another node."""
    call_module(model, before, _PREFIX + node.name, watcher, *values)


def unwatch(model: GraphModule, node: Node) -> Any:
    """Takes the module that watched a node out of a calibrated model, with what was made for it alone; returns it."""
    name = _PREFIX + node.name
    (call,) = model.graph.find_nodes(op="call_module", target=name)
    watcher, values = model.get_submodule(name), call.all_input_nodes
    model.graph.erase_node(call)
    for value in values:
        if not value.users:
            model.graph.erase_node(value)
    model.delete_submodule(name)
    return watcher


def watches(node: Node) -> bool:
    """Whether a node is the call of such a module."""
    return node.op == "call_module" and str(node.target).startswith(_PREFIX)
