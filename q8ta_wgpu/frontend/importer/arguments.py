"""A call's arguments as importer functions take them, and what a dynamic batch is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from q8ta_wgpu.frontend.importer.builder import RefusedError
from q8ta_wgpu.frontend.nodes import integer

_VIEWS = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")


def arguments_of(node: torch.fx.Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by schema name, defaults filled in, nodes replaced by value names; of a view's sizes the one
    that holds a dynamic batch by what is left."""
    views = str(node.target) in _VIEWS

    def value(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return values[argument.name]
        if isinstance(argument, (list, tuple)):
            left = views and sum(map(_is_symbolic, argument)) == 1 and -1 not in argument
            return [-1 if left and _is_symbolic(a) else value(a) for a in argument]
        return integer(argument) if isinstance(argument, torch.SymInt) else argument

    if not isinstance(node.target, torch._ops.OpOverload):
        raise RefusedError("this operator is not supported")
    if _freezes_batch(node):
        raise RefusedError("it computes with the size of a dynamic batch: export with a fixed batch size")
    arguments: dict[str, Any] = {}
    for position, parameter in enumerate(node.target._schema.arguments):
        if position < len(node.args) and not parameter.kwarg_only:
            arguments[parameter.name] = value(node.args[position])
        elif parameter.name in node.kwargs:
            arguments[parameter.name] = value(node.kwargs[parameter.name])
        else:
            arguments[parameter.name] = parameter.default_value
    return arguments


def _freezes_batch(node: torch.fx.Node) -> bool:
    """Whether the size of a dynamic batch, as exported, would stay in a call. As an entry of a shape a reshaped model
    finds it anew, but not where a part of it is cut out."""
    parts = node.args[1] if "split" in str(node.target) and isinstance(node.args[1], (list, tuple)) else ()
    if any(map(_is_symbolic, (*node.args, *parts))):
        return True
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if str(node.target) == "aten.slice.Tensor" and isinstance(source, torch.Tensor):
        dim, _, end = node.args[1:4] if len(node.args) >= 4 else (0, None, None)
        size = source.shape[dim] if isinstance(dim, int) else 0
        return isinstance(size, torch.SymInt) and isinstance(end, int) and integer(size) <= end < 2**63 - 1
    return False


def repeated_for_the_batch(node: torch.fx.Node) -> list[int]:
    """The dimensions along which an expand repeats a value as often as the batch says, which has no batch itself."""
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if str(node.target) != "aten.expand.default" or not isinstance(source, torch.Tensor):
        return []
    sizes = node.meta["val"].shape
    kept = [1] * (len(sizes) - source.dim()) + list(source.shape)
    pairs = enumerate(zip(sizes, kept, strict=True))
    return [i for i, (new, old) in pairs if isinstance(new, torch.SymInt) and not isinstance(old, torch.SymInt)]


def _is_symbolic(argument: Any) -> bool:
    return isinstance(argument, torch.fx.Node) and isinstance(argument.meta.get("val"), torch.SymInt)
