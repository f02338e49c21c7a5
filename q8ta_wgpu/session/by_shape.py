"""Sessions for inputs of other sizes than the model's own, bounded in number."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

KEPT = 8
"""Other sizes whose programs stay on the device, beside the model's own."""


class Closable(Protocol):
    """Something that holds memory until it is closed."""

    def close(self) -> None:
        """Frees it."""


T = TypeVar("T", bound=Closable)
K = TypeVar("K", bound=Hashable)


@dataclass
class _Kept(Generic[T]):
    made: Future[T] = field(default_factory=Future)
    users: int = 0


class ByShape(Generic[K, T]):
    """One value for the shapes of all inputs. It is made when they first arrive, and closed once KEPT others were used
    since.

    Safe to use from several threads: one thread makes the value of some shapes, others that want the same wait, and
    other shapes go on. A value in use is closed after its last use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = KEPT
        self._kept: OrderedDict[K, _Kept[T]] = OrderedDict()

    @property
    def shapes(self) -> list[K]:
        """The shapes that have a value, the last used at the end."""
        with self._lock:
            return list(self._kept)

    @contextlib.contextmanager
    def using(self, shapes: K, make: Callable[[K], T]) -> Iterator[T]:
        """The value of shapes, open as long as the context lasts. Raises what `make` raises; the next call tries
        again."""
        with self._lock:
            first = shapes not in self._kept
            kept = self._kept.setdefault(shapes, _Kept())
            self._kept.move_to_end(shapes)
            kept.users += 1
        try:
            if first:
                self._fill(shapes, make, kept)
            yield kept.made.result()
        finally:
            with self._lock:
                kept.users -= 1
            self._trim()

    def _fill(self, shapes: K, make: Callable[[K], T], kept: _Kept[T]) -> None:
        try:
            kept.made.set_result(make(shapes))
        except BaseException as error:
            with self._lock:
                del self._kept[shapes]
            kept.made.set_exception(error)
            raise

    def _trim(self) -> None:
        """Closes the least recently used values beyond KEPT that nobody is using."""
        with self._lock:
            unused = [shapes for shapes, kept in self._kept.items() if not kept.users]
            closed = [self._kept.pop(shapes) for shapes in unused[: max(len(self._kept) - self._most, 0)]]
        for kept in closed:
            kept.made.result().close()

    def close(self) -> None:
        """Closes all values, those in use after their last use. Values made later are closed after use."""
        with self._lock:
            self._most = 0
        self._trim()
