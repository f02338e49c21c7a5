"""Python code for graph modules when it is needed. torch makes it each time that a pass makes or changes a module: a
dozen times in all, of which none or one runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule

_MADE = ("forward", "_code", "_lineno_map", "_prologue_start")
"""What `GraphModule.recompile` makes of a graph: a method of the module's class, which has no other instance, and
attributes of the module."""

_recompile = _before = GraphModule.recompile
_lock = threading.Lock()
_users = 0


@contextmanager
def late_code() -> Iterator[None]:
    """Within it, graph modules that are made or changed get their code when someone asks for it, as a call does."""
    global _users, _before
    with _lock:
        _before = _before if _users else GraphModule.recompile
        _users += 1
        GraphModule.recompile = _forget_code  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                GraphModule.recompile = _before  # type: ignore[method-assign]


def _forget_code(module: GraphModule) -> None:
    """Takes the place of `GraphModule.recompile`."""
    for name in _MADE:
        module.__dict__.pop(name, None)
        setattr(type(module), name, _Late(module, name))


class _Late:
    """An attribute of a graph module that its code gives. To read it makes the code."""

    def __init__(self, module: GraphModule, name: str) -> None:
        self._module, self._name = weakref.ref(module), name

    def __get__(self, instance: Any, owner: type) -> Any:
        """The attribute, of the class if there is no instance."""
        module = self._module()
        if module is None:
            raise AttributeError(self._name)
        _recompile(module)
        made = type(module)
        for name in _MADE:
            if isinstance(vars(made).get(name), _Late):
                delattr(made, name)
        return getattr(owner if instance is None else instance, self._name)
