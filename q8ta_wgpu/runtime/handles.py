"""Recording by the C functions of webgpu.h, called directly on the handles of a package's Python objects.

wgpu-native and Dawn both implement webgpu.h, and both packages call it through cffi. They differ in how errors are
reported and in how to wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime import transfer
from q8ta_wgpu.runtime.recording import STAGING, Copy, Recorder, Staging, Step

_UPLOAD: int = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.MAP_WRITE

_TARGET: int = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST

_LARGE = 4 << 20
"""Inputs of at least so many bytes are copied to mapped memory here, smaller ones by `write_buffer`. That copies with
one thread, to memory that is new at every call: 3 GB/s in Dawn, 10 in wgpu-native, of 25 possible beside an NVIDIA
H200."""

_UPLOADS = 2
"""Number of upload buffers: one is written while the copy from the other waits in the queue."""

_SPIN = 5e-3
"""Seconds of polling before a wait blocks, on a GPU. After that the delay of blocking no longer matters."""

mapping: dict[int, Any] = {}
"""Callbacks that an engine may still call, so that they are not garbage collected before."""


class HandleStaging(Staging):
    """A buffer with its map callback, and the callback's answers: (status, message), or an exception.

    Attributes:
        writable: of an upload buffer, whether it is mapped.
        submitted: of an unmapped upload buffer, the submission that reads it.
    """

    writable = False
    submitted: Any = None

    def __init__(self, buffer: Any, api: Any, mode: int) -> None:
        super().__init__(buffer)
        self.handle = buffer._internal
        self.answers: list[tuple[int, str] | BaseException] = []
        answers = self.answers

        # It must not refer to the buffer: a cycle would keep device memory until the garbage collector runs.
        def mapped(status: int, message: Any, _1: Any, _2: Any) -> None:
            answers.append((status, api.from_c_string_view(message)))
            mapping.pop(id(answers), None)

        # Python may run signal handlers in the callback, and the engine would swallow a KeyboardInterrupt.
        def interrupted(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            answers.insert(0, error)
            mapping.pop(id(answers), None)

        signature = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._mapped = api.ffi.callback(signature, mapped, onerror=interrupted)
        self.callback = api.new_struct("WGPUBufferMapCallbackInfo", mode=mode, callback=self._mapped)

    def expect(self) -> None:
        """To be called before mapping: clears old answers, and keeps the callback alive until it was called."""
        self.answers.clear()
        mapping[id(self.answers)] = self._mapped

    def forget(self) -> None:
        """To be called if mapping was refused: releases the callback."""
        mapping.pop(id(self.answers), None)


class HandleRecorder(Recorder):
    """A recorder that calls webgpu.h's functions on handles. `works` tells whether they are available.

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
        self._map(staging, self.api.lib.WGPUMapMode_Read, submitted)
        address = self._safe.wgpuBufferGetConstMappedRange(staging.handle, 0, staging.size)
        return self.api.ffi.buffer(address, staging.size)

    def write(self, inputs: Sequence[tuple[Any, Array]], kept: list[Staging]) -> None:
        """Writes arrays to buffers, large ones through mapped upload buffers, which stay in `kept` for the next
        call."""
        if sum(words.nbytes for _, words in inputs) < _LARGE:
            super().write(inputs, kept)
        else:
            self.write_mapped(inputs, kept)

    def write_mapped(self, inputs: Sequence[tuple[Any, Array]], kept: list[Staging]) -> None:
        """Writes arrays of any size through mapped upload buffers."""
        ends = np.cumsum([words.nbytes for _, words in inputs])
        staging = kept.pop(0) if len(kept) == _UPLOADS else self._upload(int(ends[-1]))
        assert isinstance(staging, HandleStaging)
        try:
            if not staging.writable:
                self._map(staging, self.api.lib.WGPUMapMode_Write, staging.submitted)
            address = self._safe.wgpuBufferGetMappedRange(staging.handle, 0, staging.size)
            memory = np.frombuffer(self.api.ffi.buffer(address, staging.size), np.uint8)
            encoder = self.device.create_command_encoder()
            for end, (buffer, words) in zip(map(int, ends), inputs, strict=True):
                first = end - words.nbytes
                transfer.copy(words.reshape(-1).view(np.uint8), memory[first:end])
                encoder.copy_buffer_to_buffer(staging.buffer, first, buffer, 0, words.nbytes)
            self.unmap(staging)
            staging.writable, staging.submitted = False, self.submit(encoder.finish())
        except BaseException:
            staging.buffer.destroy()
            raise
        kept.append(staging)

    def _upload(self, size: int) -> HandleStaging:
        buffer = self.device.create_buffer(size=size, usage=_UPLOAD, mapped_at_creation=True)
        staging = HandleStaging(buffer, self.api, self.mode)
        staging.writable = True
        return staging

    def _map(self, staging: HandleStaging, mode: int, submitted: Any) -> None:
        """Maps a whole buffer after a submission. Raises an error unless the answer was success."""
        staging.expect()
        try:
            future = self._safe.wgpuBufferMapAsync(staging.handle, mode, 0, staging.size, staging.callback)
        except BaseException:
            staging.forget()  # the callback will never be called
            raise
        self._wait(staging, submitted, future, time.perf_counter() + _SPIN if self.spins else 0.0)
        answer = staging.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        status, message = answer
        if status != self.api.lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"a buffer could not be mapped: {message or status}")

    def _wait(self, staging: HandleStaging, submitted: Any, future: Any, blocking: float) -> None:
        """Waits for the answer to a mapping: polls until the performance counter is `blocking`, then blocks."""
        raise NotImplementedError

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        assert isinstance(staging, HandleStaging)
        self._safe.wgpuBufferUnmap(staging.handle)


def works(recorder: type[Recorder], device: Any) -> bool:
    """Whether a recorder works on a device: it writes a few words and reads them back, through every upload buffer. It
    may not if this version of the package has other private names."""
    buffers: list[Any] = []
    uploads: list[Staging] = []
    try:
        target = device.create_buffer(size=16, usage=_TARGET)
        buffers.append(target)
        trial = recorder(device, (), [(target, 16, 0)], spins=False)
        staging = trial.staging(16)
        buffers.append(staging.buffer)
        for turn in range(_UPLOADS + 1):
            words = np.arange(turn, turn + 4, dtype=np.uint32)
            if isinstance(trial, HandleRecorder):
                trial.write_mapped([(target, words)], uploads)
            else:
                trial.write([(target, words)], uploads)
        found = bytes(trial.read(staging, trial.submit(trial.record(staging))))
        trial.unmap(staging)
    except Exception:  # also for a lost device: the public methods then report it
        return False
    finally:
        for buffer in (*buffers, *(upload.buffer for upload in uploads)):
            buffer.destroy()
    return found == words.tobytes()
