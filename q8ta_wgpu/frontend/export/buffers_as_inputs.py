"""Makes buffers that forward changes inputs and results of a module without side effects, which torch's tools can
trace."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils import stateless

from q8ta_wgpu.errors import InputError, one_line
from q8ta_wgpu.frontend.export.own_copy import stores

Tensors = tuple[torch.Tensor, ...]


class States:
    """The buffers of a module that its forward changes.

    Args:
        module: the module, which nobody else uses: tracing replaces its buffers.
        names: of the buffers, as `named_buffers` has them.
        arguments: an example of forward's arguments.

    Attributes:
        initial: their values.
        lost: what to tell the user if the calibration makes one NaN or infinite; empty if it does not.
        functional: the module with these values as last inputs. It returns (forward's results, the new values).
    """

    def __init__(self, module: torch.nn.Module, names: Sequence[str], arguments: Tensors) -> None:
        self.names, self.lost = list(names), ""
        self._module = module
        self.initial = tuple(module.get_buffer(name).detach().clone() for name in names)
        buffers = [module.get_buffer(name) for name in names]
        self._attributes = _attributes(module, buffers)
        places = {id(buffer): place for place, buffer in enumerate(buffers)}
        every = module.named_buffers(remove_duplicate=False)
        self._places = {name: places[id(buffer)] for name, buffer in every if id(buffer) in places}
        # torch.export watches the buffers of the module that it traces, and refuses that they are replaced. It is given
        # a module with a dict of its own, while forward replaces those in the dict of `module`.
        self.functional = copy.copy(module)
        self.functional.__dict__["_buffers"] = dict(module._buffers)
        self.functional.__dict__["forward"] = self._forward(len(arguments))
        self.functional.forward.__signature__ = self._signature(arguments)  # type: ignore[attr-defined]

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """What each state begins with, by its name."""
        return dict(zip(self.names, self.initial, strict=True))

    def _forward(self, count: int) -> Any:
        traced, module = self.functional, self._module

        def functional(*inputs: torch.Tensor) -> Any:
            values = [value.clone() for value in inputs[count:]]
            held = {name: value for name, value in traced._buffers.items() if value is not None}
            held |= {name: values[place] for name, place in self._places.items()}
            with stateless._reparametrize_module(module, held), self._replaced(values):
                found = module.forward(*inputs[:count])
                written = tuple(module.get_buffer(name).clone() for name in self.names)
            return found, written

        return functional

    @contextlib.contextmanager
    def _replaced(self, values: Sequence[torch.Tensor]) -> Iterator[None]:
        """Replaces the same buffers by these tensors in objects that are not modules."""
        before = [holder[key] for holder, key, _ in self._attributes]
        for holder, key, place in self._attributes:
            holder[key] = values[place]
        try:
            yield
        finally:
            for (holder, key, _), value in zip(self._attributes, before, strict=True):
                holder[key] = value

    def _signature(self, arguments: Tensors) -> inspect.Signature:
        """The names of forward's arguments, which are the names of inputs, and those of the states."""
        names: list[str] = []
        for name, value in inspect.signature(self._module.forward).bind(*arguments).arguments.items():
            names += [f"{name}_{i}" for i in range(len(value))] if isinstance(value, tuple) else [name]
        for buffer in self.names:  # the report mentions them by name
            name = f"state_{re.sub(r'[^0-9A-Za-z_]', '_', buffer)}"
            names.append(name if name not in names else f"{name}_{len(names)}")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def carried(self, items: Iterable[Tensors], module: torch.nn.Module) -> Iterator[Tensors]:
        """Each item with the states that the user's module has before it, when called with one item after the other:
        the items' generator may set it back. Ends, and notes it in `lost`, where a state becomes NaN or infinite.
        Raises InputError if the module does not run on an item."""
        for index, item in enumerate(items):
            yield (*item, *(module.get_buffer(name).detach().clone() for name in self.names))
            try:
                with torch.inference_mode():  # which may have made its buffers
                    module(*(x.clone() for x in item))
            except Exception as error:
                raise InputError(
                    f"the module does not run on calibration item {index}: {one_line(error)}. What it keeps goes on "
                    f"from item to item ({', '.join(self.names)}): where texts or recordings begin anew, give a "
                    "generator that sets it back"
                ) from error
            for name, initial in zip(self.names, self.initial, strict=True):
                if _is_lost(module.get_buffer(name), initial):
                    self.lost = lost_after(name, index)
                    return


def lost_after(name: str, index: int) -> str:
    """What to tell the user of a state that an item of the calibration makes NaN or infinite."""
    return (
        f"buffer {name} is NaN or infinite after calibration item {index}: bound what the module keeps from call to "
        "call (torch.clamp), or give a generator that sets it back where texts or recordings begin anew"
    )


def _is_lost(value: torch.Tensor, initial: torch.Tensor) -> bool:
    """Whether elements became NaN or infinite. Some may be infinite from the beginning, as those of a largest value."""
    return bool((value.isnan() | (value.isinf() & initial.isfinite())).any())


def _attributes(module: torch.nn.Module, buffers: Sequence[torch.Tensor]) -> list[tuple[Any, Any, int]]:
    """The attributes of objects other than modules (such as transformers' StaticCache) that hold buffers of a module:
    the dict or list, its key or index, and the index of the buffer."""
    numbers = {id(buffer): i for i, buffer in enumerate(buffers)}
    registered = {id(child._buffers) for child in module.modules()}
    return [
        (store, key, numbers[id(value)])
        for _, store in stores(module)
        if id(store) not in registered
        for key, value in (store.items() if isinstance(store, dict) else enumerate(store))
        if id(value) in numbers
    ]
