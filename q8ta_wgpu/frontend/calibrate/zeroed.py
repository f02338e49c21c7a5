"""During calibration, elements that a `torch.where` leaves out are zeros to the observers: they reach no result, and
may be NaN, infinite, or far larger than the rest (passes/plan/left_out.py)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.export.editor import call
from q8ta_wgpu.frontend.importer.importer import Imported
from q8ta_wgpu.passes.plan.left_out import taken_elements

_TAKEN = "q8ta_taken"
"""A key in the meta of a call: the names of the bools that say which of its elements are taken, and whether these are
True there."""


def mark_left_out(imported: Imported) -> None:
    """Notes on calls which of their elements are taken."""
    for name, taken in taken_elements(imported.graph).items():
        if {name, *taken} <= imported.values.keys():
            named = {imported.values[bools].name: where for bools, where in taken.items()}
            imported.values[name].meta[_TAKEN] = named


def zero_left_out(model: GraphModule) -> None:
    """Gives the observers of a prepared module zeros for elements that are left out, and what reads them."""
    nodes = {node.name: node for node in model.graph.nodes}
    for node in nodes.values():
        observers = [user for user in node.users if observer_of(model, user) is not None]
        if _TAKEN not in node.meta or not observers:
            continue
        taken = {nodes[name]: where for name, where in node.meta[_TAKEN].items()}
        for bools in taken:
            _compute_before(observers[0], bools)
        zeroed = call(observers[0], _zeroed, node, *taken.items(), like=node, value=node.meta["val"])
        for observer in observers:
            observer.replace_input_with(node, zeroed)


def _zeroed(value: Tensor, *taken: tuple[Tensor, bool]) -> Tensor:
    """A value with zeros for elements of which no bools are as they are where elements are taken."""
    some = torch.stack([(bools == where).expand(value.shape) for bools, where in taken]).any(0)
    return torch.where(some, value, 0.0)


def _compute_before(place: Node, node: Node) -> None:
    """Moves a node before another one, with all that it is computed from."""
    order = {each: position for position, each in enumerate(place.graph.nodes)}
    later = [node] if order[node] > order[place] else []
    for each in later:
        later += [n for n in each.all_input_nodes if order[n] > order[place] and n not in later]
    for each in sorted(later, key=order.__getitem__):
        place.prepend(each)


def before_zeros(value: Node) -> Node:
    """The value of which a node makes zeros where elements are left out; the node itself if it does not."""
    return value.all_input_nodes[0] if value.target is _zeroed else value


def restore_left_out(model: GraphModule) -> None:
    """Removes from a calibrated module what made elements zero."""
    for node in model.graph.find_nodes(op="call_function", target=_zeroed):
        node.replace_all_uses_with(before_zeros(node))
        model.graph.erase_node(node)
