"""Gives values of a calibrated module observers of 16 bits, or none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.simulate import ROLES, Role, Storage, Stored, Width
from q8ta_wgpu.frontend.export.editor import call_module


def widen(module: GraphModule, storage: Storage, chosen: Mapping[Reading, Width]) -> None:
    """Gives each role of a value an observer of its width, or none."""
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
