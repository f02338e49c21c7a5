"""Removes operators that have no effect: values that nothing reads, empty operands of a cat, infinities around a max
pooling, copies of a buffer to itself. In a float graph these are also operators that only act in training, such as
dropouts, since they would separate operators that are rounded as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import named_arguments

_aten = torch.ops.aten
_TO = (_aten.to.device, _aten.to.dtype, _aten.to.dtype_layout, _aten.to.other)


def remove_no_ops(program: ExportedProgram) -> None:
    """Removes these from a program, which is changed. Random numbers that something reads remain."""
    for node in list(program.graph.nodes):
        if rule := _RULES.get(node.target):
            rule(node)
    program.graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure(impure_random=False))


def _drop_empty_parts(cat: Node) -> None:
    parts: Any = cat.args[0]
    kept = [part for part in parts if not any(isinstance(n, int) and n == 0 for n in part.meta["val"].shape)]
    if kept and kept[0].meta["val"].dtype == cat.meta["val"].dtype:
        cat.update_arg(0, kept)


def _drop_copy_of_itself(copy: Node) -> None:
    """Removes `self.table = self.table.to(x)`, which assigns to a buffer its own tensor."""
    buffer, source = copy.args[:2]
    while isinstance(source, Node) and source.target in _TO and not named_arguments(source).get("copy"):
        read: Any = source.args[0]
        if read.meta["val"].dtype != source.meta["val"].dtype:
            return
        source = read
    if source is buffer and not copy.users:
        copy.graph.erase_node(copy)


def _pad_with_edges(pad: Node) -> None:
    """Replaces a padding by -inf that only max poolings read by a padding with the nearest element. The maximum is the
    same."""
    arguments = named_arguments(pad)
    value, numbers = arguments.get("value"), arguments["pad"]
    if arguments.get("mode", "constant") != "constant" or value is None or value > torch.finfo(torch.float32).min:
        return
    if pad.users and all(_meets_edges(pool, numbers) for pool in pad.users):
        rank = _MAX_POOLS[next(iter(pad.users)).target]
        around = [*numbers, *[0] * (2 * rank - len(numbers))]
        pad.target, pad.args, pad.kwargs = _aten.pad.default, (arguments["self"], around, "replicate"), {}


def _meets_edges(pool: Node, numbers: list[Any]) -> bool:
    """Whether each window of a max pooling has an element of the tensor that these numbers pad (in torch's order,
    from the last dimension on), and if it has an added one, the element nearest to that."""
    if not (rank := _MAX_POOLS.get(pool.target, 0)) or (arguments := named_arguments(pool)).get("ceil_mode"):
        return False
    if len(numbers) > 2 * rank or not all(isinstance(n, int) and n >= 0 for n in numbers):
        return False
    lists = (arguments["kernel_size"], arguments.get("padding", [0]), arguments.get("dilation", [1]))
    windows = zip(*((list(numbers) * rank)[rank - 1 :: -1] for numbers in lists), strict=True)  # the last one first
    ends = zip(numbers[::2], numbers[1::2], strict=True)
    return all(
        max(pair) + padding < kernel and dilation == 1
        for pair, (kernel, padding, dilation) in zip(ends, windows, strict=False)
    )


_MAX_POOLS: Mapping[Any, int] = {_aten.max_pool1d.default: 1, _aten.max_pool2d.default: 2, _aten.max_pool3d.default: 3}
"""Poolings by the number of dimensions of their windows."""

_RULES: Mapping[Any, Callable[[Node], None]] = {
    _aten.copy_.default: _drop_copy_of_itself,
    _aten.cat.default: _drop_empty_parts,
    _aten.pad.default: _pad_with_edges,
    _aten.constant_pad_nd.default: _pad_with_edges,
}


_DROPOUTS = tuple(f"aten.{name}.default" for name in ("dropout", "dropout_", "feature_dropout", "feature_dropout_"))


def is_idle_dropout(node: Node) -> bool:
    """Whether a node is a dropout that is not training."""
    return str(node.target) in _DROPOUTS and not named_arguments(node)["train"]


def remove_identities(model: GraphModule) -> None:
    """Removes aliases, inactive dropouts, and conversions to the dtype that a tensor already has. Clones remain, since
    a view may need one."""
    for node in list(model.graph.nodes):
        if str(node.target) == "aten._assert_tensor_metadata.default":
            model.graph.erase_node(node)
            continue
        if str(node.target) != "aten.alias.default" and not is_idle_dropout(node):
            continue
        source = node.args[0]
        assert isinstance(source, Node)
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
