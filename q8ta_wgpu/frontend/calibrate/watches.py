"""Modules that record values of a prepared module during calibration, and return nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call_module

_PREFIX = "_watch_of_"


def watch(model: GraphModule, node: Node, watcher: torch.nn.Module, values: tuple[Any, ...], before: Node) -> None:
    """Inserts a call of a module with the values of a node's call, before another node."""
    call_module(model, before, _PREFIX + node.name, watcher, *values)


def unwatch(model: GraphModule, node: Node) -> Any:
    """Removes the module that watched a node from a calibrated model, with nodes that only it read, and returns it."""
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
