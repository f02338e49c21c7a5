"""States of a torch graph: which result is the next value of which input, and sums that grow without end."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import CONVERSIONS, is_float, kind, multiplies
from q8ta_wgpu.frontend.notes import IN_FLOAT, note
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves, Rowwise

_STATE = "q8ta_state"
"""A key in the meta of a state's input: the index of its result, counted from the end, so that it is negative."""

_SUMS = tuple(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub"))


_FAR, _NEAR = 1e9, 1e3
"""A function is taken for bounded if its results for arguments of size `_FAR` are smaller than `_NEAR`."""


def mark_states(graph: GraphModule, count: int) -> None:
    """Notes on each of the last `count` inputs of a graph, which are states, which result is its next value.

    Copies of tensors are removed: they kept what was read from being overwritten, and such a graph overwrites nothing.
    Those that change the order of elements in memory stay."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        source = node.all_input_nodes[0]
        if node.meta["val"].stride() == source.meta["val"].stride():
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
    for place, node in enumerate(graph.graph.find_nodes(op="placeholder")[-count:]):
        node.meta[_STATE] = place - count


def states_of(graph: GraphModule) -> list[tuple[Node, Node]]:
    """For each state the input that is its old value and the result that is its new one."""
    results: Any = graph.graph.output_node().args[0]
    reads = [node for node in graph.graph.find_nodes(op="placeholder") if _STATE in node.meta]
    return [(node, results[node.meta[_STATE]]) for node in reads]


def keep_sums(graph: GraphModule) -> None:
    """Leaves a running sum, and what grows with it, in float32: a sum that grows from call to call has no range."""
    for read, written in states_of(graph):
        if written.target in _SUMS and read in written.all_input_nodes:
            note(written, IN_FLOAT, "a state grows by it in each call, so that calibration finds no range")
            if not _depends(written, read):
                _keep_what_grows(graph, {read, written})


def _depends(written: Node, read: Node) -> bool:
    """Whether the term that is added to a state, or taken from it, depends on the state itself. The state may then be
    bounded."""
    found = {source for source in written.all_input_nodes if source is not read}
    for node in (waiting := list(found)):
        new = set(node.all_input_nodes) - found
        found |= new
        waiting += new
    return read in found


def _keep_what_grows(graph: GraphModule, grows: set[Node]) -> None:
    """Leaves calls in float32 that read a value which grows without end. If their result grows as well, so do their
    readers. It does not if the function is bounded, as a sine or a quotient of two sums is. Layers are no such calls:
    they round what they read to the range that calibration met."""
    for node in graph.graph.nodes:
        sources = [source for source in node.all_input_nodes if source in grows]
        known = isinstance(kind(node), Arithmetic | Elementwise | Moves | Monotonic | Rowwise) or multiplies(node)
        known = known or node.target is operator.getitem
        is_index = isinstance(kind(node), Moves) and str(node.target) not in CONVERSIONS and is_float(node)
        if node in grows or not known or not any(is_float(source) or not is_index for source in sources):
            continue
        if is_float(node) or any(map(is_float, sources)):
            note(node, IN_FLOAT, "it reads what grows from call to call, so that calibration finds no range")
        if not _is_bounded(node, sources):
            grows.add(node)


def _is_bounded(node: Node, sources: Sequence[Node]) -> bool:
    """Whether a call's result stays small if these sources of it grow."""
    value = node.meta["val"]
    value = value[0] if isinstance(value, Sequence) else value
    if isinstance(kind(node), Rowwise) or value.dtype == torch.bool:
        return True
    if node.target is torch.ops.aten.div.Tensor:
        return node.args[1] in sources
    if not isinstance(kind(node), Elementwise) or len(node.all_input_nodes) != 1 or not is_float(node):
        return False
    far = torch.tensor([-_FAR, _FAR])
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda _: far)
    found: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return bool((torch.nan_to_num(found, 0.0).abs() < _NEAR).all())
