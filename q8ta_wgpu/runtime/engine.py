"""What is taken from wgpu-py: adapters and devices, usage flags, errors, and the lock its OpenGL backend needs.

The other files of this room work on the objects that come from here by WebGPU's own names; native.py alone knows
functions that only wgpu-native has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import wgpu

from q8ta_wgpu.errors import DeviceError

STORAGE: int = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
UNIFORM: int = wgpu.BufferUsage.UNIFORM
STAGING: int = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
RESOLVE: int = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
READ: int = wgpu.MapMode.READ
COMPUTE: int = wgpu.ShaderStage.COMPUTE

GPUError = wgpu.GPUError

OPENGL = threading.RLock()
"""Held by whoever uses a device on OpenGL, lists adapters or requests a device: wgpu has one EGL context a process, and
ends the process when two threads want it. Listing enters it, and a request for any device polls those there are.

A caller's own device on OpenGL, of an adapter that `adapters` did not list, is safe only while no other one is used:
wgpu gives it no lock in common with them, and what Python collects is freed outside this one."""

_TYPE_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
_BACKEND_ORDER = {"Vulkan": 0, "Metal": 0, "D3D12": 1, "WebGPU": 1, "OpenGL": 2, "OpenGLES": 2}
_WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-passes", "subgroup", "shader-f16")
_WANTED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")

_listed: list[Any] = []


@contextlib.contextmanager
def wgpu_errors(doing: str) -> Iterator[None]:
    """What wgpu raises inside becomes a DeviceError: `doing`, and the driver's words.

    wgpu-py raises GPUError and its kinds, GPUPipelineError, and RuntimeError itself where a request or a mapping fails.
    Everything else, kinds of RuntimeError too, is somebody's mistake in Python and comes through as it is.
    """
    try:
        yield
    except (wgpu.GPUError, wgpu.GPUPipelineError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise
        words = " ".join(str(error).split()) or type(error).__name__
        raise DeviceError(f"{doing}: {words[:1000]}") from error


def adapters() -> list[Any]:
    """All wgpu adapters, best first: discrete before integrated before software, Vulkan and Metal before OpenGL.

    Listed once in a process and kept: listing again, or letting an OpenGL adapter go, enters the EGL context that
    another thread may be using.
    """
    with OPENGL, wgpu_errors("wgpu could not list adapters"):
        if not _listed:
            _listed.extend(sorted(wgpu.gpu.enumerate_adapters_sync(), key=_rank))
        return list(_listed)


def _rank(adapter: Any) -> tuple[int, int]:
    info = adapter.info
    return _TYPE_ORDER.get(info["adapter_type"], 4), _BACKEND_ORDER.get(info["backend_type"], 3)


def describe(adapter: Any) -> str:
    """`name (backend)` of an adapter."""
    return f"{adapter.info['device']} ({adapter.info['backend_type']})"


def request(adapter: Any) -> Any:
    """A wgpu device of an adapter, with the features this library uses and the limits that the adapter has."""
    with OPENGL, wgpu_errors(f"{describe(adapter)} cannot make a device"):
        features = [f for f in _WANTED_FEATURES if f in adapter.features]
        limits = {key: adapter.limits[key] for key in _WANTED_LIMITS}
        return adapter.request_device_sync(required_features=features, required_limits=limits)


def is_opengl(adapter: Any) -> bool:
    """Whether an adapter's devices share wgpu's EGL context."""
    return adapter.info["backend_type"] in ("OpenGL", "OpenGLES")


def is_device(value: Any) -> bool:
    """Whether a value is a wgpu device."""
    return isinstance(value, wgpu.GPUDevice)


def is_adapter(value: Any) -> bool:
    """Whether a value is a wgpu adapter."""
    return isinstance(value, wgpu.GPUAdapter)
