"""The command line: `python -m q8ta_wgpu devices | show FILE | run FILE | time FILE | tune FILE`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from q8ta_wgpu.errors import DeviceError, InputError, Q8taError
from q8ta_wgpu.ir.graph import FLOAT32, Array
from q8ta_wgpu.model.model import Model, load
from q8ta_wgpu.passes.layout_sync.plan import POLICIES
from q8ta_wgpu.session.session import Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, or 2 after an error told in one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except Q8taError as error:
        print(f"q8ta_wgpu: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `show net.q8ta | head`; what is left unwritten must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="q8ta_wgpu", description="Int8 networks on any GPU.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    device_help = "adapter number or part of its name, or 'reference' (default: the best adapter)"

    devices = commands.add_parser("devices", help="list adapters with what matters here")
    devices.set_defaults(command=_devices)

    show = commands.add_parser("show", help="print a model's graph, layouts and program")
    show.set_defaults(command=_show)
    show.add_argument("file", metavar="FILE")
    show.add_argument("--device", help="schedule for this adapter (default: WebGPU's baseline limits)")

    run = commands.add_parser("run", help="run a model on .npy files")
    run.set_defaults(command=_run)
    run.add_argument("file", metavar="FILE")
    run.add_argument("--input", action="append", default=[], metavar="[NAME=]X.npy", help="once for each input")
    run.add_argument("--output", required=True, metavar="Y.npy", help="or Y.npz, which holds several outputs by name")
    run.add_argument("--device", help=device_help)

    timed = commands.add_parser("time", help="time every dispatch on the GPU")
    timed.set_defaults(command=_time)
    timed.add_argument("file", metavar="FILE")
    timed.add_argument("--input", action="append", default=[], metavar="[NAME=]X.npy", help="default: random numbers")
    timed.add_argument("--repeats", type=int, default=20)
    timed.add_argument("--device", help=device_help)

    tuned = commands.add_parser("tune", help="choose kernels by timing them, and keep what was measured")
    tuned.set_defaults(command=_tune)
    tuned.add_argument("file", metavar="FILE", nargs="?")
    tuned.add_argument("--device", help="adapter number or part of its name (default: the best adapter)")
    tuned.add_argument("--layouts", default="optimal", choices=POLICIES, help="policy of layout sync")
    tuned.add_argument("--clear", action="store_true", help="first forget what was measured on this adapter")
    return parser


def _device(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


# --- devices ---


def _devices(options: argparse.Namespace) -> None:
    from q8ta_wgpu.runtime.engine import adapters

    header = ("", "adapter", "backend", "type", "packed dot", "emulated", "copy", "f16", "subgroups", "buffers",
              "threads", "shared", "binding", "int8")  # fmt: skip
    rows: list[tuple[str, ...]] = [header]
    problems: list[str] = []
    for number, adapter in enumerate(adapters()):
        try:
            rows.append(_device_row(number, adapter))
        except DeviceError as error:
            rows.append((str(number), *_names(adapter), *["-"] * 9, "no"))
            problems.append(f"{number}: {error}")
    if len(rows) == 1:
        raise DeviceError("no wgpu adapter on this machine: install a GPU driver or software Vulkan")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    print(
        "packed dot, emulated: measured int8 multiply-adds, 10^9 operations a second. copy: measured, 10^9 bytes read"
    )
    print(
        "and written a second. buffers: storage buffers a shader may bind. threads, shared: invocations and memory of"
    )
    print("a workgroup. binding: largest storage binding. int8: computes the bytes that the reference computes.")
    print(*problems, sep="\n", end="\n" if problems else "")


def _names(adapter: Any) -> tuple[str, str, str]:
    info = adapter.info
    return info["device"], info["backend_type"], info["adapter_type"]


def _device_row(number: int, adapter: Any) -> tuple[str, ...]:
    from q8ta_wgpu.runtime.device import open_device

    device = open_device(number)
    if device.contract:
        raise DeviceError(f"{device.name} breaks the arithmetic contract: {device.contract}")
    target, rates = device.target, device.dot_rates
    features = ("yes" if name in adapter.features else "no" for name in ("shader-f16", "subgroup"))
    limits = (
        str(target.storage_buffers),
        str(target.invocations),
        f"{target.workgroup_memory >> 10} KiB",
        f"{target.binding_size >> 20} MiB",
    )
    return (
        str(number),
        *_names(adapter),
        f"{rates.packed:.1f} GOP/s",
        f"{rates.emulated:.1f} GOP/s",
        f"{device.copy_rate:.1f} GB/s",
        *features,
        *limits,
        "yes",
    )


# --- models ---


def _show(options: argparse.Namespace) -> None:
    from q8ta_wgpu.ir.target import BASELINE
    from q8ta_wgpu.passes.layout_sync.report import layout_report
    from q8ta_wgpu.passes.lower import lower
    from q8ta_wgpu.program.build import build

    model = load(options.file)
    target = BASELINE
    if options.device not in (None, "reference"):
        from q8ta_wgpu.runtime.device import open_device

        target = open_device(_device(options.device)).target
    graph = lower(model.graph, target)
    layouts = layout_report(graph, target)
    program = build(graph, target, layouts.optimal)
    parts = model.graph, model.report(), f"layouts\n{layouts}", f"program for {target.name}: {program}"
    print(*parts, sep="\n\n")


def _run(options: argparse.Namespace) -> None:
    model = load(options.file)
    inputs = _inputs(model, options.input)
    missing = [name for name in model.graph.inputs if name not in inputs]
    if missing:
        raise InputError(f"{options.file} takes {_described(model)}; missing: {', '.join(missing)}")
    target = Path(options.output)
    names = model.graph.outputs
    if target.suffix not in (".npy", ".npz"):
        raise InputError(f"--output must end in .npy or .npz, found {options.output}")
    if target.suffix == ".npy" and len(names) != 1:
        raise InputError(
            f"{options.file} has {len(names)} outputs ({', '.join(names)}): use --output {target.stem}.npz"
        )
    with Session(model, _device(options.device)) as session:
        outputs = model.structure.flatten(session(**inputs))
        where = session.name
    try:
        if target.suffix == ".npy":
            np.save(target, outputs[0])
        else:
            _write_npz(target, {_key(names, i): array for i, array in enumerate(outputs)})
    except OSError as error:
        raise InputError(f"cannot write {target}: {error}") from error
    described = ", ".join(
        f"{name} {array.dtype}{list(array.shape)}" for name, array in zip(names, outputs, strict=True)
    )
    print(f"{target}: {described}, computed on {where}")


def _write_npz(target: Path, arrays: Mapping[str, Array]) -> None:
    """As np.savez, which cannot write an array called `file`."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _key(names: Sequence[str], i: int) -> str:
    """An output's name; numbered where one value goes out twice."""
    return names[i] if names.count(names[i]) == 1 else f"{names[i]}.{i}"


def _time(options: argparse.Namespace) -> None:
    started = time.perf_counter()
    model = load(options.file)
    read = time.perf_counter() - started
    inputs: dict[str, Any] = {**_random(model), **_inputs(model, options.input)}
    with Session(model, _device(options.device)) as session:
        called = time.perf_counter()
        session(**inputs)
        first = time.perf_counter() - called
        timing = session.time(repeats=options.repeats, **inputs)
        loaded = read + session.opening.total
        print(f"load: file {1e3 * read:.0f} ms, {session.opening} = {loaded:.2f} s; first result {first:.2f} s later")
        print(session.memory)
        print(timing)


def _tune(options: argparse.Namespace) -> None:
    if options.file is None and not options.clear:
        raise InputError("tune takes a FILE, or --clear to forget what was measured")
    if options.clear:
        _clear(options.device)
    if options.file is None:
        return
    model = load(options.file)
    device, rounds, inputs = _device(options.device), 3, _random(model)
    with (
        Session(model, device, options.layouts, tune=True) as tuned,
        Session(model, device, options.layouts) as untuned,
    ):
        print(tuned.tuning)
        pairs = [[s.time(repeats=5, warmup=2, **inputs).runs for s in (untuned, tuned)] for _ in range(rounds)]
        before, after = (float(np.median(np.concatenate(runs))) / 1e3 for runs in zip(*pairs, strict=True))
        print(
            f"measured: {before:.3f} ms GPU time a run by the rules, {after:.3f} ms tuned, {before / after:.3f} times"
        )


def _clear(device: str | None) -> None:
    from q8ta_wgpu.runtime.device import open_device
    from q8ta_wgpu.tune.cache import Cache

    opened = open_device(_device(device))
    cache = Cache.of(opened.wgpu.adapter.info)
    try:
        print(f"removed {cache.path}" if cache.clear() else f"nothing was kept for {opened.name}")
    except OSError as error:
        raise InputError(f"cannot remove {cache.path}: {error}") from error


def _random(model: Model) -> dict[str, Array]:
    """Random arrays for every input, of the dtype it is given as."""
    generator, found = np.random.default_rng(0), {}
    for name, t in model.inputs.items():
        drawn = generator.normal(0, 1, t.shape) if t.dtype == FLOAT32 else generator.integers(0, 256, t.shape)
        found[name] = drawn.astype(model.graph.given(name))
    return found


def _inputs(model: Model, given: Sequence[str]) -> dict[str, Array]:
    """Arrays of `--input`: NAME=FILE, or FILE for the inputs in order."""
    names = model.graph.inputs
    found: dict[str, Array] = {}
    for text in given:
        name, separator, file = text.partition("=")
        if not separator or name not in names:
            if separator and not Path(text).exists():
                raise InputError(f"the model has no input {name!r}; it takes {_described(model)}")
            free = [n for n in names if n not in found]
            if not free:
                raise InputError(f"{len(given)} inputs given, the model takes {_described(model)}")
            name, file = free[0], text
        if name in found:
            raise InputError(f"input {name!r} was given twice")
        found[name] = _read(file)
    return found


def _described(model: Model) -> str:
    return ", ".join(map(model.graph.described, model.graph.inputs)) or "no inputs"


def _read(file: str) -> Array:
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        # numpy takes whatever is no .npy for a pickle, and says how to load it unsafely.
        reason = "write it with numpy.save(file, array)" if isinstance(error, ValueError) else error
        raise InputError(f"{file} is not a readable .npy file of numbers: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{file} holds several arrays: give each input its own .npy file")
    return array


if __name__ == "__main__":
    sys.exit(main())
