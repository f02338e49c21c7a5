"""A cache of sessions for inputs of other sizes than the model's own."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

KEPT = 8
"""Limit of other sizes whose programs stay on the device."""


class Closable(Protocol):
    """Something that holds memory until it is closed."""

    def close(self) -> None:
        """Frees it."""


T = TypeVar("T", bound=Closable)
K = TypeVar("K", bound=Hashable)


@dataclass
class _Entry(Generic[T]):
    made: Future[T] = field(default_factory=Future)
    users: int = 0


class ByShape(Generic[K, T]):
    """A least-recently-used cache of KEPT values, by the shapes of all inputs. Values are closed when they are evicted.

    It may be used from several threads. One thread makes the value for new shapes, and others that need the same value
    wait for it, but not those with other shapes. A value in use is closed after its last use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = KEPT
        self._entries: OrderedDict[K, _Entry[T]] = OrderedDict()

    @property
    def shapes(self) -> list[K]:
        """The shapes that have a value, the most recently used last."""
        with self._lock:
            return list(self._entries)

    @contextlib.contextmanager
    def using(self, shapes: K, make: Callable[[K], T]) -> Iterator[T]:
        """The value for some shapes, which stays open during the context. An error of `make` is passed on, and the next
        call tries again."""
        with self._lock:
            first = shapes not in self._entries
            entry = self._entries.setdefault(shapes, _Entry())
            self._entries.move_to_end(shapes)
            entry.users += 1
        try:
            if first:
                self._fill(shapes, make, entry)
            yield entry.made.result()
        finally:
            with self._lock:
                entry.users -= 1
            self._trim()

    def _fill(self, shapes: K, make: Callable[[K], T], entry: _Entry[T]) -> None:
        try:
            entry.made.set_result(make(shapes))
        except BaseException as error:
            with self._lock:
                del self._entries[shapes]
            entry.made.set_exception(error)
            raise

    def _trim(self) -> None:
        """Closes the least recently used values beyond KEPT that are not in use."""
        with self._lock:
            unused = [shapes for shapes, entry in self._entries.items() if not entry.users]
            closed = [self._entries.pop(shapes) for shapes in unused[: max(len(self._entries) - self._most, 0)]]
        for entry in closed:
            entry.made.result().close()

    def close(self) -> None:
        """Closes all values: those in use, and those made later, after their last use."""
        with self._lock:
            self._most = 0
        self._trim()
