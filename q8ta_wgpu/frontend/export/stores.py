"""Where a module, and the objects that it holds, keep their attributes."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch


def stores(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The dicts and lists that hold attributes of a module, of its parts and of objects that these hold, as
    transformers' caches are, each by its path. What torch's own objects hold is left out."""
    known = set[int]()
    waiting: list[tuple[str, Any]] = [(path, part.__dict__) for path, part in module.named_modules()]
    for path, store in waiting:
        if id(store) in known:
            continue
        known.add(id(store))
        if not isinstance(store, tuple):
            yield path, store
        for key, value in list(store.items() if isinstance(store, dict) else enumerate(store)):
            name = ".".join(filter(None, (path, str(key))))
            if isinstance(value, (dict, list, tuple)):
                waiting.append((name, value))
            elif _is_object(value):
                waiting.append((name, vars(value)))


def _is_object(value: Any) -> bool:
    """Whether a value has attributes of its own, and is neither torch's nor a class, function or module of Python's."""
    others = (type, types.ModuleType, types.FunctionType, torch.nn.Module, torch.Tensor)
    foreign = isinstance(value, others) or type(value).__module__.partition(".")[0] == "torch"
    return not foreign and isinstance(getattr(value, "__dict__", None), dict)
