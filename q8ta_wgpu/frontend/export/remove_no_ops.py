"""Removes operators that have no effect: values that nothing reads, empty operands of a cat, infinities around a max
pooling, copies of a buffer to itself. In a float graph these are also operators that only act in training, such as
dropouts, since they would separate operators that are rounded as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class _Axis(NamedTuple):
    """A dimension of a max pooling of a padded tensor: elements added `before` and `after` it, and its windows."""

    before: int
    after: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def meets_elements(self) -> bool:
        """Whether each window has an element of the tensor, and if it has an added one, the element nearest to that."""
        return min(self[:2]) >= 0 and max(self[:2]) + self.padding < self.kernel and self.dilation == 1

    def pads(self, ceil_mode: bool) -> bool:
        """Whether the pooling's own padding, which is equal on both sides, makes the same windows for any size."""
        added = self.stride - 1 if ceil_mode else 0  # the most elements that ceil_mode adds at the end
        return self.after - self.before == added and self.before + self.padding <= self.kernel // 2


def _pad_by_pooling(pad: Node) -> None:
    """Replaces a padding by -inf before a max pooling by the pooling's own padding, or else by a padding with the
    nearest element. The maximum is the same."""
    arguments = named_arguments(pad)
    value, numbers = arguments.get("value"), arguments["pad"]
    if arguments.get("mode", "constant") != "constant" or value is None or value > torch.finfo(torch.float32).min:
        return
    pools = [(pool, found) for pool in pad.users if (found := _axes(pool, numbers))]
    if (
        not pools
        or len(pools) != len(pad.users)
        or not all(axis.meets_elements for _, found in pools for axis in found)
    ):
        return
    for pool, found in pools:
        ceil_mode = [mode for mode in (False, True) if all(axis.pads(mode) for axis in found)]
        if ceil_mode:
            windows = [[a.kernel for a in found], [a.stride for a in found], [a.before + a.padding for a in found]]
            pool.args = (arguments["self"], *windows, [1] * len(found), ceil_mode[0])
    if pad.users:
        around = [n for axis in reversed(found) for n in axis[:2]]
        pad.target, pad.args, pad.kwargs = _aten.pad.default, (arguments["self"], around, "replicate"), {}


def _axes(pool: Node, numbers: list[Any]) -> list[_Axis]:
    """The dimensions of a max pooling of a tensor padded by these numbers (torch's order, from the last dimension on).
    Empty if other dimensions are padded, or if ceil_mode adds windows that have padding only."""
    if (rank := _MAX_POOLS.get(pool.target, 0)) == 0 or (arguments := named_arguments(pool)).get("ceil_mode"):
        return []
    ends = [tuple(numbers[i : i + 2]) for i in range(0, len(numbers), 2)][::-1]
    if len(ends) > rank or not all(isinstance(n, int) for n in numbers):
        return []
    ends = [(0, 0)] * (rank - len(ends)) + ends
    kernel = arguments["kernel_size"]
    lists = (kernel, arguments.get("stride") or kernel, arguments.get("padding", [0]), arguments.get("dilation", [1]))
    windows = [list(numbers) * rank if len(numbers) == 1 else list(numbers) for numbers in lists]
    return [_Axis(*pair, *window) for pair, window in zip(ends, zip(*windows, strict=True), strict=True)]


_MAX_POOLS: Mapping[Any, int] = {_aten.max_pool1d.default: 1, _aten.max_pool2d.default: 2, _aten.max_pool3d.default: 3}
"""Poolings by the number of dimensions of their windows."""

_RULES: Mapping[Any, Callable[[Node], None]] = {
    _aten.copy_.default: _drop_copy_of_itself,
    _aten.cat.default: _drop_empty_parts,
    _aten.pad.default: _pad_by_pooling,
    _aten.constant_pad_nd.default: _pad_by_pooling,
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
