"""Replaces operators that a program writes as several calls by torch's own operators, so that later steps find one norm
or activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call, new_constant
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.frontend.nodes import is_constant
from q8ta_wgpu.ir.graph import Attrs
from q8ta_wgpu.passes.plan.spellings import combined

_aten = torch.ops.aten


def name_operators(model: GraphModule, stays: Callable[[Node], str]) -> None:
    """Replaces the calls of each such operator by one, unless `stays` gives a reason why one stays in float32."""
    imported = import_float(model)
    graph, values = imported.graph, dict(imported.values)
    graph.values.leave_in_float({name: stays(node) for name, node in values.items()})
    for each in combined(graph, channels=True):
        source, last = each.made[0].inputs[0], values.get(each.made[-1].output)
        if last is None or source not in values or any(node.op not in _CALLS for node in each.made):
            continue
        for node in each.made:
            parameters = [
                new_constant(model, last, f"{last.name}_{index}_of_{node.op}", torch.from_numpy(graph.constants[name]))
                for index, name in enumerate(node.inputs[1:])
            ]
            target, args, kwargs = _CALLS[node.op](values[node.inputs[0]], parameters, node.attrs)
            values[node.output] = call(last, target, *args, **kwargs)
        last.replace_all_uses_with(values[each.made[-1].output])
        _erase(model, last)


def _erase(model: GraphModule, node: Node) -> None:
    """Removes a node that nothing reads, with the nodes that only it read."""
    read = node.all_input_nodes
    model.graph.erase_node(node)
    for source in read:
        if not source.users and (source.op == "call_function" or is_constant(source)):
            _erase(model, source)


_Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]
_Call = Callable[[Node, list[Node], Attrs], _Arguments]


def _function(target: Any, **kwargs: Any) -> _Call:
    return lambda x, _, attrs: (target, (x,), {**attrs, **kwargs})


def _shape(parameter: Node) -> list[int]:
    return list(parameter.meta["val"].shape)


_CALLS: Mapping[str, _Call] = {
    "view": lambda x, _, attrs: (_aten.reshape.default, (x, list(attrs["shape"])), {}),
    "permute": lambda x, _, attrs: (_aten.permute.default, (x, list(attrs["dims"])), {}),
    "softmax": lambda x, _, attrs: (_aten.softmax.int, (x, attrs["dim"]), {}),
    "rms_norm": lambda x, p, attrs: (_aten.rms_norm.default, (x, _shape(p[0]), p[0], attrs["eps"]), {}),
    "layer_norm": lambda x, p, attrs: (_aten.layer_norm.default, (x, _shape(p[0]), *p, attrs["eps"]), {}),
    "group_norm": lambda x, p, attrs: (_aten.group_norm.default, (x, attrs["groups"], *p, attrs["eps"]), {}),
    "batch_norm": lambda x, p, attrs: (_aten.batch_norm.default, (x, *p, False, 0.0, attrs["eps"], False), {}),
    "sigmoid": _function(_aten.sigmoid.default),
    "tanh": _function(_aten.tanh.default),
    "silu": _function(_aten.silu.default),
    "gelu": _function(_aten.gelu.default),
    "gelu_tanh": _function(_aten.gelu.default, approximate="tanh"),
    "hardswish": _function(_aten.hardswish.default),
    "hardsigmoid": _function(_aten.hardsigmoid.default),
    "softplus": _function(_aten.softplus.default),
    "mish": _function(_aten.mish.default),
}
"""torch's calls of the operators that it has, as functions of operand, parameters and attributes."""
