"""Sessions for other batch sizes than the model's own, bounded in number."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

KEPT = 8
"""Other batch sizes whose programs and weights stay on the device, beside the model's own."""


class Closable(Protocol):
    """Something that holds memory until it is closed."""

    def close(self) -> None:
        """Frees it."""


T = TypeVar("T", bound=Closable)


@dataclass
class _Kept(Generic[T]):
    made: Future[T] = field(default_factory=Future)
    users: int = 0


class Batches(Generic[T]):
    """One value for each batch size. It is made when the size first arrives, and closed once KEPT other sizes were used
    since.

    Safe to use from several threads: one thread makes the value of a size, others that want the same size wait, and
    other sizes go on. A value in use is closed after its last use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = KEPT
        self._kept: OrderedDict[int, _Kept[T]] = OrderedDict()

    @property
    def sizes(self) -> list[int]:
        """The sizes that have a value, the last used at the end."""
        with self._lock:
            return list(self._kept)

    @contextlib.contextmanager
    def using(self, size: int, make: Callable[[int], T]) -> Iterator[T]:
        """The value of a size, open as long as the context lasts. Raises what `make` raises; the next call tries
        again."""
        with self._lock:
            first = size not in self._kept
            kept = self._kept.setdefault(size, _Kept())
            self._kept.move_to_end(size)
            kept.users += 1
        try:
            if first:
                self._fill(size, make, kept)
            yield kept.made.result()
        finally:
            with self._lock:
                kept.users -= 1
            self._trim()

    def _fill(self, size: int, make: Callable[[int], T], kept: _Kept[T]) -> None:
        try:
            kept.made.set_result(make(size))
        except BaseException as error:
            with self._lock:
                del self._kept[size]
            kept.made.set_exception(error)
            raise

    def _trim(self) -> None:
        """Closes the least recently used values beyond KEPT that nobody is using."""
        with self._lock:
            unused = [size for size, kept in self._kept.items() if not kept.users]
            closed = [self._kept.pop(size) for size in unused[: max(len(self._kept) - self._most, 0)]]
        for kept in closed:
            kept.made.result().close()

    def close(self) -> None:
        """Closes all values, those in use after their last use. Values made later are closed after use."""
        with self._lock:
            self._most = 0
        self._trim()
