"""Adapters and devices: listing, choosing, opening, and the pipelines and limits of an open device."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import wgpu

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.target import BASELINE, Target

_TYPE_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
_BACKEND_ORDER = {"Vulkan": 0, "Metal": 0, "D3D12": 1, "WebGPU": 1, "OpenGL": 2, "OpenGLES": 2}
_WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-passes", "subgroup", "shader-f16")
_WANTED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")


def adapters() -> list[Any]:
    """All wgpu adapters, best first: discrete before integrated before software, Vulkan and Metal before OpenGL."""
    try:
        found = list(wgpu.gpu.enumerate_adapters_sync())
    except Exception as error:
        raise DeviceError(f"wgpu could not list adapters: {error}") from error
    return sorted(found, key=_rank)


def _rank(adapter: Any) -> tuple[int, int]:
    info = adapter.info
    return _TYPE_ORDER.get(info["adapter_type"], 4), _BACKEND_ORDER.get(info["backend_type"], 3)


def describe(adapter: Any) -> str:
    """`name (backend)` of an adapter."""
    return f"{adapter.info['device']} ({adapter.info['backend_type']})"


@dataclass(frozen=True)
class Pipeline:
    """A compiled compute pipeline and the layout its bind groups are made with."""

    pipeline: Any
    layout: Any


class Device:
    """An open wgpu device with its pipeline cache. Safe to share between sessions and threads."""

    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        self.name = describe(wgpu_device.adapter)
        self.lock = threading.RLock()
        self.target = _target(self.name, wgpu_device.limits)
        self.timestamps = "timestamp-query" in wgpu_device.features
        self._pipelines: dict[str, Pipeline] = {}
        self._layouts: dict[int, tuple[Any, Any]] = {}

    def pipeline(self, text: str, buffers: int) -> Pipeline:
        """The pipeline of a linked module whose first `buffers` bindings are storage, the last of them written.

        Compiled once per text. Raises DeviceError with the driver's words if it does not compile.
        """
        with self.lock:
            if text not in self._pipelines:
                bind_layout, pipeline_layout = self._layout(buffers)
                label = text.split("\n", 1)[0].removeprefix("// ")
                try:
                    module = self.wgpu.create_shader_module(label=label, code=text)
                    compiled = self.wgpu.create_compute_pipeline(
                        label=label, layout=pipeline_layout, compute={"module": module, "entry_point": "main"}
                    )
                except Exception as error:
                    raise DeviceError(f"{self.name} could not compile kernel {label}: {error}") from error
                self._pipelines[text] = Pipeline(compiled, bind_layout)
            return self._pipelines[text]

    @property
    def compiled(self) -> int:
        """Distinct pipelines compiled so far."""
        return len(self._pipelines)

    @property
    def pipeline_texts(self) -> tuple[str, ...]:
        """The module texts compiled so far."""
        return tuple(self._pipelines)

    def _layout(self, buffers: int) -> tuple[Any, Any]:
        if buffers not in self._layouts:
            kinds = ["read-only-storage"] * (buffers - 1) + ["storage", "uniform"]
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}} for i, kind in enumerate(kinds)
            ]
            layout = self.wgpu.create_bind_group_layout(entries=entries)
            self._layouts[buffers] = layout, self.wgpu.create_pipeline_layout(bind_group_layouts=[layout])
        return self._layouts[buffers]


def _target(name: str, limits: dict[str, int]) -> Target:
    return Target(
        name=name,
        storage_buffers=max(BASELINE.storage_buffers, limits["max-storage-buffers-per-shader-stage"]),
        invocations=limits["max-compute-invocations-per-workgroup"],
        workgroup_memory=limits["max-compute-workgroup-storage-size"],
        workgroups=limits["max-compute-workgroups-per-dimension"],
        binding_size=min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"]),
        uniform_alignment=max(limits["min-uniform-buffer-offset-alignment"], 16),
    )


_open: dict[str, Device] = {}
_wrapped: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_devices() -> tuple[Device, ...]:
    """The devices this module opened and keeps."""
    return tuple(_open.values())


def open_device(device: Any = None) -> Device:
    """A Device for what a user may pass: None (best adapter), part of an adapter's name or backend, an adapter,
    a wgpu device (the caller's own, used as it is) or a Device.

    Devices opened here are shared: the same adapter gives the same Device. Raises DeviceError where nothing fits.
    """
    with _open_lock:
        if isinstance(device, Device):
            return device
        if isinstance(device, wgpu.GPUDevice):
            known = _wrapped.get(id(device))
            if known is None:
                known = _wrapped[id(device)] = Device(device)
            return known
        if isinstance(device, wgpu.GPUAdapter):
            return _from_adapter(device)
        if device is None or isinstance(device, str):
            return _by_name(device)
    raise DeviceError(
        f"device must be None, 'reference', part of an adapter's name, an adapter or a wgpu device, found {type(device).__name__}"
    )


def _by_name(name: str | None) -> Device:
    found = adapters()
    if not found:
        raise DeviceError(
            "no wgpu adapter on this machine. Install a GPU driver, or software Vulkan "
            "(Debian and Ubuntu: apt-get install mesa-vulkan-drivers), or use device='reference'"
        )
    if name is not None:
        found = [a for a in found if name.lower() in describe(a).lower()]
        if not found:
            names = ", ".join(describe(a) for a in adapters())
            raise DeviceError(f"no adapter is called {name!r}; there are: {names}")
    problems = []
    for adapter in found:
        try:
            return _from_adapter(adapter)
        except DeviceError as error:
            problems.append(str(error))
    raise DeviceError("no adapter could be opened: " + "; ".join(problems))


def _from_adapter(adapter: Any) -> Device:
    name = describe(adapter)
    if name not in _open:
        features = [f for f in _WANTED_FEATURES if f in adapter.features]
        limits = {key: adapter.limits[key] for key in _WANTED_LIMITS}
        try:
            opened = adapter.request_device_sync(required_features=features, required_limits=limits)
            _open[name] = Device(opened)
        except Exception as error:
            raise DeviceError(f"{name} cannot make a device: {str(error).strip().splitlines()[0]}") from error
    return _open[name]
