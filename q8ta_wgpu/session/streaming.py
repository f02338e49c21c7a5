"""Runs a stream of inputs through sessions, with several runs in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

from q8ta_wgpu.errors import InputError, Q8taError
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.session import inputs

IN_FLIGHT = 3
"""Runs in flight for each session: the device computes one while the next is uploaded and the last one is read."""


class Pending(Protocol):
    """A run in flight, as `Executor.submit` returns it."""

    def result(self) -> Any:
        """What the run computed; call it once."""

    def discard(self) -> None:
        """Drops the result."""


class Starts(Protocol):
    """The part of a session that streams use."""

    model: Model

    def _begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pending: ...


@dataclass(frozen=True)
class Finished:
    """A run in flight, and a function of its result."""

    run: Pending
    finish: Callable[[Any], Any]

    def result(self) -> Any:
        """What `finish` returns."""
        return self.finish(self.run.result())

    def discard(self) -> None:
        """Drops the result."""
        self.run.discard()


class Computed:
    """A run of the reference, which has finished when it is made."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def result(self) -> list[Any]:
        """The results."""
        return self.outputs

    def discard(self) -> None:
        """Does nothing: no run is in flight."""


class Reader:
    """A thread that takes the results of runs as soon as the device has finished them. Where no thread begins any more,
    since Python is ending or the system allows no more of them, the thread that asks for a result takes it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "q8ta-read")
        try:
            self._threads.submit(int).result()  # begins the thread
            self._begun = True
        except RuntimeError:
            self._begun = False

    def taking(self, run: Pending) -> Pending:
        """A run in flight whose result this thread takes."""
        if self._begun:
            with suppress(RuntimeError):  # Python has begun to end
                return ReadApart(run, self._threads.submit(run.result))
        return run

    def close(self) -> None:
        """Lets the thread end once it has taken its results."""
        self._threads.shutdown(wait=False)


@dataclass(frozen=True)
class ReadApart:
    """A run in flight whose result another thread takes, and the future of that result."""

    run: Pending
    future: Future[Any]

    def result(self) -> Any:
        """What the run computed."""
        return self.future.result()

    def discard(self) -> None:
        """Drops the result."""
        if self.future.cancel():
            self.run.discard()


def run_many(sessions: Sequence[Starts], items: Iterable[Any]) -> Iterator[Any]:
    """`Session.run_many` over several sessions on different adapters. They take items in turns.

    Examples:
        >>> sessions = [session, session]    # of two GPUs: Session(model, "nvidia#0"), Session(model, "nvidia#1")
        >>> results = [y for y in q8.run_many(sessions, [x, x, x])]

    Args:
        sessions: sessions of one model. All get equally many items, so adapters of equal speed share the work best.
        items: as for `Session.run_many`. At most three for each session are taken ahead of the outputs.

    Yields:
        What a call returns, for each item, in the order of the items.

    Raises:
        InputError: there are no sessions, or several of a model with states; or an item is wrong: raised at its turn,
            with its number.
        DeviceError: a device fails, likewise.
    """
    if isinstance(items, Mapping):
        raise InputError("run_many takes many items, found one mapping: write run_many([item])")
    try:
        iterator = iter(items)
    except TypeError as error:
        raise InputError(f"run_many takes an iterable of inputs, found {type(items).__name__}") from error
    if not sessions:
        raise InputError("run_many takes at least one session, found none")
    if len(sessions) > 1 and (states := [state.name for state in sessions[0].model.graph.states]):
        raise InputError(
            f"the model keeps {', '.join(states)} from call to call, and each session its own: give all items of a "
            "sequence to one session, session.run_many(items)"
        )
    if len(sessions) == 1:
        return stream(iterator, lambda item: sessions[0]._begin(*inputs.arguments(item)))
    return _in_turns(sessions, iterator)


def _in_turns(sessions: Sequence[Starts], items: Iterator[Any]) -> Iterator[Any]:
    """A stream over several sessions. This thread writes their inputs; each session has a thread that reads its
    results, since the copies of both would take one thread longer than the devices."""
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(Reader())) for _ in sessions]
        turns = cycle(zip(sessions, readers, strict=True))

        def start(item: Any) -> Pending:
            session, reader = next(turns)
            return reader.taking(session._begin(*inputs.arguments(item)))

        yield from stream(items, start, IN_FLIGHT * len(sessions))


def stream(items: Iterator[Any], start: Callable[[Any], Pending], in_flight: int = IN_FLIGHT) -> Iterator[Any]:
    """Yields `start(item).result()` for every item, in order, with up to `in_flight` runs in flight.

    An item is taken only when its run starts. An error of an item, or of `items` itself, is raised at its turn: after
    the results of all items before it. Errors of this library then have the item's number, from 0. When the generator
    is closed or fails, results in flight are discarded.
    """
    runs: deque[tuple[int, Pending]] = deque()
    started = 0
    failure: Exception | None = None
    try:
        while True:
            while failure is None and len(runs) < in_flight:
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
