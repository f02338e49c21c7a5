"""A copy of a module to trace and to try, so that nobody who uses the module meanwhile sees anything of it.

torch.export puts fake tensors in the place of a module's parameters while it traces, and forward may write into buffers
and attributes.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def own_copy(module: Module) -> Module:
    """A module with the parameters of another one, and with buffers, other tensors, lists and objects of its own.

    Tensors that share memory do so in the copy. One that was made in torch.inference_mode becomes an ordinary one.
    Shared are what a function's closure holds, and objects that Python cannot copy.
    """
    memory = {_address(parameter): parameter.untyped_storage() for parameter in _ordinary(module)}
    known, objects = dict[int, object](), dict[int, object]()
    for _, store in stores(module):
        for value in store.values() if isinstance(store, dict) else store:
            if isinstance(value, Tensor):
                known[id(value)] = _copied(value, memory)
            elif _is_object(value):
                objects[id(value)] = value
            elif not (isinstance(value, (nn.Module, dict, list, tuple)) or callable(value)):
                known[id(value)] = value
    try:
        return copy.deepcopy(module, dict(known))
    except Exception:  # of the classes of some object
        return copy.deepcopy(module, {**known, **objects})


def _ordinary(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that were not made in torch.inference_mode."""
    return [each for each in module.parameters() if not each.is_inference() and _has_memory(each)]


def _copied(value: Tensor, memory: dict[int, torch.UntypedStorage]) -> Tensor:
    """What stands for a tensor in the copy. `memory` has the copy's storage for each of the module's, by address."""
    if not _has_memory(value) or (isinstance(value, nn.Parameter) and not value.is_inference()):
        return value
    address, storage = _address(value), value.untyped_storage()
    if address not in memory:
        memory[address] = storage.clone()  # type: ignore[no-untyped-call]
    plain = value.detach()
    found = plain.new_empty(0).set_(memory[address], plain.storage_offset(), plain.size(), plain.stride())
    return nn.Parameter(found, value.requires_grad) if isinstance(value, nn.Parameter) else found


def _has_memory(value: Tensor) -> bool:
    """Whether a tensor is one of torch's own with values in memory, neither conjugated nor of another layout."""
    of_torch = type(value) in (Tensor, nn.Parameter) and not value.is_nested and value.layout == torch.strided
    return of_torch and not value.is_meta and not value.is_quantized and not value.is_conj() and not value.is_neg()


def _address(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def stores(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The dicts, lists and tuples that hold attributes of a module, of its submodules and of objects that these hold,
    such as transformers' caches, each by its path. Attributes of torch's own objects are left out."""
    known = set[int]()
    waiting: list[tuple[str, Any]] = [(path, part.__dict__) for path, part in module.named_modules()]
    for path, store in waiting:
        if id(store) in known:
            continue
        known.add(id(store))
        yield path, store
        for key, value in list(store.items() if isinstance(store, dict) else enumerate(store)):
            name = ".".join(filter(None, (path, str(key))))
            if isinstance(value, (dict, list, tuple)):
                waiting.append((name, value))
            elif _is_object(value):
                waiting.append((name, vars(value)))


def _is_object(value: Any) -> bool:
    """Whether a value has attributes of its own and is not torch's, nor a class, function or module of Python's."""
    others = (type, types.ModuleType, types.FunctionType, torch.nn.Module, torch.Tensor)
    foreign = isinstance(value, others) or type(value).__module__.partition(".")[0] == "torch"
    return not foreign and isinstance(getattr(value, "__dict__", None), dict)
