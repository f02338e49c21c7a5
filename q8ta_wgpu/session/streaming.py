"""Many inputs through one session, with more than one run in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from q8ta_wgpu.errors import Q8taError

IN_FLIGHT = 3
"""Runs under way at a time: while the device computes one, the next is uploaded and the last one read."""


class Pending(Protocol):
    """A run under way, as `Executor.submit` returns it."""

    def result(self) -> Any:
        """What the run computed, once."""

    def discard(self) -> None:
        """Nobody wants the result."""


@dataclass(frozen=True)
class Finished:
    """A run whose result is made of what it computed."""

    run: Pending
    finish: Callable[[Any], Any]

    def result(self) -> Any:
        """What `finish` makes of it."""
        return self.finish(self.run.result())

    def discard(self) -> None:
        """Nobody wants the result."""
        self.run.discard()


class Computed:
    """What the reference computed at once, as a run that is over."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def result(self) -> list[Any]:
        """What was computed."""
        return self.outputs

    def discard(self) -> None:
        """Nothing is under way."""


def stream(items: Iterator[Any], start: Callable[[Any], Pending]) -> Iterator[Any]:
    """Yields `start(item).result()` for every item, in order, with up to IN_FLIGHT runs under way.

    Items are taken only as runs are started. What goes wrong with an item, or in `items` itself, is raised when its
    turn comes: after the results of all items before it. Our own errors then say the item's number, from 0. Runs whose
    results nobody takes, because the generator was closed or failed, are discarded.
    """
    runs: deque[tuple[int, Pending]] = deque()
    started = 0
    failure: Exception | None = None
    try:
        while True:
            while failure is None and len(runs) < IN_FLIGHT:
                try:
                    item = next(items)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                try:
                    runs.append((started, start(item)))
                except Exception as error:
                    failure = _numbered(error, started) if isinstance(error, Q8taError) else error
                started += 1
            if not runs:
                break
            number, run = runs.popleft()
            try:
                outputs = run.result()
            except Q8taError as error:
                raise _numbered(error, number) from error
            yield outputs
        if failure is not None:
            raise failure
    finally:
        for _, run in runs:
            run.discard()


def _numbered(error: Q8taError, number: int) -> Q8taError:
    numbered = type(error)(f"item {number}: {error}")
    numbered.__cause__ = error
    return numbered
