"""Gives values of a calibrated module observers of 16 bits, or none."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.rounder import on_channels_steps
from q8ta_wgpu.frontend.calibrate.stored import ROLES, Role, Storage, Stored, Width
from q8ta_wgpu.frontend.export.editor import call, call_module, folded
from q8ta_wgpu.frontend.nodes import constant


def widen(module: GraphModule, storage: Storage, chosen: Mapping[Reading, Width]) -> None:
    """Gives each role of a value an observer of its width, or none, and transforms and embeddings finer weights."""
    for node in storage.weights:
        if (node, "products") in chosen:
            _add_finer_weights(module, storage, node)
        if (node, "others") in chosen:
            _widen_table(module, storage, node)
    for stored in storage.stored:
        widths = {role: chosen[stored, role] for role in ROLES if (stored, role) in chosen}
        if widths:
            _widen_value(module, stored, widths)
    for node in storage.attention:
        if (node, "others") in chosen:
            _store_shares(module, node)


def _widen_value(module: GraphModule, stored: Stored, widths: Mapping[Role, Width]) -> None:
    for node in stored.nodes:
        value, wide = stored.value(node), None
        for user, reads in stored.users[node].items():
            width = stored.width_for(reads, widths)
            if width == stored.width:
                continue
            if width == "int16":
                wide = wide or call_module(module, node, f"_wide_{node.name}", stored.wide, value)
            user.replace_input_with(node, wide if width == "int16" and wide is not None else value)
        if not node.users:
            module.graph.erase_node(node)
        elif wide is not None:
            node.replace_input_with(value, wide)


def _store_shares(module: GraphModule, softmax: Node) -> None:
    """Lets the products of an attention read 16 bits of its shares."""
    observer, users = scheme.wide(torch.zeros(()), torch.full((), 0.5)), list(softmax.users)
    shares = call_module(module, users[0], f"_wide_{users[0].name}", observer, softmax)
    for user in users:
        user.replace_input_with(softmax, shares)


def _widen_table(module: GraphModule, storage: Storage, node: Node) -> None:
    """Lets embeddings read a table of int16; other readers of it read what they did."""
    (table,) = node.all_input_nodes
    observer = scheme.wide_rows(constant(module, table).detach())
    wide = call_module(module, node, f"_wide_{node.name}", observer, table)
    for user in filter(storage.looks_up, list(node.users)):
        user.replace_input_with(node, wide)
    if not node.users:
        module.graph.erase_node(node)


def _add_finer_weights(module: GraphModule, storage: Storage, node: Node) -> None:
    """Lets transforms sum with the rounding errors of their weights, too, which are int8 as well: 16 bits together."""
    observer, (given,) = storage.weights[node], node.all_input_nodes
    weight = constant(module, given).detach()
    errors = weight - on_channels_steps(weight, observer)
    finer = copy.deepcopy(observer)
    finer.reset_min_max_vals()
    finer(errors)
    rest = call_module(module, node, f"_finer_{node.name}", finer, folded(module, given, "errors", errors, node))
    most = errors.abs().sum([axis for axis in range(errors.dim()) if axis != observer.ch_axis]).max()
    for user in filter(storage.transforms, list(node.users)):
        (read,) = (source for source in user.all_input_nodes if source is not node)
        stored = storage.values[read]
        end = most * torch.max(stored.observer.max_val, -stored.observer.min_val)
        args = [rest if source is node else source for source in user.args]
        small = call(user, user.target, *args, value=user.meta.get("val"))
        stored.users[read][small] = stored.users[read][user]
        small = call_module(module, user, f"_small_{user.name}", scheme.wide(-end, end), small)
        whole = call(user.next, torch.ops.aten.add.Tensor, user, small, like=user, value=user.meta.get("val"))
        user.replace_all_uses_with(whole, delete_user_cb=functools.partial(operator.is_not, whole))
