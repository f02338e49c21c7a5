"""Lines of long work: on a terminal alone, one at a time, and wiped at the end, whatever happens."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from threading import Timer

import pytest
import torch

import q8ta_wgpu as q8
from q8ta_wgpu import progress

WIPED = f"\r{' ' * 79}\r"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class AtOnce:
    """A timer without patience."""

    def __init__(self, _: float, function: Callable[[], None]) -> None:
        self.start = function

    def cancel(self) -> None: ...

    def join(self) -> None: ...


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bars need no patience, and every one is ended."""
    monkeypatch.setattr(progress, "Timer", AtOnce)
    monkeypatch.setenv("COLUMNS", "80")
    yield
    showing = progress._showing
    assert showing.acquire(blocking=False), "a bar is still shown"
    showing.release()


def shown(stream: io.StringIO) -> str:
    """What a bar writes on a stream."""
    with redirect_stderr(stream), progress.bar("tuning") as update:
        update(3, 10, "q8ta_add")
    return stream.getvalue()


def test_a_terminal_sees_how_far_the_work_is() -> None:
    text = shown(Terminal())
    assert "tuning" in text and "3/10" in text and "q8ta_add" in text
    assert text.endswith(WIPED)


def test_everything_else_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO()) == ""
    with monkeypatch.context() as patched:
        patched.setattr(progress, "Timer", Timer)
        patched.setattr(progress, "PATIENCE", 60.0)
        assert shown(Terminal()) == ""
    with redirect_stderr(Terminal()) as stream, progress.bar("tuning", shown=False) as update:
        update(0, 3, "")
    assert stream.getvalue() == ""
    with redirect_stderr(None), progress.bar("tuning") as update:
        update(0, 3, "")


def test_a_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    lines = shown(Terminal()).split("\r")
    assert [line.rstrip() for line in lines] == ["", "tuning", "tuning 3/10 q8ta_ad", "", ""]
    assert {len(line) for line in lines[1:-1]} == {19}


def test_work_within_work_stays_silent() -> None:
    with redirect_stderr(Terminal()) as stream, progress.bar("tuning") as update:
        update(0, 1, "outer")
        with progress.bar("compiling") as inner:
            inner(0, 1, "inner")
    assert "outer" in stream.getvalue() and "compiling" not in stream.getvalue()


def test_an_error_ends_the_bar() -> None:
    def fail() -> None:
        with progress.bar("tuning") as update:
            update(0, 1, "part")
            raise KeyboardInterrupt

    with redirect_stderr(Terminal()) as stream, pytest.raises(KeyboardInterrupt):
        fail()
    assert "part" in stream.getvalue() and stream.getvalue().endswith(WIPED)


def test_quantizing_and_compiling_tell_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, str]] = []

    @contextmanager
    def recorded(doing: str, shown: bool = True) -> Iterator[progress.Update]:
        yield lambda done, total, what: seen.append((done, total, f"{doing}: {what}"))

    monkeypatch.setattr("q8ta_wgpu.frontend.quantize_module.bar", recorded)
    monkeypatch.setattr("q8ta_wgpu.frontend.compile.bar", recorded)
    x = torch.ones(1, 4)
    q8.compile(q8.quantize(torch.nn.Linear(4, 4).eval(), (x,), calibration=[x, x]))
    steps = ["exporting the module", "folding constants and batch norms", "finding what is stored"]
    steps += ["calibrating"] * 2 + ["choosing scales and quantizing weights"]
    assert seen == [
        *((done, 6, f"quantizing: {what}") for done, what in enumerate(steps)),
        (0, 2, "compiling: reading the program"),
        (1, 2, "compiling: fusing its operators"),
    ]
