"""Compiles WGSL with Tint, the compiler of Dawn and Chromium, without a GPU: through Dawn's backend Null."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any

from q8ta_wgpu.errors import one_line
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.engine import LONGEST


def refusal(text: str) -> str:
    """Tint's error for a module; empty if it compiles, or if wgpudawn is not installed."""
    dawn, device = engines.dawn(), _device()
    if dawn is None or device is None:
        return ""
    try:
        device.create_shader_module(code=text)
    except dawn.package.GPUError as error:
        return one_line(error, LONGEST)
    return ""


@functools.cache
def _device() -> Any:
    """A device of Dawn's backend Null; None if there is none."""
    dawn = engines.dawn()
    if dawn is None:
        return None
    with dawn.listing, _forced_backend("Null"), contextlib.suppress(dawn.package.GPUError, RuntimeError):
        adapter = dawn.package.gpu.request_adapter_sync()
        return adapter.request_device_sync() if adapter.info["backend_type"] == "Null" else None
    return None


@contextlib.contextmanager
def _forced_backend(name: str) -> Iterator[None]:
    """Selects a backend by the environment variable that wgpudawn reads, without its warning."""
    variable, logger = "WGPU_BACKEND_TYPE", logging.getLogger("wgpudawn")
    before, level = os.environ.get(variable), logger.level
    os.environ[variable] = name
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before
