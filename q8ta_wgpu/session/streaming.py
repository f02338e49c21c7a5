"""A stream of inputs through one session, with several runs in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from q8ta_wgpu.errors import Q8taError

IN_FLIGHT = 3
"""Runs in flight: while the device computes one, the next is uploaded and the last one is read."""


class Pending(Protocol):
    """A run in flight, as `Executor.submit` returns it."""

    def result(self) -> Any:
        """What the run computed; call it once."""

    def discard(self) -> None:
        """Drops the result."""


@dataclass(frozen=True)
class Finished:
    """A run in flight and the function that makes its result."""

    run: Pending
    finish: Callable[[Any], Any]

    def result(self) -> Any:
        """What `finish` returns."""
        return self.finish(self.run.result())

    def discard(self) -> None:
        """Drops the result."""
        self.run.discard()


class Computed:
    """Results that the reference computed at once, as a run."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def result(self) -> list[Any]:
        """The results."""
        return self.outputs

    def discard(self) -> None:
        """Does nothing: no run is in flight."""


def stream(items: Iterator[Any], start: Callable[[Any], Pending]) -> Iterator[Any]:
    """Yields `start(item).result()` for every item, in order, with up to IN_FLIGHT runs in flight.

    An item is taken only when its run starts. An error of an item, or of `items` itself, is raised at its turn: after
    the results of all items before it. Errors of this library then give the item's number, from 0. When the generator
    is closed or fails, results in flight are discarded.
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
