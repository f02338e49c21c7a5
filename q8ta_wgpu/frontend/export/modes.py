"""What torch and Python keep for a thread or for the whole process, and how calls of this library leave it alone."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_MEANINGLESS = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("%s is an Enum subclass",),
    "torch._subclasses.fake_tensor": ("failed while attempting to run meta",),  # where another size does not fit
    "torch.fx.experimental.symbolic_shapes": ("Unable to find user code",),  # of control flow, which our error names
}
"""Beginnings of messages that are hidden, by logger."""


@contextmanager
def computing(device: torch.device | None = None) -> Iterator[None]:
    """Lets this thread compute in float32 without gradients, whatever torch.autocast the caller is in, outside of
    torch.inference_mode, whose tensors torch.export refuses, and make tensors on `device` (the CPU if None), whatever
    device the caller chose for tensors that name none."""
    device = torch.device("cpu") if device is None else device
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        if torch.get_default_device() != device:  # a mode, which makes every call slower
            stack.enter_context(device)
        yield


class _Quiet(threading.local):
    """In each thread: whether warnings are hidden. It stands in a filter of Python's where a pattern of messages does,
    so that the filter hides nothing in other threads."""

    depth = 0

    def match(self, _: str) -> bool:
        """Whether a message is hidden."""
        return self.depth > 0


_quiet = _Quiet()
_FILTER = ("ignore", _quiet, Warning, None, 0)
_lock = threading.Lock()
_users = 0
_filtered: list[list[Any]] = []
"""The lists of filters that hold ours."""


@contextmanager
def quietly() -> Iterator[None]:
    """Hides warnings and meaningless messages of libraries in this thread.

    `warnings.catch_warnings` would put back, at its end, the filters that another thread had at its beginning.
    """
    global _users
    me = threading.get_ident()
    with ExitStack() as stack:
        for name, beginnings in _MEANINGLESS.items():

            def wanted(record: logging.LogRecord, beginnings: tuple[str, ...] = beginnings) -> bool:
                return threading.get_ident() != me or not str(record.msg).startswith(beginnings)

            logger = logging.getLogger(name)
            logger.addFilter(wanted)
            stack.callback(logger.removeFilter, wanted)
        with _lock:
            _users += 1
            filters: list[Any] = warnings.filters  # type: ignore[assignment]
            if not filters or filters[0] is not _FILTER:
                filters.insert(0, _FILTER)
                _filtered.append(filters)
        _quiet.depth += 1
        try:
            yield
        finally:
            _quiet.depth -= 1
            with _lock:
                _users -= 1
                if not _users:
                    _remove_filter()


def _remove_filter() -> None:
    """Removes our filter from the lists that it was added to, and from a copy that somebody made of one of them."""
    for filters in (*_filtered, warnings.filters):
        for place in reversed([i for i, each in enumerate(filters) if each is _FILTER]):
            del filters[place]  # type: ignore[attr-defined]
    _filtered.clear()


def aloud(items: Iterable[T]) -> Iterator[T]:
    """The items of the user's iterable, whose warnings are shown."""
    source = iter(items)
    while True:
        depth, _quiet.depth = _quiet.depth, 0
        try:
            item = next(source)
        except StopIteration:
            return
        finally:
            _quiet.depth = depth
        yield item
