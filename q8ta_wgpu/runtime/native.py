"""What only wgpu-native has: modules without loop bounding, the clock of its timestamps, recording without wgpu-py.

Each has a form in WebGPU's own terms for where its functions are missing: another implementation, or a version of
wgpu-py that names things otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from q8ta_wgpu.runtime.engine import STAGING, GPUError
from q8ta_wgpu.runtime.recording import Copy, Recorder, Staging, Step

_SPIN = 5e-3
"""Seconds of a wait that poll without blocking, on a GPU: past them, what blocking adds no longer counts."""
_HANDOVER = 10.0
"""Seconds another thread may take to deliver a mapping that its own poll picked up."""


def create_module(device: Any, label: str, code: str) -> Any:
    """The shader module of WGSL text, without loop bounding where wgpu-native's call for trusted shaders is there.

    WebGPU implementations keep untrusted shaders from hanging a device by a counter in every loop. Compilers then no
    longer unroll, and register tiles fall out of registers: int8 matrix products on an NVIDIA H200 ran at a ninth of
    their speed. This library links all its WGSL itself, from files of the package, and every loop in them ends (their
    bounds are sizes that `Op.check` limits). Bounds checks on buffers and arrays stay on: they cost little and keep a
    mistake here from reading another program's memory.

    Raises what `device.create_shader_module` raises for wrong code.
    """
    try:
        from wgpu.backends.wgpu_native import _api as native

        create, checks = (
            native.libf.wgpuDeviceCreateShaderModuleTrusted,
            native.lib.WGPUShaderRuntimeChecks_BoundsChecks,
        )
        internal = device._internal
        source = native.new_struct_p("WGPUShaderSourceWGSL *", code=native.to_c_string_view(code))
        source[0].chain.next = native.ffi.NULL
        source[0].chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
        descriptor = native.new_struct_p(
            "WGPUShaderModuleDescriptor *",
            nextInChain=native.ffi.cast("WGPUChainedStruct *", source),
            label=native.to_c_string_view(label),
        )
    except (ImportError, AttributeError):  # another backend, or another version of this one
        return device.create_shader_module(label=label, code=code)
    return native.GPUShaderModule(label, create(internal, descriptor, checks), device)


def timestamp_period(device: Any) -> float:
    """Nanoseconds of a tick of a wgpu device's timestamps. WebGPU says 1; wgpu-native hands out the driver's own ticks,
    10 ns on many AMD GPUs and up to 83 on Intel's."""
    try:
        from wgpu.backends.wgpu_native import _api as native

        return float(native.libf.wgpuQueueGetTimestampPeriod(device.queue._internal))
    except (ImportError, AttributeError):
        return 1.0


_mapping: dict[int, Any] = {}
"""Callbacks that wgpu-native may still call: they must not be collected before."""


class _NativeStaging(Staging):
    """A staging buffer with its map callback, and what that was told: status and message, or what interrupted it."""

    def __init__(self, buffer: Any, native: Any) -> None:
        super().__init__(buffer)
        self.handle = buffer._internal
        self.answers: list[tuple[int, str] | BaseException] = []
        answers = self.answers

        # It must not refer to the buffer: a cycle would keep device memory until the garbage collector runs.
        def mapped(status: int, message: Any, _1: Any, _2: Any) -> None:
            answers.append((status, native.from_c_string_view(message)))
            _mapping.pop(id(answers), None)

        # Python runs signal handlers in here too, and wgpu-native would swallow a KeyboardInterrupt with the answer.
        def interrupted(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            answers.insert(0, error)
            _mapping.pop(id(answers), None)

        signature = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._mapped = native.ffi.callback(signature, mapped, onerror=interrupted)
        mode = native.lib.WGPUCallbackMode_AllowProcessEvents
        self.callback = native.new_struct("WGPUBufferMapCallbackInfo", mode=mode, callback=self._mapped)

    def expect(self) -> None:
        """Before mapping: forgets old answers, and keeps the callback until it was called."""
        self.answers.clear()
        _mapping[id(self.answers)] = self._mapped

    def forget(self) -> None:
        """Where mapping was refused: lets the callback go."""
        _mapping.pop(id(self.answers), None)


class NativeRecorder(Recorder):
    """The same by wgpu-native's own functions; `native_works` says whether they are there."""

    def __init__(self, device: Any, steps: Sequence[Step], copies: Sequence[Copy], spins: bool) -> None:
        super().__init__(device, steps, copies, spins)
        from wgpu.backends.wgpu_native import _api as native

        lib = native.lib
        self._native, self._safe, self._errors = native, native.libf, native.error_handler
        self._calls = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
        self._poll, self._handle, self._queue = lib.wgpuDevicePoll, device._internal, device.queue._internal
        # Types cffi has met: it takes 10 to 50 ms to parse another text.
        self._commands = native.ffi.new("WGPUCommandBuffer[]", 1)
        self._index = native.ffi.typeof(lib.wgpuDevicePoll).args[2]
        self._handles = [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in steps]

    def staging(self, size: int) -> Staging:
        """A new staging buffer of `size` bytes."""
        return _NativeStaging(self.device.create_buffer(size=size, usage=STAGING), self._native)

    def _dispatch(self, compute: Any) -> None:
        set_pipeline, set_bind_group, dispatch = self._calls
        handle, nothing, current = compute._internal, self._native.ffi.NULL, None
        self._errors.capture("record")  # once, where wgpu-py does it at every call
        try:
            for pipeline, group, x, y, z in self._handles:
                if pipeline is not current:
                    set_pipeline(handle, pipeline)
                    current = pipeline
                set_bind_group(handle, 0, group, 0, nothing)
                dispatch(handle, x, y, z)
        finally:
            error = self._errors.release("record")
        if error is not None:
            raise GPUError(error[1])

    def submit(self, commands: Any) -> Any:
        """Submits a command buffer, and returns the index of the submission."""
        self._commands[0] = commands._internal
        index = self._safe.wgpuQueueSubmitForIndex(self._queue, 1, self._commands)
        return self._native.ffi.new(self._index, index)

    def read(self, staging: Staging, submitted: Any) -> Any:
        """Waits for a submission and returns its outputs, a buffer that is readable until `unmap`."""
        assert isinstance(staging, _NativeStaging)
        native, safe = self._native, self._safe
        staging.expect()
        try:
            safe.wgpuBufferMapAsync(staging.handle, native.lib.WGPUMapMode_Read, 0, staging.size, staging.callback)
        except BaseException:
            staging.forget()  # it will never be called
            raise
        self._wait(staging, submitted)
        answer = staging.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        status, message = answer
        if status != native.lib.WGPUMapAsyncStatus_Success:
            raise GPUError(f"outputs could not be mapped: {message or status}")
        return native.ffi.buffer(safe.wgpuBufferGetConstMappedRange(staging.handle, 0, staging.size), staging.size)

    def _wait(self, staging: _NativeStaging, submitted: Any) -> None:
        nothing = self._native.ffi.NULL
        if self.spins:
            blocking = time.perf_counter() + _SPIN
            while not staging.answers and time.perf_counter() < blocking:
                self._poll(self._handle, False, nothing)
        if staging.answers:
            return
        self._poll(self._handle, True, submitted)
        # The work is done. Where another thread's poll picked the mapping up, that thread is about to deliver it.
        limit = time.perf_counter() + _HANDOVER
        while not staging.answers:
            if time.perf_counter() > limit:
                raise GPUError("the device finished its work, but did not hand over its outputs")
            self._poll(self._handle, False, nothing)
            time.sleep(0)

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        assert isinstance(staging, _NativeStaging)
        self._safe.wgpuBufferUnmap(staging.handle)


def native_works(device: Any) -> bool:
    """Whether a wgpu device can be driven by `NativeRecorder`: tried by a run of nothing. False for another backend, or
    a version of wgpu-py that names things otherwise."""
    try:
        trial = NativeRecorder(device, (), (), spins=False)
        staging = trial.staging(16)
        trial.read(staging, trial.submit(trial.record(trial.encoder(), staging)))
        trial.unmap(staging)
        staging.buffer.destroy()
    except Exception:  # a lost device as well: the public form then says what is wrong
        return False
    return True
