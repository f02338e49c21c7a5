"""Progress of long work: a line of text on stderr, where that is a terminal."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from q8ta_wgpu.errors import printable

Update = Callable[[int, int, str], None]
"""Called with the steps done, all steps as far as known (0: unknown), and the name of the next step."""

PATIENCE = 0.5
"""Seconds before the line appears: shorter work needs none."""

_showing = threading.Lock()
"""Held by the one visible line. Nested work, and other threads, show none."""


@contextmanager
def bar(doing: str, shown: bool = True) -> Iterator[Update]:
    """Shows the progress of some work through the function it yields. The line appears after PATIENCE and is wiped at
    the end.

    Args:
        doing: the work, in a word.
        shown: whether to show it at all.
    """
    if not shown or sys.stderr is None or not sys.stderr.isatty() or not _showing.acquire(blocking=False):
        yield lambda done, total, what: None
        return
    line = _Line(doing)
    start = Timer(PATIENCE, line.start)  # by a timer, not at an update: the first step may be the longest
    start.daemon = True
    start.start()
    try:
        yield lambda done, total, what: line.write(f"{doing} {done}/{total or '?'} {printable(what)}")
    finally:
        start.cancel()
        start.join()
        line.write("")
        _showing.release()


class _Line:
    """A line of text that is written anew, once it is started."""

    def __init__(self, text: str) -> None:
        self._text, self._started = text, False

    def start(self) -> None:
        self._started = True
        self.write(self._text)

    def write(self, text: str) -> None:
        self._text = text
        if self._started:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="" if text else "\r", file=sys.stderr, flush=True)
