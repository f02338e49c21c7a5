"""Buffers that forward changes, as inputs and results of a module that changes nothing: so torch's tools see them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils import stateless

Tensors = tuple[torch.Tensor, ...]


class States:
    """The buffers of a module that its forward changes.

    Args:
        module: the module.
        names: of the buffers, as `named_buffers` gives them.
        arguments: an example of what forward takes.

    Attributes:
        initial: their values.
        functional: the module with these values as last inputs; it gives (what forward gives, the new values).
    """

    def __init__(self, module: torch.nn.Module, names: Sequence[str], arguments: Tensors) -> None:
        self.names = list(names)
        self._module = module
        self.initial = tuple(module.get_buffer(name).detach().clone() for name in names)
        self.functional = copy.copy(module)
        self.functional.__dict__["forward"] = self._forward(len(arguments))
        self.functional.forward.__signature__ = self._signature(arguments)  # type: ignore[attr-defined]

    def _forward(self, count: int) -> Any:
        module, names, forward = self.functional, self.names, self._module.forward

        def functional(*inputs: torch.Tensor) -> Any:
            held = {name: value.clone() for name, value in zip(names, inputs[count:], strict=True)}
            with _unwatched(), stateless._reparametrize_module(module, held):
                found = forward(*inputs[:count])
                written = tuple(module.get_buffer(name).clone() for name in names)
            return found, written

        return functional

    def _signature(self, arguments: Tensors) -> inspect.Signature:
        """The names that forward gives to its arguments, which inputs are called by, and those of the states."""
        names: list[str] = []
        for name, value in inspect.signature(self._module.forward).bind(*arguments).arguments.items():
            names += [f"{name}_{i}" for i in range(len(value))] if isinstance(value, tuple) else [name]
        for buffer in self.names:  # notes of the report name them
            name = f"state_{re.sub(r'[^0-9A-Za-z_]', '_', buffer)}"
            names.append(name if name not in names else f"{name}_{len(names)}")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def carried(self, items: Iterable[Tensors]) -> Iterator[Tensors]:
        """Each item with the states that the module has before it: one call after the other."""
        for item in items:
            yield (*item, *(self._module.get_buffer(name).detach().clone() for name in self.names))
            self._module(*(x.clone() for x in item))


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Hides from torch.export that a module is given other buffers: what is given back at the end is no state."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    watching = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(watching)
