"""Command buffers of a program: recording, submitting, reading back, at the least cost for the host.

A command buffer can be submitted once, so every run needs a recorded one; WebGPU has nothing reusable for compute.
For 60 dispatches that takes 266 us through wgpu-py's methods and 153 us by wgpu-native's functions on the handles
themselves (`python -m pytest bench/bench_host.py`), and nothing where the next run is recorded while the device works
on this one, which the executor does. Waiting in wgpu-py costs an empty submission and two thread switches, and blocking
in the driver 190 us more than polling on an NVIDIA H200 (74 dispatches in 320 us); so the native form polls from the
calling thread, and on a GPU it spins before it blocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import wgpu

Step = tuple[Any, Any, tuple[int, int, int]]
"""Pipeline, bind group, and workgroups in x, y, z."""

Copy = tuple[Any, int, int]
"""Source buffer, bytes, and offset in the staging buffer."""

_STAGING = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
_SPIN = 5e-3
"""Seconds of a wait that poll without blocking, on a GPU: past them, what blocking adds no longer counts."""
_HANDOVER = 10.0
"""Seconds another thread may take to deliver a mapping that its own poll picked up."""


class Staging:
    """A buffer that outputs are copied to and read from, with the commands of the next run that ends in it."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.size: int = buffer.size
        self.commands: Any = None


class Recorder:
    """Records, submits and reads back through wgpu's public methods, and raises what they raise.

    One thread at a time may record and submit; any may read.
    """

    def __init__(self, device: Any, steps: Sequence[Step], copies: Sequence[Copy], cpu: bool) -> None:
        self.device = device
        self.steps = steps
        self.copies = copies
        self.cpu = cpu

    def staging(self, size: int) -> Staging:
        """A new staging buffer of `size` bytes."""
        return Staging(self.device.create_buffer(size=size, usage=_STAGING))

    def encoder(self) -> Any:
        """A new command encoder: an error where the device was lost."""
        return self.device.create_command_encoder()

    def record(self, encoder: Any, staging: Staging) -> Any:
        """The command buffer of one run whose outputs end in `staging`."""
        compute = encoder.begin_compute_pass()
        self._dispatch(compute)
        compute.end()
        for source, size, offset in self.copies:
            encoder.copy_buffer_to_buffer(source, 0, staging.buffer, offset, size)
        return encoder.finish()

    def _dispatch(self, compute: Any) -> None:
        current = None
        for pipeline, group, grid in self.steps:
            if pipeline is not current:
                compute.set_pipeline(pipeline)
                current = pipeline
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)

    def submit(self, commands: Any) -> Any:
        """Submits a command buffer, and returns what `read` waits for."""
        self.device.queue.submit([commands])
        return None

    def read(self, staging: Staging, submitted: Any) -> Any:
        """Waits for a submission and returns its outputs, a buffer that is readable until `unmap`."""
        staging.buffer.map_sync(wgpu.MapMode.READ)
        return staging.buffer.read_mapped(copy=False)

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        staging.buffer.unmap()


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

    def __init__(self, device: Any, steps: Sequence[Step], copies: Sequence[Copy], cpu: bool) -> None:
        super().__init__(device, steps, copies, cpu)
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
        return _NativeStaging(self.device.create_buffer(size=size, usage=_STAGING), self._native)

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
            raise wgpu.GPUError(error[1])

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
            raise wgpu.GPUError(f"outputs could not be mapped: {message or status}")
        return native.ffi.buffer(safe.wgpuBufferGetConstMappedRange(staging.handle, 0, staging.size), staging.size)

    def _wait(self, staging: _NativeStaging, submitted: Any) -> None:
        nothing = self._native.ffi.NULL
        if not self.cpu:  # a software adapter needs the core that spinning would take
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
                raise wgpu.GPUError("the device finished its work, but did not hand over its outputs")
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
        trial = NativeRecorder(device, (), (), cpu=True)
        staging = trial.staging(16)
        trial.read(staging, trial.submit(trial.record(trial.encoder(), staging)))
        trial.unmap(staging)
        staging.buffer.destroy()
    except Exception:  # a lost device as well: the public form then says what is wrong
        return False
    return True
