"""The command line: `python -m q8ta_wgpu devices | check | import | show | explain | run | time | tune | wgsl | ..`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from q8ta_wgpu import __version__
from q8ta_wgpu.errors import MAX_MESSAGE, Q8taError, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0, 2 after an error (one line on stderr), or 130 when interrupted."""
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a pipe on Windows encodes few characters; names of a network may have any
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            options = parser().parse_args(arguments)
            options.command(options)
        finally:
            if sys.stdout is not None:  # closed by the parent process
                sys.stdout.flush()
    except Q8taError as error:
        return _failed(str(error))
    except MemoryError:
        return _failed("there is not enough memory")
    except BrokenPipeError:  # `show net.q8ta | head`
        _drop_output()
    except OSError as error:  # a full disk behind stdout: files that are read and written have errors of their own
        _drop_output()
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _failed(message: str) -> int:
    """Prints an error in one line."""
    if sys.stderr is not None:
        print(f"q8ta_wgpu: {printable(' '.join(message.split()))}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Discards unwritten output, which would fail again at exit."""
    if sys.stdout is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """argparse's parser, whose messages print arguments as they are: on a terminal that could be control sequences."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line: each command, its arguments, and the function that runs it."""
    # Imported here, where an interrupt is handled: these take most of a short command's time.
    from q8ta_wgpu.commands.check import check
    from q8ta_wgpu.commands.devices import devices
    from q8ta_wgpu.commands.explain import explain
    from q8ta_wgpu.commands.export_web import export_web
    from q8ta_wgpu.commands.import_ import import_
    from q8ta_wgpu.commands.run import run
    from q8ta_wgpu.commands.show import show
    from q8ta_wgpu.commands.time import time
    from q8ta_wgpu.commands.tune import tune
    from q8ta_wgpu.commands.wgsl import wgsl
    from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES

    made = _Parser(prog="q8ta_wgpu", description="Int8 networks on any GPU.")
    made.add_argument("--version", action="version", version=f"q8ta-wgpu {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    device_help = "adapter number or part of its name, or 'reference' (default: the best adapter)"

    def command(does: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(does.__name__.strip("_").replace("_", "-"), help=about)
        added.set_defaults(command=does)
        return added

    command(devices, "list adapters with what matters here")

    checked = command(check, "try every adapter: what it offers, and whether its bytes are right")
    checked.add_argument("file", metavar="FILE", nargs="?", help="a model to run and time as well")
    checked.add_argument("--device", help="only this adapter: its number or part of its name")

    imported = command(import_, "make a .q8ta file of a quantized ONNX network")
    imported.add_argument("file", metavar="NET.onnx")
    imported.add_argument("-o", "--output", required=True, metavar="NET.q8ta")
    imported.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="of an open dimension: N, or LEAST:LARGEST"
    )
    imported.add_argument(
        "--constant", action="append", default=[], metavar="NAME=N", help="of an input that is always the same number"
    )

    shown = command(show, "print or draw a model's graph, layouts and program")
    shown.add_argument("file", metavar="FILE")
    shown.add_argument("--draw", metavar="OUT.html", help="draw it instead, as an HTML page or as OUT.svg")
    shown.add_argument("--time", action="store_true", help="with times of every dispatch in the drawing")
    shown.add_argument("--device", help="schedule for this adapter (default: WebGPU's baseline limits)")

    explained = command(explain, "print why a value is stored as it is, or all values")
    explained.add_argument("file", metavar="FILE")
    explained.add_argument("value", metavar="VALUE", nargs="?", help="its name in the network that was quantized")

    ran = command(run, "run a model on .npy files")
    ran.add_argument("file", metavar="FILE")
    ran.add_argument("--input", action="append", default=[], metavar="[NAME=]X.npy", help="once for each input")
    ran.add_argument("--output", required=True, metavar="Y.npy", help="or Y.npz, which holds several outputs by name")
    ran.add_argument("--device", help=device_help)

    timed = command(time, "time every dispatch on the GPU")
    timed.add_argument("file", metavar="FILE")
    timed.add_argument("--input", action="append", default=[], metavar="[NAME=]X.npy", help="default: random numbers")
    timed.add_argument("--repeats", type=int, default=20)
    timed.add_argument("--json", metavar="OUT.json", help="write what was measured")
    timed.add_argument("--device", help=device_help)

    tuned = command(tune, "choose kernels by timing them, and keep what was measured")
    tuned.add_argument("file", metavar="FILE", nargs="?")
    tuned.add_argument("--device", help="adapter number or part of its name (default: the best adapter)")
    tuned.add_argument("--layouts", default="optimal", choices=POLICIES, help="policy of layout sync")
    tuned.add_argument("--clear", action="store_true", help="first forget what was measured on this adapter")

    linked = command(wgsl, "print the WGSL of the dispatch that writes a value, or of a kernel")
    linked.add_argument("what", metavar="FILE VALUE | KERNEL", nargs="+")
    linked.add_argument("--device", help="link for this adapter (default: WebGPU's baseline limits)")

    exported = command(export_web, "write a model for web pages, or a page that checks a browser")
    exported.add_argument("file", metavar="FILE", nargs="?", help="a model; with --check, one to run and time as well")
    exported.add_argument("folder", metavar="FOLDER")
    exported.add_argument("--check", action="store_true", help="write a page that runs every kernel and compares bytes")
    exported.set_defaults(version=__version__)
    return made


if __name__ == "__main__":
    sys.exit(main())
