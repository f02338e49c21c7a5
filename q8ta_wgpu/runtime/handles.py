"""Recording by webgpu.h: the functions under a package's Python classes, called on the handles themselves.

wgpu-native and Dawn both speak webgpu.h, and both packages reach it through cffi; what differs is how errors are
reported and how to wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from q8ta_wgpu.runtime.recording import STAGING, Copy, Recorder, Staging, Step

_SPIN = 5e-3
"""Seconds of a wait that poll without blocking, on a GPU: past them, what blocking adds no longer counts."""

mapping: dict[int, Any] = {}
"""Callbacks that an engine may still call: they must not be collected before."""


class HandleStaging(Staging):
    """A staging buffer with its map callback, and what that was told: status and message, or what interrupted it."""

    def __init__(self, buffer: Any, api: Any, mode: int) -> None:
        super().__init__(buffer)
        self.handle = buffer._internal
        self.answers: list[tuple[int, str] | BaseException] = []
        answers = self.answers

        # It must not refer to the buffer: a cycle would keep device memory until the garbage collector runs.
        def mapped(status: int, message: Any, _1: Any, _2: Any) -> None:
            answers.append((status, api.from_c_string_view(message)))
            mapping.pop(id(answers), None)

        # Python runs signal handlers in here too, and the engine would swallow a KeyboardInterrupt with the answer.
        def interrupted(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            answers.insert(0, error)
            mapping.pop(id(answers), None)

        signature = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._mapped = api.ffi.callback(signature, mapped, onerror=interrupted)
        self.callback = api.new_struct("WGPUBufferMapCallbackInfo", mode=mode, callback=self._mapped)

    def expect(self) -> None:
        """Before mapping: forgets old answers, and keeps the callback until it was called."""
        self.answers.clear()
        mapping[id(self.answers)] = self._mapped

    def forget(self) -> None:
        """Where mapping was refused: lets the callback go."""
        mapping.pop(id(self.answers), None)


class HandleRecorder(Recorder):
    """The same as Recorder by webgpu.h's functions on handles. `works` says whether they are there.

    Attributes:
        api: the module that holds `lib`, `libf` (which raises errors), `ffi` and helpers for structs.
        mode: when the engine may call back.
    """

    api: Any
    mode: int

    def __init__(self, device: Any, steps: Sequence[Step], copies: Sequence[Copy], spins: bool) -> None:
        super().__init__(device, steps, copies, spins)
        lib = self.api.lib
        self._safe = self.api.libf
        self._calls = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
        self._queue = device.queue._internal
        self._commands = self.api.ffi.new("WGPUCommandBuffer[]", 1)
        self._handles = [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in steps]

    def staging(self, size: int) -> Staging:
        """A new staging buffer of `size` bytes."""
        return HandleStaging(self.device.create_buffer(size=size, usage=STAGING), self.api, self.mode)

    def _dispatch(self, compute: Any) -> None:
        set_pipeline, set_bind_group, dispatch = self._calls
        handle, nothing, current = compute._internal, self.api.ffi.NULL, None
        for pipeline, group, x, y, z in self._handles:
            if pipeline is not current:
                set_pipeline(handle, pipeline)
                current = pipeline
            set_bind_group(handle, 0, group, 0, nothing)
            dispatch(handle, x, y, z)

    def read(self, staging: Staging, submitted: Any) -> Any:
        """Waits for a submission and returns its outputs, a buffer that is readable until `unmap`."""
        assert isinstance(staging, HandleStaging)
        api, safe = self.api, self._safe
        staging.expect()
        try:
            read = api.lib.WGPUMapMode_Read
            future = safe.wgpuBufferMapAsync(staging.handle, read, 0, staging.size, staging.callback)
        except BaseException:
            staging.forget()  # it will never be called
            raise
        self._wait(staging, submitted, future, time.perf_counter() + _SPIN if self.spins else 0.0)
        answer = staging.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        status, message = answer
        if status != api.lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"outputs could not be mapped: {message or status}")
        return api.ffi.buffer(safe.wgpuBufferGetConstMappedRange(staging.handle, 0, staging.size), staging.size)

    def _wait(self, staging: HandleStaging, submitted: Any, future: Any, blocking: float) -> None:
        """Waits until a mapping was answered, without blocking before `blocking` of the performance counter."""
        raise NotImplementedError

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        assert isinstance(staging, HandleStaging)
        self._safe.wgpuBufferUnmap(staging.handle)


def works(recorder: type[Recorder], device: Any) -> bool:
    """Whether a device can be driven by a recorder: tried by a run of nothing. False where a version of the package
    names things otherwise."""
    try:
        trial = recorder(device, (), (), spins=False)
        staging = trial.staging(16)
        trial.read(staging, trial.submit(trial.record(staging)))
        trial.unmap(staging)
        staging.buffer.destroy()
    except Exception:  # a lost device as well: the public form then says what is wrong
        return False
    return True
