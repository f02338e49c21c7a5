"""Dawn, from the optional package wgpudawn: its toggles, waiting, thread safety and matrix units.

If a version of wgpudawn lacks a private name that is used here, WebGPU's public API is used instead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from q8ta_wgpu.ir.target import MatrixUnit
from q8ta_wgpu.runtime.engine import Engine, Lock
from q8ta_wgpu.runtime.handles import HandleRecorder, Mapped
from q8ta_wgpu.runtime.locks import ProcessLock
from q8ta_wgpu.runtime.recording import Staging

_SYNCHRONIZED = "implicit-device-synchronization"
"""Dawn's feature that lets several threads use a device."""

_MATRICES = "chromium-experimental-subgroup-matrix"

_EXACT_CLOCK = ("timestamp_quantization",)
"""The toggle that makes timestamps coarse, as a protection against websites. It is disabled."""

_UNCLEARED = ("disable_workgroup_init",)
"""Dawn's toggle to leave workgroup memory uncleared, since kernels write it before they read it. With clearing,
products on matrix units take 1 to 4 % longer on an H200, and SwiftShader compiles longer."""

_EXPLICIT = ("Vulkan", "Metal", "D3D12")
"""Backends that list each card once."""

_BLOCK = 100_000_000
"""Nanoseconds of a blocking wait, after which Python may handle a signal."""


class DawnRecorder(HandleRecorder):
    """Recording by Dawn's functions. Dawn reports errors of recorded commands when the encoder finishes."""

    def _prepare(self) -> None:
        from wgpudawn.backends.dawn import _api as api

        self.api = api
        # Called in `_wait` by the waiting thread: it processes no other thread's events.
        self.mode = api.lib.WGPUCallbackMode_WaitAnyOnly
        super()._prepare()
        self._instance = api.get_wgpu_instance()

    def submit(self, staging: Staging, commands: Any) -> None:
        """Submits the commands that were recorded for `staging`."""
        self._commands[0] = commands._internal
        self._safe.wgpuQueueSubmit(self._queue, 1, self._commands)

    def _wait(self, mapped: Mapped, submitted: Any, future: Any, blocking: float) -> None:
        wait, waited = self._safe.wgpuInstanceWaitAny, self.api.ffi.new("WGPUFutureWaitInfo *")
        waited.future = future
        while not waited.completed:
            status = wait(self._instance, 1, waited, 0 if time.perf_counter() < blocking else _BLOCK)
            if status not in (self.api.lib.WGPUWaitStatus_Success, self.api.lib.WGPUWaitStatus_TimedOut):
                raise RuntimeError(f"waiting for a buffer failed with status {status}")


class Dawn(Engine):
    """Dawn, Chromium's WebGPU. Raises ImportError if wgpudawn is not installed.

    A process has one instance of Dawn. Unless the application has made it already, it is made with `allow_unsafe_apis`,
    without which adapters hide their matrix units.
    """

    name = "dawn"
    features = ("timestamp-query", "subgroups", "shader-f16", _SYNCHRONIZED, _MATRICES)
    subgroups = "subgroups"
    recorder = DawnRecorder

    def __init__(self) -> None:
        import wgpudawn
        from wgpudawn.backends.dawn import extras

        super().__init__(wgpudawn)
        self._extras = extras
        with contextlib.suppress(RuntimeError):  # the caller made the instance already
            extras.set_instance_extras(enable_toggles=["allow_unsafe_apis"])

    def _enumerate(self) -> list[Any]:
        """All adapters. Of equal ones the package lists the first alone; its private list has each of them."""
        found = super()._enumerate()
        every: list[Any] = []
        with contextlib.suppress(AttributeError, TypeError):  # a version or a build without that list
            every = self.package.gpu._enumerate_all_adapters()
        explicit = [adapter.info for adapter in found if adapter.info["backend_type"] in _EXPLICIT]
        others = [adapter for adapter in found if adapter.info not in explicit]
        equal = [adapter for adapter in every if adapter.info in explicit]
        return equal + others if len(equal) >= len(explicit) else found

    def _request(self, adapter: Any, features: list[str], limits: Mapping[str, int]) -> Any:
        # An adapter of Dawn makes only one device. Another one needs an adapter from a new listing: the one at the same
        # index among equal cards.
        equal = [a for a in self._listed if a.info == adapter.info]
        fresh = [a for a in self._enumerate() if a.info == adapter.info]
        if adapter in equal and len(fresh) == len(equal):
            adapter = fresh[equal.index(adapter)]
        if _MATRICES in features:  # their tiles need more workgroup memory than WebGPU's baseline
            names = ("max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup")
            limits = {**limits, **{name: adapter.limits[name] for name in names}}
        return self._extras.request_device_sync(
            adapter,
            required_features=features,
            required_limits=dict(limits),
            enable_toggles=_UNCLEARED,
            disable_toggles=_EXACT_CLOCK,
        )

    def locks(self, device: Any) -> tuple[ProcessLock, Lock]:
        """The locks of a device. Only with implicit synchronization it may be used while another thread waits on it."""
        lock = ProcessLock()
        return lock, contextlib.nullcontext() if _SYNCHRONIZED in device.features else lock

    def compilers(self, device: Any) -> int:
        """One unless several threads may use the device."""
        return super().compilers(device) if _SYNCHRONIZED in device.features else 1

    def compiled(self, device: Any, label: str, layout: Any, code: str) -> Any:
        """The compute pipeline of WGSL text, made by the calling thread. Asynchronous ones are made by two threads of
        Dawn's own, on any number of processors. An error is raised here, whichever threads use the device."""
        with _own_errors(device):
            return super().compiled(device, label, layout, code)

    def matrix_units(self, adapter: Any) -> tuple[MatrixUnit, ...]:
        """The int8 products with int32 sums that an adapter reports for its matrix units."""
        if _MATRICES not in adapter.features:
            return ()
        properties = self._extras.get_adapter_properties(adapter)
        return tuple(
            MatrixUnit(config["m"], config["n"], config["k"], config["max_subgroup_size"])
            for config in properties.get("subgroup_matrix_configs", ())
            if (config["component_type"], config["result_component_type"]) == ("i8", "i32")
        )


@contextlib.contextmanager
def _own_errors(device: Any) -> Iterator[None]:
    """Raises the errors of what is made in this context. Otherwise wgpudawn raises them in the thread that calls Dawn
    next; an error scope belongs to its thread."""
    kinds = ("validation", "internal")
    for kind in kinds:
        device.push_error_scope(kind)
    try:
        yield
    finally:
        errors = [device.pop_error_scope_async().sync_wait() for _ in kinds]
    for error in errors:
        if error is not None:
            raise error
