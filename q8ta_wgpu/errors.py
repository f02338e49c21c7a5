"""All errors of this library. A message names the value found, the value expected, where, and the way out."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

MAX_MESSAGE = 4000
"""Most characters of a message. A longer one loses its middle: what was found comes first, the way out last."""

MAX_SHOWN = 200


def shown(value: object) -> str:
    """An argument in a message: its repr without control characters, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python writes, or somebody's own __repr__
        text = f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def printable(text: str) -> str:
    """Text in one line that is safe to print on a terminal: control characters are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(said: Exception | str, most: int = 300) -> str:
    """What another library's error says, in one line of at most `most` characters, without a full stop."""
    text = " ".join(str(said).split())
    return (text if len(text) <= most else f"{text[:most]}…").rstrip(".") or type(said).__name__


def warn(text: str) -> None:
    """Warns, at the line of the caller's own code that called this library."""
    frame, level, package = sys._getframe(1), 2, __name__.split(".", maxsplit=1)[0]
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


class Q8taError(Exception):
    """Base of every error this library raises on purpose."""

    def __str__(self) -> str:
        text = super().__str__()
        half = MAX_MESSAGE // 2
        return text if len(text) <= MAX_MESSAGE else f"{text[:half]} … {text[-half:]}"


def counted(count: int, one: str, several: str = "") -> str:
    """A number of things in words: `1 input`, `2 inputs`."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def nearest(name: str, known: Iterable[str], most: int = 5) -> list[str]:
    """The known names that are most like one, the nearest first; if none is like it, the first ones."""
    names = list(known)
    return difflib.get_close_matches(name, names, n=most, cutoff=0.3) or names[:most]


class UnsupportedError(Q8taError):
    """The model uses something that cannot be imported, quantized or scheduled."""


class GraphError(Q8taError):
    """A graph breaks a rule of the IR: a dangling name, a wrong shape, dtype or attribute."""


class ModelFileError(Q8taError):
    """A .q8ta file cannot be read, or its contents are not a valid model."""


class DeviceError(Q8taError):
    """No adapter, an adapter that cannot keep the arithmetic contract, or a limit that is too small."""


class InputError(Q8taError):
    """An argument of a call (calibration data, session inputs, options) is not what the model needs."""


def check_switch(name: str, value: object) -> None:
    """Raises InputError unless an on/off option is a bool: the text 'no' would count as on."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, found {shown(value)}")


def check_items(calibration: object) -> Iterable[Any]:
    """The iterable of calibration items. Raises InputError unless it is one. The items of an array or a tensor would be
    its rows, those of a text or a dict its letters or names."""
    of_rows = hasattr(calibration, "shape") or isinstance(calibration, (str, bytes, Mapping))
    if of_rows or not isinstance(calibration, Iterable):
        raise InputError(
            f"calibration must be an iterable of inputs, found {type(calibration).__name__}: write [x] for a single one"
        )
    return calibration


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer and no bool: to Python True equals 1."""
    return isinstance(value, int) and not isinstance(value, bool)


class LinkError(Q8taError):
    """The WGSL files do not give a kernel what it needs: a name without a definition, or with several."""
