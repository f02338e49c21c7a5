"""wgpu-native, from the package wgpu: modules without loop bounds, timestamps, waiting, and the lock of its OpenGL
backend.

If a version of wgpu-py lacks a private name that is used here, WebGPU's public API is used instead.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from typing import Any

from q8ta_wgpu.runtime.engine import Engine, Lock
from q8ta_wgpu.runtime.handles import HandleRecorder, Mapped
from q8ta_wgpu.runtime.locks import ProcessLock
from q8ta_wgpu.runtime.recording import Staging

_HANDOVER = 10.0
"""Seconds that another thread may take to deliver a mapping that its own poll received."""

_WORD = re.compile(r"\w+")
_KINDS = ("typedef", "struct", "union", "enum")
"""cffi's names for the declarations that a type may refer to."""

OPENGL = ProcessLock()
"""The lock for OpenGL devices, for listing adapters and for requesting devices. wgpu has one EGL context in a process,
and ends the process when two threads enter it. Listing enters it, and so do a request for any device and the release of
an OpenGL adapter, which poll existing devices.

An OpenGL device that the application makes from an adapter of its own is safe only while no other one is used: Python's
garbage collector frees it outside of this lock.
"""


@functools.cache
def _read_types_alone() -> None:
    """Makes cffi parse a C type together with only those typedefs that its text names.

    Otherwise it parses each one together with all 400 typedefs of wgpu's header, in Python. That takes 10 to 20 ms for
    each of the 40 types that wgpu-py and this library use until the first result, longer than all other steps of
    opening together. If this version of cffi has other names, nothing changes.
    """
    try:
        from wgpu.backends.wgpu_native import _api as api

        parser = api.ffi._parser
        read, declared = parser.parse_type, parser._declarations
    except (ImportError, AttributeError):
        return

    def alone(text: str) -> Any:  # under cffi's lock
        keys = (f"{kind} {name}" for name in set(_WORD.findall(text)) for kind in _KINDS)
        parser._declarations = {key: declared[key] for key in keys if key in declared}
        try:
            return read(text)
        finally:
            declared.update(parser._declarations)
            parser._declarations = declared

    parser.parse_type = alone


class NativeRecorder(HandleRecorder):
    """Recording by wgpu-native's functions. It polls from the calling thread, since wgpu-py's way of waiting costs an
    empty submission and two thread switches."""

    def _prepare(self) -> None:
        from wgpu.backends.wgpu_native import _api as api

        self.api, lib = api, api.lib
        self.mode = lib.WGPUCallbackMode_AllowProcessEvents
        super()._prepare()
        self._errors = api.error_handler
        self._poll, self._handle = lib.wgpuDevicePoll, self.device._internal
        # A type that cffi has parsed already: parsing another one takes 10 to 50 ms.
        self._index = api.ffi.typeof(lib.wgpuDevicePoll).args[2]

    def _dispatch(self, compute: Any) -> None:
        self._errors.capture("record")  # once; wgpu-py does it at every call
        try:
            super()._dispatch(compute)
        finally:
            error = self._errors.release("record")
        if error is not None:
            raise self.api.GPUError(error[1])

    def submit(self, staging: Staging, commands: Any) -> None:
        """Submits the commands that were recorded for `staging`, which keeps the index of the submission."""
        self._commands[0] = commands._internal
        index = self._safe.wgpuQueueSubmitForIndex(self._queue, 1, self._commands)
        staging.submitted = self.api.ffi.new(self._index, index)

    def _wait(self, mapped: Mapped, submitted: Any, future: Any, blocking: float) -> None:
        nothing = self.api.ffi.NULL
        self._poll(self._handle, False, nothing)
        while not mapped.answers and time.perf_counter() < blocking:
            self._poll(self._handle, False, nothing)
        if mapped.answers:
            return
        # A buffer that no run used yet has no submission: all work is waited for.
        self._poll(self._handle, True, nothing if submitted is None else submitted)
        # The work is done. If another thread's poll received the mapping, that thread is about to call back.
        limit = time.perf_counter() + _HANDOVER
        while not mapped.answers:
            if time.perf_counter() > limit:
                raise self.api.GPUError("the device finished its work, but did not hand over a buffer")
            self._poll(self._handle, False, nothing)
            time.sleep(0)


class WgpuNative(Engine):
    """wgpu-native."""

    name = "wgpu-native"
    features = ("timestamp-query", "timestamp-query-inside-passes", "subgroup", "shader-f16")
    subgroups = "subgroup"
    recorder = NativeRecorder

    def __init__(self) -> None:
        import wgpu  # not where Dawn is used: a tenth of opening a session

        super().__init__(wgpu)
        _read_types_alone()
        self.listing = OPENGL

    def locks(self, device: Any) -> tuple[ProcessLock, Lock]:
        """The locks of a device. On OpenGL all devices share one, held also while waiting: a wait keeps the context,
        and wgpu ends the process if another thread needs it for some seconds."""
        opengl = device.adapter.info["backend_type"] in ("OpenGL", "OpenGLES")
        return (OPENGL, OPENGL) if opengl else super().locks(device)

    def create_module(self, device: Any, label: str, code: str) -> Any:
        """The shader module of WGSL text, without loop bounds if wgpu-native's function for trusted shaders is
        available.

        WebGPU implementations add a counter to every loop, so that untrusted shaders cannot hang a device. Compilers
        then do not unroll loops, and tiles do not stay in registers: int8 matrix products on an NVIDIA H200 ran at a
        ninth of their speed. The WGSL of this library comes only from files of the package, and every loop in them ends
        (their bounds are sizes that `Op.check` limits). Bounds checks on buffers and arrays stay on: they cost little,
        and a mistake here cannot read another program's memory.

        Raises what `device.create_shader_module` raises for wrong code.
        """
        try:
            from wgpu.backends.wgpu_native import _api as api

            create, checks = (
                api.libf.wgpuDeviceCreateShaderModuleTrusted,
                api.lib.WGPUShaderRuntimeChecks_BoundsChecks,
            )
            internal = device._internal
            source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(code))
            source[0].chain.next = api.ffi.NULL
            source[0].chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
            descriptor = api.new_struct_p(
                "WGPUShaderModuleDescriptor *",
                nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
                label=api.to_c_string_view(label),
            )
        except (ImportError, AttributeError):  # another version of wgpu-py
            return super().create_module(device, label, code)
        return api.GPUShaderModule(label, create(internal, descriptor, checks), device)

    def compilers(self, device: Any) -> int:
        """On OpenGL one, since only one thread can have its context."""
        return 1 if self.locks(device)[0] is OPENGL else super().compilers(device)

    def discard(self, device: Any, commands: Sequence[Any]) -> None:
        """Submits the command buffers. wgpu-native keeps a finished one that was never submitted until the device is
        freed: 100 KiB for six dispatches on lavapipe."""
        device.queue.submit(list(commands))

    def timestamp_period(self, device: Any) -> float:
        """Nanoseconds of the driver's tick: 10 on many AMD GPUs, up to 83 on Intel's."""
        try:
            from wgpu.backends.wgpu_native import _api as api

            return float(api.libf.wgpuQueueGetTimestampPeriod(device.queue._internal))
        except (ImportError, AttributeError):
            return super().timestamp_period(device)
