"""Finds the attributes of a module and of the objects that it holds."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch


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
            elif is_object(value):
                waiting.append((name, vars(value)))


def is_object(value: Any) -> bool:
    """Whether a value has attributes of its own and is not torch's, nor a class, function or module of Python's."""
    others = (type, types.ModuleType, types.FunctionType, torch.nn.Module, torch.Tensor)
    foreign = isinstance(value, others) or type(value).__module__.partition(".")[0] == "torch"
    return not foreign and isinstance(getattr(value, "__dict__", None), dict)
