"""Finds what a module changes while it runs: buffers, which become states, and other attributes, which are refused."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, UnsupportedError, one_line
from q8ta_wgpu.frontend.checks import Tensors, described, without_values
from q8ta_wgpu.frontend.export.own_copy import stores
from q8ta_wgpu.frontend.nodes import INPUTS


def changed_buffers(module: torch.nn.Module, arguments: Tensors) -> list[str]:
    """The names of the buffers that forward changes. The module is restored afterwards.

    Raises:
        InputError: the module does not run on these arguments.
        UnsupportedError: its results depend on other attributes that it changes, or it changes a buffer's shape.
    """
    before = Attributes(module)
    try:
        first = module(*(x.clone() for x in arguments))
        changed, states = before.changed(), before.states(module)
        again = module(*(x.clone() for x in arguments)) if changed else first
    except UnsupportedError:
        raise
    except Exception as error:
        raise InputError(
            f"the module does not run on example_inputs, {described(arguments)}: {one_line(error)}. quantize calls "
            "module(*example_inputs); wrap a module that takes other arguments in one that takes tensors by position"
        ) from error
    finally:
        before.put_back()
    if not arguments:
        raise InputError(
            "the module takes no inputs, found example_inputs=(), and a model needs at least one: compute its results "
            "once, without int8, or make what may change an input"
        )
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(again), strict=False)
    if changed and not all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor)):
        raise UnsupportedError(
            f"the module changes its {changed} while it runs, and computes with it: what stays from call to call must "
            "be a buffer (register_buffer), or an input and a result"
        )
    return states


class Attributes:
    """A copy of a module's attributes before it runs: its own and those of objects that it holds, lists and dicts of
    them, buffers, and the tensors' values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._held = [(path, store, copy.copy(store)) for path, store in stores(module)]
        self._buffers = {n: (b, _version(b)) for n, b in module.named_buffers(remove_duplicate=False)}
        tensors = {id(value): value for _, _, values in self._held for value in _values(values)}
        self._tensors = [
            (value, value.clone())
            for value in tensors.values()
            if isinstance(value, torch.Tensor)
            and not isinstance(value, torch.nn.Parameter)
            and not without_values(value)
        ]

    def states(self, module: torch.nn.Module) -> list[str]:
        """The names of buffers that were written into or replaced.

        Raises:
            UnsupportedError: a buffer's shape or dtype changed, or it is now the same tensor as another buffer, or
                shares memory with another tensor of the module.
        """
        values, found = {id(tensor): value for tensor, value in self._tensors}, []
        known, names_by_id = set[int](), dict[int, str]()
        for name, tensor in module.named_buffers(remove_duplicate=False):
            buffer, version = self._buffers.get(name, (tensor, _version(tensor)))
            if id(buffer) in known:
                continue
            known.add(id(buffer))
            if (other := names_by_id.setdefault(id(tensor), name)) != name:
                raise UnsupportedError(
                    f"the module gives its buffers {other} and {name} one tensor: keep {other} alone, and read it for "
                    "both"
                )
            before = values.get(id(buffer), buffer)
            if tensor.shape != before.shape:
                raise UnsupportedError(
                    f"the module's buffer {name} changes from shape {tuple(before.shape)} to {tuple(tensor.shape)}: "
                    "what stays from call to call has one size, so give it the largest and write into it"
                )
            if tensor is buffer and _version(buffer) == version:
                continue
            if before.dtype not in INPUTS or tensor.dtype != before.dtype:
                raise UnsupportedError(
                    f"the module changes its buffer {name} from {before.dtype} to {tensor.dtype}: what stays from call "
                    "to call is float32, integers or bools, of one dtype"
                )
            self._check_memory(name, buffer, tensor)
            found.append(name)
        return found

    def _check_memory(self, name: str, buffer: torch.Tensor, now: torch.Tensor) -> None:
        """Raises UnsupportedError if another tensor of the module shares memory with a buffer that changes, since they
        would become separate copies. Other names of the same tensor are allowed: they are names of one state."""
        memory = _memory(buffer)
        for other, value, known in self._values():
            if memory and value is known and value is not now and _memory(value) == memory:
                other = other.replace("_buffers.", "")
                raise UnsupportedError(
                    f"the module changes its buffer {name}, whose memory {other} shares: keep one of them, and compute "
                    f"the other from it in forward ({name}[...])"
                )

    def changed(self) -> str:
        """The first attribute, other than a buffer, that was replaced or whose values changed; empty if none."""
        buffers = {id(buffer) for buffer, _ in self._buffers.values()}
        written = {id(tensor) for tensor, value in self._tensors if not torch.equal(tensor, value)} - buffers
        for name, value, known in self._values():
            if "_buffers." not in name and (value is not known or id(value) in written):
                return name
        return ""

    def _values(self) -> Iterator[tuple[str, Any, Any]]:
        """Each attribute, and each value in lists and dicts of them: name, value, and value before the run."""
        for path, store, values in self._held:
            for key, value in store.items() if isinstance(store, dict) else enumerate(store):
                known = values.get(key) if isinstance(values, dict) else values[key] if key < len(values) else None
                yield ".".join(filter(None, (path, str(key)))), value, known

    def put_back(self) -> None:
        """Restores all attributes."""
        for _, store, values in self._held:
            if _is_same(store, values):
                continue
            if isinstance(store, dict):
                dict.clear(store)  # the `update` of transformers' subclasses of dict raises
                dict.update(store, values)
            else:
                store[:] = values
        with torch.inference_mode():  # which may have made them
            for tensor, value in self._tensors:
                if tensor.shape == value.shape and not torch.equal(tensor, value):
                    tensor.copy_(value)


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written into; torch does not count for those that were made in torch.inference_mode."""
    return 0 if tensor.is_inference() else tensor._version


def _memory(value: Any) -> int:
    """The address of a tensor's memory; 0 for other values, and for tensors without memory."""
    if not isinstance(value, torch.Tensor) or without_values(value) or value.layout != torch.strided:
        return 0
    return value.untyped_storage().data_ptr()


def _is_same(store: Any, values: Any) -> bool:
    """Whether a list or dict equals its copy. It is then not restored, since some refuse writes."""
    same_keys = not isinstance(store, dict) or list(store) == list(values)
    pairs = zip(_values(store), _values(values), strict=False)
    return len(store) == len(values) and same_keys and all(one is other for one, other in pairs)


def _values(store: Any) -> Iterable[Any]:
    return store.values() if isinstance(store, dict) else store
