"""Tests every adapter, for a new GPU or a bug report: what it offers, and whether it computes the right bytes."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from q8ta_wgpu.commands import arguments
from q8ta_wgpu.commands.arguments import opened
from q8ta_wgpu.commands.devices import describe
from q8ta_wgpu.commands.example import Sample, samples
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.program.build import build
from q8ta_wgpu.progress import bar
from q8ta_wgpu.session import inputs
from q8ta_wgpu.session.session import Session

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.device import Device


def check(options: argparse.Namespace) -> None:
    """`check [FILE]`: tests every engine and adapter and prints a verdict. Raises DeviceError where bytes are wrong."""
    model = opened(options.file) if options.file else None
    names = ("q8ta-wgpu", "wgpu", "wgpudawn", "numpy")
    packages = (f"{name} {version(name)}" for name in names if _installed(name))
    print(f"{', '.join(packages)}, Python {platform.python_version()}, {platform.platform()}")
    from q8ta_wgpu.runtime.adapters import open_device

    right: list[str] = []
    wrong: list[str] = []
    for number, name in _adapters(options.device):
        print(f"\n{number}: {name}\n  measuring its speed, and trying its arithmetic ...", flush=True)
        try:
            device = open_device(number)
            device.try_units()
            problems = list(checked(device, model, samples(device.target)))
        except DeviceError as error:
            problems = [str(error)]
        print(*(f"  WRONG: {text}" for text in problems), sep="\n", end="\n" if problems else "")
        (wrong if problems else right).append(name)
    if wrong:
        raise DeviceError(f"verdict: do not use {', '.join(wrong)}; right: {', '.join(right) or 'none'}")
    print(f"\nverdict: right bytes from {', '.join(right)}")


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except ModuleNotFoundError:
        return False


def _adapters(wanted: str | None) -> list[tuple[int, str]]:
    """Positions and names of all adapters, or of the named one."""
    from q8ta_wgpu.runtime.adapters import open_device, titles
    from q8ta_wgpu.runtime.engines import NO_ADAPTER

    found = list(enumerate(titles()))
    if wanted is not None:
        name = open_device(arguments.device(wanted)).name
        found = [(number, other) for number, other in found if other == name][:1]
    if not found:
        raise DeviceError(NO_ADAPTER)
    return found


def checked(device: Device, model: Model | None, kernels: Iterable[Sample]) -> Iterator[str]:
    """Prints what a device offers and the results of kernels and of a model. Yields what is wrong."""
    describe(device)
    if device.contract:
        yield f"the arithmetic contract: {device.contract}"
    if device.loop_turns < device.target.loop_turns:
        yield f"loops end after {device.loop_turns} turns, kernels rely on {device.target.loop_turns}"
    yield from _kernels(device, kernels)
    if model is not None:
        yield from _model(device, model)


def _kernels(device: Device, kernels: Iterable[Sample]) -> Iterator[str]:
    print("  compiling and running every kernel (minutes without a GPU) ...", flush=True)
    started, bad, bytes_, count = time.perf_counter(), dict[str, int](), 0, 0
    with bar("kernels") as update:
        for sample in kernels:
            update(count, 0, sample.kernel)
            try:
                if found := mismatches(device, device.target, sample):
                    bad[sample.kernel] = found
            except DeviceError as error:  # report what was found before it
                yield f"{sample.kernel}: {error}"
            bytes_, count = bytes_ + sample.expected.nbytes, count + 1
    seconds = time.perf_counter() - started
    print(f"  kernels: {count} compiled and run in {seconds:.1f} s, {sum(bad.values())} of {bytes_} bytes differ")
    yield from (f"{kernel}: {found} bytes differ" for kernel, found in bad.items())


def mismatches(device: Device, target: Target, sample: Sample) -> int:
    """Number of bytes of a kernel's result that differ from the reference's. Raises DeviceError where it does not
    run."""
    from q8ta_wgpu.runtime.executor import Executor

    executor = Executor(build(sample.graph, target, sample.plan), device)
    try:
        executor.poison(0x8F7F80FF)
        words = inputs.words(executor.program.inputs, sample.inputs)
        found = inputs.from_words(executor.program.outputs[0], executor.run(words)[0])
        one, other = (np.frombuffer(array.tobytes(), np.uint8) for array in (found, sample.expected))
        return int((one != other).sum())
    finally:
        executor.close()


def _model(device: Device, model: Model) -> Iterator[str]:
    """Prints the time of a model. Yields what is wrong with its bytes, where they are defined."""
    print("  compiling and running the model ...", flush=True)
    arrays = arguments.random_inputs(model)
    with Session(model, device) as session:
        found = model.structure.flatten(session(**arrays))
        took = []
        for _ in range(5):
            started = time.perf_counter()
            session(**arrays)
            took.append(time.perf_counter() - started)
        print(f"  model: {1e3 * float(np.median(took)):.2f} ms a call, numpy to numpy; {session.opening}")
    if not model.report().exact:
        print("  its float32 operators have tolerances: bytes are not compared")
        return
    print("  computing it with the reference ...", flush=True)
    expected = model.structure.flatten(Session(model, "reference")(**arrays))
    differ = sum(_differing(f, e) for f, e in zip(found, expected, strict=True))
    print(f"  model: {differ} of {sum(e.nbytes for e in expected)} bytes differ")
    if differ:
        yield f"the model: {differ} bytes differ"


def _differing(found: Array, expected: Array) -> int:
    return int((found.view(np.uint8) != expected.view(np.uint8)).sum())
