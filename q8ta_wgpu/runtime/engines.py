"""The engines of this process and their adapters."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.runtime.dawn import Dawn
from q8ta_wgpu.runtime.engine import Engine
from q8ta_wgpu.runtime.native import WgpuNative

NAMES = (WgpuNative.name, Dawn.name)

NO_ADAPTER = (
    "no wgpu adapter on this machine. Install a GPU driver, or software Vulkan (Debian and Ubuntu: apt-get install "
    "mesa-vulkan-drivers), or compute in numpy: device='reference'"
)

native = functools.cache(WgpuNative)


@functools.cache
def dawn() -> Dawn | None:
    """Dawn, loaded when first used; None if wgpudawn is not installed."""
    try:
        return Dawn()
    except ImportError:
        return None


def engines() -> Iterator[Engine]:
    """All engines, the preferred one first. The others are loaded when iteration reaches them."""
    yield native()
    if (second := dawn()) is not None:
        yield second


def named(name: str) -> Engine:
    """The engine of a name in NAMES. Raises DeviceError if it is not installed."""
    found = next((engine for engine in engines() if engine.name == name), None)
    if found is None:
        raise DeviceError(f'the engine {name} is not installed: pip install "q8ta-wgpu[dawn]"')
    return found


def engine_of(value: Any) -> Engine | None:
    """The engine of an adapter or a device."""
    # An object of a package exists only if the package was imported. Loading wgpu-native takes half a second.
    for package, engine in (("wgpudawn", dawn), ("wgpu", native)):
        found = engine() if package in sys.modules else None
        if found is not None and found.owns(value):
            return found
    return None


def listed(only: Engine | None = None) -> Iterator[tuple[Engine, Any]]:
    """All adapters with their engines, in the order of `python -m q8ta_wgpu devices`: each engine's best first. With
    `only`, those of one engine.

    Raises DeviceError if an engine cannot list its adapters and no other one has any.
    """
    failed, found = None, False
    for engine in engines() if only is None else (only,):
        try:
            adapters = engine.adapters()
        except DeviceError as error:
            failed = failed or error
            continue
        found = found or bool(adapters)
        yield from ((engine, adapter) for adapter in adapters)
    if failed is not None and not found:
        raise failed
