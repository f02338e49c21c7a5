"""Lists adapters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.kernels.product import speeds

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.device import Device

UNKNOWN = "its family is unknown to the rules that choose kernels: Session(model, tune=True) measures them"
FAMILY = "a checkout's `python -m bench family --device dawn` measures the family for everybody: docs/portability.md"
"""What is said of adapters without a file in kernels/product/families/; the second of those with matrix units."""


def devices(options: argparse.Namespace) -> None:
    """`devices`: lists every adapter with its limits and measured rates, and whether int8 networks run on it."""
    from q8ta_wgpu.runtime.adapters import open_device, titles
    from q8ta_wgpu.runtime.engines import NO_ADAPTER

    found = titles()
    if not found:
        raise DeviceError(NO_ADAPTER)
    for number, title in enumerate(found):
        print(f"{number}: {title}")
        try:
            device = open_device(number)
            if device.contract:
                raise DeviceError(f"{device.name} breaks the arithmetic contract: {device.contract}")
            device.check_loops()
            device.try_units()
            describe(device)
            print("  int8: computes the bytes that the reference computes")
        except DeviceError as error:
            print(f"  int8: no, {error}")


def describe(device: Device) -> None:
    """Prints what a device offers, what was measured on it, and why matrix units are not used."""
    target, rates, info = device.target, device.dot_rates, device.wgpu.adapter.info
    driver = " ".join(filter(None, (info["vendor"], info["description"]))) or "of no name"
    print(f"  {info['adapter_type']}, ids {info['vendor_id']:04x}:{info['device_id']:04x}, driver {driver}")
    print(f"  features: {', '.join(sorted(device.wgpu.features)) or 'none'}")
    print(
        f"  limits: {target.storage_buffers} storage buffers, {target.invocations} threads and "
        f"{target.workgroup_memory >> 10} KiB a workgroup, {target.binding_size >> 20} MiB a binding"
    )
    units = ", ".join(map(str, target.matrix_units)) or "none"
    print(
        f"  speed: {rates.packed:.1f} GOP/s by packed dot products, {rates.emulated:.1f} emulated "
        f"({'packed' if target.packed_dot else 'emulated'} ones are used), copies {device.copy_rate:.1f} GB/s; "
        f"int8 matrix units: {units}"
    )
    if not speeds.known(target):
        print(f"  {UNKNOWN}")
        if target.matrix_units:
            print(f"  {FAMILY}")
    for unit, text in device.unit_faults.items():
        print(f"  matrix unit {unit} is not used: {text}")
