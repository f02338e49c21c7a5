"""Makes a .q8ta file of an ONNX one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from q8ta_wgpu.commands import output
from q8ta_wgpu.commands.arguments import number
from q8ta_wgpu.errors import InputError, printable, shown
from q8ta_wgpu.onnx_import.from_onnx import from_onnx


def import_(options: argparse.Namespace) -> None:
    """`import NET.onnx -o NET.q8ta`: reads, saves and reports on a network."""
    made = output.target(options.output, "-o", (".q8ta",))
    model = from_onnx(options.file, _sizes(options.size), _constants(options.constant))
    model.save(made)
    print(f"{printable(str(made))}: {model.report()}")


def _sizes(given: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Sizes of `--size NAME=NUMBER`, or of `NAME=LEAST:LARGEST` or `NAME=LEAST:LARGEST:STEP`."""
    found: dict[str, int | tuple[int, ...]] = {}
    for text in given:
        name, separator, size = text.rpartition("=")
        ends = [end for part in size.split(":") if (end := number(part)) is not None]
        if not separator or len(ends) > 3 or len(ends) <= size.count(":"):
            raise InputError(f"--size takes NAME=NUMBER or NAME=LEAST:LARGEST, such as batch=1, found {shown(text)}")
        found[name] = ends[0] if len(ends) == 1 else tuple(ends)
    return found


def _constants(given: Sequence[str]) -> dict[str, float]:
    """Numbers of `--constant NAME=NUMBER`."""
    found: dict[str, float] = {}
    for text in given:
        name, separator, number = text.rpartition("=")
        try:
            found[name] = int(number) if number.lstrip("+-").isdecimal() else float(number)
        except ValueError:
            separator = ""
        if not separator or not name:
            raise InputError(f"--constant takes NAME=NUMBER, such as sr=16000, found {text!r}")
    return found
