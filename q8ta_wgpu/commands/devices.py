"""Lists adapters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from q8ta_wgpu.errors import DeviceError

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.engine import Engine

_HEADER = ("", "adapter", "backend", "engine", "type", "packed dot", "emulated", "copy", "f16", "subgroups", "units",
           "buffers", "threads", "shared", "binding", "int8")  # fmt: skip
_LEGEND = """\
packed dot, emulated: measured int8 multiply-adds, 10^9 operations a second. copy: measured, 10^9 bytes read
and written a second. units: int8 matrix units that compute right, rows x channels x depth. buffers: storage
buffers a shader may bind. threads, shared: invocations and memory of a workgroup. binding: largest storage
binding. int8: computes the bytes that the reference computes."""


def devices(options: argparse.Namespace) -> None:
    """`devices`: lists every adapter with its limits and measured rates."""
    from q8ta_wgpu.runtime.engines import NO_ADAPTER, listed

    rows: list[tuple[str, ...]] = [_HEADER]
    problems: list[str] = []
    for number, (engine, adapter) in enumerate(listed()):
        try:
            rows.append(_row(number, engine, adapter))
            problems += _unit_faults(number)
        except DeviceError as error:
            rows.append((str(number), *_names(engine, adapter), *["-"] * 10, "no"))
            problems.append(f"{number}: {error}")
    if len(rows) == 1:
        raise DeviceError(NO_ADAPTER)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("", _LEGEND, *problems, sep="\n")


def _unit_faults(number: int) -> list[str]:
    from q8ta_wgpu.runtime.adapters import open_device

    faults = open_device(number).unit_faults
    return [f"{number}: matrix unit {unit} is not used: {text}" for unit, text in faults.items()]


def _names(engine: Engine, adapter: Any) -> tuple[str, ...]:
    info = adapter.info
    return info["device"], info["backend_type"], engine.name, info["adapter_type"]


def _row(number: int, engine: Engine, adapter: Any) -> tuple[str, ...]:
    from q8ta_wgpu.runtime.adapters import open_device

    device = open_device(number)
    if device.contract:
        raise DeviceError(f"{device.name} breaks the arithmetic contract: {device.contract}")
    device.check_loops()
    device.try_units()
    target, rates = device.target, device.dot_rates
    features = ("yes" if name in adapter.features else "no" for name in ("shader-f16", engine.subgroups))
    limits = (
        str(target.storage_buffers),
        str(target.invocations),
        f"{target.workgroup_memory >> 10} KiB",
        f"{target.binding_size >> 20} MiB",
    )
    return (
        str(number),
        *_names(engine, adapter),
        f"{rates.packed:.1f} GOP/s",
        f"{rates.emulated:.1f} GOP/s",
        f"{device.copy_rate:.1f} GB/s",
        *features,
        " ".join(map(str, target.matrix_units)) or "no",
        *limits,
        "yes",
    )
