"""Engine: an implementation of WebGPU behind wgpu-py's API. This file has what all engines share.

Other files of this folder use an engine's objects by WebGPU's own names. Only native.py and dawn.py contain what is
specific to one engine.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from q8ta_wgpu.errors import DeviceError, one_line
from q8ta_wgpu.ir.target import MatrixUnit
from q8ta_wgpu.runtime.flags import BufferUsage
from q8ta_wgpu.runtime.locks import ProcessLock
from q8ta_wgpu.runtime.recording import Recorder
from q8ta_wgpu.runtime.transfer import processors

STORAGE: int = BufferUsage.STORAGE | BufferUsage.COPY_DST | BufferUsage.COPY_SRC
UNIFORM: int = BufferUsage.UNIFORM
RESOLVE: int = BufferUsage.QUERY_RESOLVE | BufferUsage.COPY_SRC

_TYPE_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
_BACKEND_ORDER = {"Vulkan": 0, "Metal": 0, "D3D12": 1, "WebGPU": 1, "OpenGL": 2, "OpenGLES": 2}
_WANTED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")

Lock = contextlib.AbstractContextManager[Any]

LONGEST = 1000
"""Limit of characters of a driver's or compiler's message that are passed on."""

_raised: set[type[Exception]] = set()
"""Exception classes of the packages in use."""


@contextlib.contextmanager
def wgpu_errors(doing: str) -> Iterator[None]:
    """Converts errors of an engine to DeviceError, with `doing` and the driver's message.

    Engines raise GPUError and its subclasses, GPUPipelineError, and plain RuntimeError if a request or a mapping fails.
    Other exceptions, also subclasses of RuntimeError, are mistakes in Python and pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, tuple(_raised)) and type(error) is not RuntimeError:
            raise
        said = one_line(error, LONGEST)
        # With Dawn, frames form a cycle with the error, so that the garbage collector frees them. It may find a
        # memoryview of `write_buffer` that is still in use, which ends the process.
        traceback.clear_frames(error.__traceback__)
        raise DeviceError(f"{doing}: {said}") from error


class Engine:
    """An implementation of WebGPU, from a package with wgpu-py's API. The methods here use that API only.

    Attributes:
        name: the name that users write: 'wgpu-native' or 'dawn'.
        package: the Python package.
        features: features that are requested for a device if its adapter has them.
        subgroups: the engine's name for the feature of subgroup operations.
        recorder: a recorder that calls the engine's C functions; `recording.Recorder` works with any engine.
        listing: lock that is held while adapters are listed and devices requested.
    """

    name: str
    features: tuple[str, ...]
    subgroups: str
    recorder: type[Recorder] = Recorder

    def __init__(self, package: Any) -> None:
        self.package = package
        self.listing = ProcessLock()
        self._listed: list[Any] = []
        _raised.update((package.GPUError, package.GPUPipelineError))

    @property
    def version(self) -> str:
        """The package and its version."""
        return f"{self.package.__name__} {self.package.__version__}"

    def owns(self, value: Any) -> bool:
        """Whether a value is an adapter or a device of this engine."""
        return self.is_device(value) or isinstance(value, self.package.GPUAdapter)

    def is_device(self, value: Any) -> bool:
        """Whether a value is a device of this engine."""
        return isinstance(value, self.package.GPUDevice)

    def describe(self, adapter: Any) -> str:
        """`name (backend, engine)` of an adapter."""
        return f"{adapter.info['device']} ({adapter.info['backend_type']}, {self.name})"

    def adapters(self) -> list[Any]:
        """All adapters, best first: discrete before integrated before software, Vulkan and Metal before OpenGL.

        They are listed once in a process.
        """
        with self.listing, wgpu_errors(f"{self.name} could not list adapters"):
            if not self._listed:
                self._listed.extend(sorted(self._enumerate(), key=rank))
            return list(self._listed)

    def _enumerate(self) -> list[Any]:
        """All adapters, as the package lists them now."""
        return list(self.package.gpu.enumerate_adapters_sync())

    def request(self, adapter: Any) -> Any:
        """A device of an adapter, with the features this library uses and the adapter's limits."""
        with self.listing, wgpu_errors(f"{self.describe(adapter)} cannot make a device"):
            features = [f for f in self.features if f in adapter.features]
            return self._request(adapter, features, {key: adapter.limits[key] for key in _WANTED_LIMITS})

    def _request(self, adapter: Any, features: list[str], limits: Mapping[str, int]) -> Any:
        return adapter.request_device_sync(required_features=features, required_limits=limits)

    def locks(self, device: Any) -> tuple[ProcessLock, Lock]:
        """The locks to hold while a device is used, and while a run on it is awaited."""
        return ProcessLock(), contextlib.nullcontext()

    def compiled(self, device: Any, label: str, layout: Any, code: str) -> Any:
        """The compute pipeline of WGSL text. It is called in a thread of its own. Raises what the two steps raise."""
        return self.create_pipeline(device, label, layout, self.create_module(device, label, code))

    def create_module(self, device: Any, label: str, code: str) -> Any:
        """The shader module of WGSL text. Raises what `device.create_shader_module` raises for wrong code."""
        return device.create_shader_module(label=label, code=code)

    def create_pipeline(self, device: Any, label: str, layout: Any, module: Any) -> Any:
        """The compute pipeline of a module's `main`."""
        return device.create_compute_pipeline(
            label=label, layout=layout, compute={"module": module, "entry_point": "main"}
        )

    def discard(self, device: Any, commands: Sequence[Any]) -> None:
        """Gives up command buffers that will not be submitted, before the buffers in them are destroyed. The device
        must work. The empty submission frees uploaded data, which engines keep until the next submission."""
        device.queue.submit([])

    def compilers(self, device: Any) -> int:
        """Number of threads that may compile pipelines for a device at a time: one for each processor, at most
        sixteen."""
        return min(processors(), 16)

    def matrix_units(self, adapter: Any) -> tuple[MatrixUnit, ...]:
        """The int8 products that an adapter reports for its matrix units; none if the engine has no access to them."""
        return ()

    def timestamp_period(self, device: Any) -> float:
        """Nanoseconds of a tick of a device's timestamps; 1 by WebGPU's specification."""
        return 1.0


def rank(adapter: Any) -> tuple[int, int]:
    """The sort key of an engine's adapters, the best first."""
    info = adapter.info
    return _TYPE_ORDER.get(info["adapter_type"], 4), _BACKEND_ORDER.get(info["backend_type"], 3)
