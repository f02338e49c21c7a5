"""Progress of long work on stderr, where that is a terminal: a bar if rich is installed, else a line of text."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, TypeVar

from q8ta_wgpu.errors import printable

T = TypeVar("T")

Update = Callable[[int, int, str], None]
"""Called with the steps done, all steps as far as known (0: unknown), and the name of the next step."""

PATIENCE = 0.5
"""Seconds before a bar appears: shorter work needs none."""

_showing = threading.Lock()
"""Held by the one visible bar. Nested work, and other threads, show none."""


@contextmanager
def bar(doing: str, shown: bool = True) -> Iterator[Update]:
    """Shows the progress of some work through the function it yields. The bar appears after PATIENCE and is wiped at
    the end.

    Args:
        doing: the work, in a word.
        shown: whether to show it at all.
    """
    drawn = _bar() if shown and visible() else None
    if drawn is None or not _showing.acquire(blocking=False):
        yield lambda done, total, what: None
        return
    task = drawn.add_task(doing, total=None, what="")
    start = Timer(PATIENCE, drawn.start)  # by a timer, not at an update: the first step may be the longest
    start.daemon = True
    start.start()

    def update(done: int, total: int, what: str) -> None:
        drawn.update(task, completed=done, total=total or None, what=what)

    try:
        yield update
    finally:
        start.cancel()
        start.join()
        drawn.stop()
        _showing.release()


def visible() -> bool:
    """Whether a bar that begins now would be seen."""
    return sys.stderr is not None and sys.stderr.isatty() and not _showing.locked()


def through(items: Collection[T], doing: str) -> Iterator[T]:
    """The items one after another, below a bar that names the current one."""
    with bar(doing) as update:
        for done, item in enumerate(items):
            update(done, len(items), str(item))
            yield item


def _bar() -> Any:
    """A bar of rich, not yet started, or a line in its place. Other output appears above a bar. If stdout is no
    terminal, that output goes to stdout."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return _Line()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(
        *columns,
        TextColumn("{task.fields[what]}"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )


class _Line:
    """What is used of rich's bar, as a line of text that is written anew."""

    def __init__(self) -> None:
        self._doing = self._text = ""
        self._started = False

    def add_task(self, doing: str, **_: object) -> None:
        self._doing = self._text = doing

    def update(self, task: None, completed: int, total: int | None, what: str) -> None:
        self._text = f"{self._doing} {completed}/{total or '?'} {printable(what)}"
        self._draw(self._text)

    def start(self) -> None:
        self._started = True
        self._draw(self._text)

    def stop(self) -> None:
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._started:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="" if text else "\r", file=sys.stderr, flush=True)
