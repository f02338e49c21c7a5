"""Splits lstm and gru into one call for each layer, so that each layer's result can be quantized."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from q8ta_wgpu.frontend.export import editor
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.export.tracing import shapes_of_layer
from q8ta_wgpu.frontend.nodes import kind, named_arguments
from q8ta_wgpu.ir.int8 import Moves, Recurrent

_aten = torch.ops.aten
_LSTM, _GRU = _aten.lstm.input, _aten.gru.input


def is_recurrent(node: Node) -> bool:
    """Whether a node is an lstm or gru."""
    return isinstance(kind(node), Recurrent)


def weights_of(node: Node) -> list[Node]:
    """The weights of a call of one layer, those of its input and of its hidden states."""
    arguments = named_arguments(node)
    each = len(arguments["params"]) // (2 if arguments["bidirectional"] else 1)
    return [w for i, w in enumerate(arguments["params"]) if i % each < 2]


def expand_recurrent(module: GraphModule) -> None:
    """Replaces a call for several layers by one for each. Last hidden states become slices of a layer's result, whose
    scale they share. Those of a gru that are results of the program remain its states, which are more precise than
    int8."""
    found = [node for node in module.graph.nodes if is_recurrent(node)]
    for node in found:
        _expand(module, node)
        module.graph.erase_node(node)
    if found:
        fold(module)  # folds slices of constant first states


def first_states(graph: Graph) -> set[Node]:
    """The moves whose results, moved further or not, are only read by recurrent layers as their first states, which are
    float32."""
    found = set[Node]()
    for node in reversed(graph.nodes):
        if isinstance(kind(node), Moves) and node.users:
            begins = all(u in found or (is_recurrent(u) and u.args[0] is not node) for u in node.users)
            found.update([node] if begins else [])
    return found


def _expand(module: GraphModule, node: Node) -> None:
    """Replaces a call for several layers by a call for each, and its results by theirs."""
    arguments, call = named_arguments(node), functools.partial(editor.call, node)
    layers, directions = arguments["num_layers"], 2 if arguments["bidirectional"] else 1
    each = len(arguments["params"]) // layers
    rest = (arguments["has_biases"], 1, 0.0, False, arguments["bidirectional"], arguments["batch_first"])
    users: dict[Any, list[Node]] = {}
    for user in list(node.users):
        users.setdefault(user.args[1], []).append(user)
    keeps_states = node.target is not _LSTM and all(u.op == "output" for n in users.get(1, []) for u in n.users)
    x, hidden, states = arguments["input"], [], []
    for layer in range(layers):
        begun = _first(call, arguments["hx"], slice(layer * directions, (layer + 1) * directions), layers * directions)
        shapes = shapes_of_layer(*torch.fx.map_arg((x, begun), lambda n: n.meta["val"]), *rest)
        made = call(node.target, x, begun, list(arguments["params"][each * layer :][:each]), *rest, value=shapes)
        x = call(operator.getitem, made, 0)
        if 1 in users:
            hidden.append(
                call(operator.getitem, made, 1)
                if keeps_states
                else _last(call, x, directions, arguments["batch_first"])
            )
        if 2 in users:
            states.append(call(operator.getitem, made, 2))
    for index, found in ((0, [x]), (1, hidden), (2, states)):
        for user in users.get(index, []):
            if len(found) > 1:
                _select(module, user, found, directions)
            if user.users:
                user.replace_all_uses_with(found[0] if len(found) == 1 else call(_aten.cat.default, found, 0))
            module.graph.erase_node(user)


def _select(module: GraphModule, last: Node, found: Sequence[Node], directions: int) -> None:
    """Lets calls that select a row of the last states of all layers, as `hidden[-1]`, select one of the layer's own
    states. The states of all layers are then not joined for them."""
    for user in list(last.users):
        if user.target is _aten.select.int and user.args[1] == 0:
            layer, direction = divmod(int(user.args[2]) % (len(found) * directions), directions)  # type: ignore[arg-type]
            user.args = (found[layer], 0, direction)


def _first(call: Callable[..., Node], states_of_all: Any, wanted: slice, count: int) -> Any:
    """`count` first states, or pairs of them, of all layers and directions: those of one layer."""
    if wanted == slice(0, count):
        return states_of_all
    if isinstance(states_of_all, Sequence):
        return [_first(call, states, wanted, count) for states in states_of_all]
    return call(_aten.slice.Tensor, states_of_all, 0, wanted.start, wanted.stop)


def _last(call: Callable[..., Node], sequence: Node, directions: int, batch_first: bool) -> Node:
    """The last hidden states of a layer, (directions, batch, units): the last step of the forward direction, the first
    of the backward one."""
    dim, units = (1 if batch_first else 0), sequence.meta["val"].shape[2] // directions
    steps = [call(_aten.select.int, sequence, dim, -1)]
    if directions == 2:
        ends = steps[0], call(_aten.select.int, sequence, dim, 0)
        steps = [call(_aten.slice.Tensor, x, 1, d * units, (d + 1) * units) for d, x in enumerate(ends)]
    return call(_aten.stack.default, steps, 0)
