"""Adapters and devices: listing, choosing, opening, and the pipelines and limits of an open device."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import wgpu

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.runtime import probe
from q8ta_wgpu.runtime.modules import create_module
from q8ta_wgpu.runtime.recording import NativeRecorder, Recorder, native_works

_TYPE_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
_BACKEND_ORDER = {"Vulkan": 0, "Metal": 0, "D3D12": 1, "WebGPU": 1, "OpenGL": 2, "OpenGLES": 2}
_WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-passes", "subgroup", "shader-f16")
_WANTED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")
_NEEDED_LIMITS = {
    "max-storage-buffers-per-shader-stage": BASELINE.storage_buffers,
    "max-compute-invocations-per-workgroup": BASELINE.invocations,
    "max-compute-workgroup-storage-size": BASELINE.workgroup_memory,
    "max-compute-workgroups-per-dimension": BASELINE.workgroups,
}


@contextlib.contextmanager
def wgpu_errors(doing: str) -> Iterator[None]:
    """What wgpu raises inside becomes a DeviceError: `doing`, and the driver's words."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise DeviceError(f"{doing}: {words[:1000]}") from error


def adapters() -> list[Any]:
    """All wgpu adapters, best first: discrete before integrated before software, Vulkan and Metal before OpenGL."""
    with wgpu_errors("wgpu could not list adapters"):
        return sorted(wgpu.gpu.enumerate_adapters_sync(), key=_rank)


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
    """An open wgpu device with its pipeline cache. Safe to share between sessions and threads: `lock` is held while
    something is recorded and submitted, and `waiting` while a run is waited for.

    Raises DeviceError where the device offers less than WebGPU's baseline: some OpenGL drivers do.
    """

    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        self.name = describe(wgpu_device.adapter)
        self.lock = threading.RLock()
        for limit, needed in _NEEDED_LIMITS.items():
            if (found := wgpu_device.limits[limit]) < needed:
                raise DeviceError(f"{self.name} offers {limit} {found}, every program needs {needed}")
        self.software = wgpu_device.adapter.info["adapter_type"] == "CPU"
        self.timestamps = "timestamp-query" in wgpu_device.features
        # OpenGL has one context, which waiting keeps: who else wants it meanwhile ends the process after some seconds.
        opengl = wgpu_device.adapter.info["backend_type"] in ("OpenGL", "OpenGLES")
        self.waiting: contextlib.AbstractContextManager[Any] = self.lock if opengl else contextlib.nullcontext()
        self._pipelines: dict[str, Pipeline] = {}
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._measured: dict[str, Any] = {}
        self.target = self._target()

    def pipeline(self, text: str, buffers: int) -> Pipeline:
        """The pipeline of a linked module whose first `buffers` bindings are storage, the last of them written.

        Compiled once per text. Raises DeviceError with the driver's words if it does not compile.
        """
        with self.lock:
            if text not in self._pipelines:
                label = text.split("\n", 1)[0].removeprefix("// ")
                with wgpu_errors(f"{self.name} could not compile kernel {label}"):
                    bind_layout, pipeline_layout = self._layout(buffers)
                    module = create_module(self.wgpu, label, text)
                    compiled = self.wgpu.create_compute_pipeline(
                        label=label, layout=pipeline_layout, compute={"module": module, "entry_point": "main"}
                    )
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

    @property
    def alive(self) -> bool:
        """Whether the device still works; a lost one never comes back."""
        try:
            self.wgpu.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE).destroy()
        except Exception:
            return False
        return True

    @property
    def contract(self) -> str:
        """How the device breaks the arithmetic contract of the int8 operators; empty where it keeps it."""
        return str(self._once("contract", probe.contract))

    @property
    def dot_rates(self) -> probe.DotRates:
        """Measured speed of dot4I8Packed and of its emulation."""
        rates: probe.DotRates = self._once("dot_rates", probe.dot_rates)
        return rates

    @property
    def copy_rate(self) -> float:
        """Measured copy bandwidth: 10^9 bytes a second, read and written, in buffers larger than most caches."""
        return float(self._once("copy_rate", probe.copy_rate))

    def _once(self, name: str, measure: Callable[[Device], Any]) -> Any:
        """What `measure` finds, by one thread once."""
        with self.lock:
            if name not in self._measured:
                with wgpu_errors(f"{self.name} could not be measured"):
                    self._measured[name] = measure(self)
            return self._measured[name]

    def _target(self) -> Target:
        """The device's limits, and its behaviour: dot products are measured, except where they are known to be alike.

        A rate counts as higher where it is by more than such a measurement wavers, a quarter.
        """
        limits = self.wgpu.limits
        found = replace(
            SOFTWARE if self.software else BASELINE,
            name=self.name,
            storage_buffers=limits["max-storage-buffers-per-shader-stage"],
            invocations=limits["max-compute-invocations-per-workgroup"],
            workgroup_memory=limits["max-compute-workgroup-storage-size"],
            workgroups=limits["max-compute-workgroups-per-dimension"],
            binding_size=min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"]),
            uniform_alignment=max(limits["min-uniform-buffer-offset-alignment"], 16),
        )
        if self.software:
            return found
        packed, emulated = self.dot_rates.packed, self.dot_rates.emulated
        return replace(found, packed_dot=emulated < 1.25 * packed, fast_dot=packed > 1.25 * emulated)

    @functools.cached_property
    def recorder(self) -> type[Recorder]:
        """What records programs for this device: wgpu-native's own functions where they are there."""
        with self.lock:
            return NativeRecorder if native_works(self.wgpu) else Recorder

    def _layout(self, buffers: int) -> tuple[Any, Any]:
        if buffers not in self._layouts:
            kinds = ["read-only-storage"] * (buffers - 1) + ["storage", "uniform"]
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            layout = self.wgpu.create_bind_group_layout(entries=entries)
            self._layouts[buffers] = layout, self.wgpu.create_pipeline_layout(bind_group_layouts=[layout])
        return self._layouts[buffers]


_open: dict[tuple[str, int], Device] = {}
_adopted: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_devices() -> tuple[Device, ...]:
    """The devices this module opened and keeps."""
    return tuple(_open.values())


def open_device(device: Any = None) -> Device:
    """A Device for what a user may pass.

    Args:
        device: None (best adapter), part of an adapter's name or backend, the position of an adapter in `adapters()`,
            an adapter, a wgpu device (the caller's own, used as it is) or a Device.

    Devices opened here are shared: the same adapter gives the same Device, unless that one was lost. Raises
    DeviceError where nothing fits, or nothing that fits can make a device.
    """
    with _open_lock:
        if isinstance(device, Device):
            return device
        if isinstance(device, wgpu.GPUDevice):
            known = _adopted.get(id(device))
            if known is None or known.wgpu is not device:
                known = _adopted[id(device)] = Device(device)
            return known
        if isinstance(device, wgpu.GPUAdapter):
            return _from_adapter(device, _number(device))
        if device is None or isinstance(device, str) or type(device) is int:
            return _by_name(device)
    raise DeviceError(
        "device must be None, 'reference', part of an adapter's name, its number, an adapter or a wgpu device, "
        f"found {type(device).__name__}"
    )


def _by_name(name: str | int | None) -> Device:
    found = adapters()
    if not found:
        raise DeviceError(
            "no wgpu adapter on this machine. Install a GPU driver, or software Vulkan "
            "(Debian and Ubuntu: apt-get install mesa-vulkan-drivers), or use device='reference'"
        )
    names = [describe(a) for a in found]
    chosen = [
        i
        for i, text in enumerate(names)
        if name is None or i == name or (isinstance(name, str) and name.lower() in text.lower())
    ]
    problems = []
    for i in chosen:
        try:
            return _from_adapter(found[i], names[:i].count(names[i]))
        except DeviceError as error:
            problems.append(str(error))
    if problems:
        raise DeviceError("; ".join(problems))
    listed = ", ".join(f"{i}: {text}" for i, text in enumerate(names))
    raise DeviceError(f"no adapter is called {name!r}; there are {listed}")


def _number(adapter: Any) -> int:
    """Which of the adapters of one name this is: equal cards are told apart by their order, where wgpu lets us."""
    equal = [a for a in adapters() if describe(a) == describe(adapter)]
    return next((i for i, a in enumerate(equal) if a is adapter), 0 if len(equal) == 1 else -id(adapter))


def _from_adapter(adapter: Any, number: int) -> Device:
    name = describe(adapter)
    known = _open.get((name, number))
    if known is None or not known.alive:
        with wgpu_errors(f"{name} cannot make a device"):
            features = [f for f in _WANTED_FEATURES if f in adapter.features]
            limits = {key: adapter.limits[key] for key in _WANTED_LIMITS}
            opened = adapter.request_device_sync(required_features=features, required_limits=limits)
            known = _open[name, number] = Device(opened)
    return known
