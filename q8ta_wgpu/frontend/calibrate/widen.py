"""Changes a calibrated module so that chosen values are stored in int16 or stay in float32.

An observer says how a value is stored. Its readers take the int8 observer's result, an int16 observer's, or the value
itself.
"""

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
from q8ta_wgpu.frontend.calibrate.stored import Storage, Stored
from q8ta_wgpu.frontend.calibrate.zeroed import restore_left_out
from q8ta_wgpu.frontend.export.editor import call, call_module, folded
from q8ta_wgpu.frontend.nodes import constant
from q8ta_wgpu.quantization.ranges import ROOM
from q8ta_wgpu.quantization.stored import ROLES, Role, Width


def widen(module: GraphModule, storage: Storage, chosen: Mapping[Reading, Width]) -> None:
    """Applies the choice of widths to values, and to weights that transforms and embeddings read. Elements that a where
    leaves out are no longer zeros.

    Args:
        module: the calibrated module, changed in place.
        storage: what is stored, and who reads it.
        chosen: the width of each value, or weight, for readers of one role. What is not in it keeps its width.
    """
    restore_left_out(module)
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
    """Lets each reader of a value read it in its width. An observer that nothing reads any more is removed."""
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
    """Stores the results of an attention's softmax in int16 for the products that read them."""
    observer, users = scheme.wide(torch.zeros(()), torch.full((), 1 / ROOM)), list(softmax.users)  # at most 1
    shares = call_module(module, users[0], f"_wide_{users[0].name}", observer, softmax)
    for user in users:
        user.replace_input_with(softmax, shares)


def _widen_table(module: GraphModule, storage: Storage, node: Node) -> None:
    """Stores a table in int16 for embeddings. Its other readers, such as a linear, still read it in int8."""
    (table,) = node.all_input_nodes
    observer = scheme.wide_rows(constant(module, table).detach())
    wide = call_module(module, node, f"_wide_{node.name}", observer, table)
    for user in filter(storage.looks_up, list(node.users)):
        user.replace_input_with(node, wide)
    if not node.users:
        module.graph.erase_node(node)


def _add_finer_weights(module: GraphModule, storage: Storage, node: Node) -> None:
    """Gives the weight of a transform 16 bits, as the sum of two int8 weights.

    The second weight holds the rounding errors of the first. Each reader becomes the sum of two products, of which the
    second one is small and is stored in int16.
    """
    observer, (unrounded,) = storage.weights[node], node.all_input_nodes
    weight = constant(module, unrounded).detach()
    errors = weight - on_channels_steps(weight, observer)
    finer = copy.deepcopy(observer)
    finer.reset_min_max_vals()
    finer(errors)
    rest = call_module(module, node, f"_finer_{node.name}", finer, folded(module, unrounded, "errors", errors, node))
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
