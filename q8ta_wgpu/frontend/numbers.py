"""The numbers with which a module computes at some sizes of its inputs, found without computing or tracing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from q8ta_wgpu.frontend.attributes import Attributes
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.layout import Shape

_aten = torch.ops.aten
_NAMES = ("view", "_unsafe_view", "reshape", "expand", "as_strided_")
_RESHAPES = tuple(getattr(_aten, name).default for name in _NAMES)
"""Calls whose numbers follow from the shape of what they give. No module calls the last one, but torch does."""


def has_equal_numbers(module: torch.nn.Module, example: Sequence[Tensor], first: Graph, other: Graph) -> bool:
    """Whether a module makes the same calls, with equal numbers, at two sizes of its inputs, and its graph at these
    sizes has the shapes that they give. False also where that cannot be told without values. Takes a fifth of the time
    of tracing the module.

    Args:
        module: a module without states.
        example: inputs of the dtypes that it takes.
        first, other: its graph at the two sizes.
    """
    try:
        one, two = (_Calls.of(module, example, graph) for graph in (first, other))
    except Exception:  # modules, and torch without values, raise whatever they like
        return False
    if len(one.found) != len(two.found):
        return False
    shapes = {(first.types[name].shape, other.types[name].shape) for name in first.inputs}
    for (call, numbers, given), (also, others, then) in zip(one.found, two.found, strict=True):
        if call is not also or (numbers != others and call not in _RESHAPES):
            return False
        shapes.update(zip(given, then, strict=True))
    return all((first.types[n.output].shape, other.types[n.output].shape) in shapes for n in first.nodes)


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of aten that are made with tensors without values: function, other arguments, and the shapes of
    what it gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Any, list[Any], list[Shape]]] = []

    @staticmethod
    def of(module: torch.nn.Module, example: Sequence[Tensor], graph: Graph) -> _Calls:
        """Those of a module at the sizes of a graph."""
        tensors = (*module.named_parameters(), *module.named_buffers())
        empty = {name: x.detach().to("meta") for name, x in tensors}
        shapes = (graph.types[name].shape for name in graph.inputs)
        inputs = [x.new_empty(shape, device="meta") for x, shape in zip(example, shapes, strict=True)]
        before, calls = Attributes(module), _Calls()
        try:
            with torch.no_grad(), calls:
                torch.func.functional_call(module, empty, tuple(inputs))
        finally:
            before.put_back()
        return calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Makes a call, and notes it."""
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(x, Tensor) and x.device.type != "meta" for x in leaves):
            raise ValueError("a tensor has values, which may follow from sizes")
        found = func(*args, **(kwargs or {}))
        shapes = [tuple(x.shape) for x in pytree.tree_leaves(found) if isinstance(x, Tensor)]
        self.found.append((func, [x for x in leaves if not isinstance(x, Tensor)], shapes))
        return found
