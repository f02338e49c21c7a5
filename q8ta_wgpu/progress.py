"""Progress of long work: a bar on stderr where that is a terminal and rich is installed; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, TypeVar

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
    drawn = _bar() if shown and sys.stderr.isatty() else None
    if drawn is None or not _showing.acquire(blocking=False):
        yield lambda done, total, what: None
        return
    task = drawn.add_task(doing, total=None, what="")
    start = Timer(PATIENCE, drawn.start)  # not by an update: the first step may be the long one
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


def through(items: Collection[T], doing: str) -> Iterator[T]:
    """The items one after another, below a bar that names the current one."""
    with bar(doing) as update:
        for done, item in enumerate(items):
            update(done, len(items), str(item))
            yield item


def _bar() -> Any:
    """A bar of rich, not yet started; None where rich is not installed. Other output appears above it. If stdout is no
    terminal, that output goes to stdout."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(
        *columns,
        TextColumn("{task.fields[what]}"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
