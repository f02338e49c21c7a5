"""Damaged ONNX files are read: each becomes a model, or fails with an error of this library, in bounded time and
memory, and no file outside the folder is read."""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from q8ta_wgpu import from_onnx
from q8ta_wgpu.errors import Q8taError
from testbed.onnx.mutations import mutated

SECONDS = 20.0
"""Limit of processor time for one input: the slowest of these files takes a tenth of it."""

MEMORY = 64
"""Limit of memory that reading a file may allocate, as a multiple of its size, besides WORKING bytes."""

WORKING = 1 << 30
"""A constant that a file computes has at most 2^27 elements, of 8 bytes at most."""

MEASURED = 16
"""Allocations are counted, which is slow, for one input in so many."""

_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], (str, bytes)):
        _opened.append(str(arguments[0]))


@contextmanager
def _watched() -> Iterator[list[str]]:
    """The paths that are opened meanwhile."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def fuzzed(files: Sequence[bytes], sizes: Sequence[Any], numbers: Sequence[int]) -> Counter[str]:
    """Counts outcomes of inputs. Raises AssertionError for another error, or a limit that was passed."""
    sys.addaudithook(_audit)
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as top:
        Path(top, "secret").write_bytes(b"abcd" * 100)
        folder = Path(top, "folder")
        folder.mkdir()
        path = folder / "net.onnx"
        for number in numbers:
            path.write_bytes(mutated(files, number))
            try:
                outcomes[_tried(path, sizes[number % len(files)], number % MEASURED == 0)] += 1
            except Exception as error:
                raise AssertionError(f"input {number}: {error!r}") from error
    return outcomes


def _tried(path: Path, sizes: Any, counted: bool) -> str:
    started = time.process_time()
    if counted:
        tracemalloc.start()
    outcome, message = "read", ""
    with _watched() as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from_onnx(path, *sizes)
        except Q8taError as error:
            outcome, message = f"refused: {type(error).__name__}", str(error)
        finally:
            if counted:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < MEMORY * path.stat().st_size + WORKING, f"{peak} bytes allocated"
    assert len(message) < 20_000, message[:300]
    assert time.process_time() - started < SECONDS, time.process_time() - started
    places = (str(path.parent), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    assert all(each.startswith(places) for each in opened), opened
    return outcome
