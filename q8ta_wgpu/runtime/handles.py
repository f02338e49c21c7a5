"""Recording by the C functions of webgpu.h, called directly on the handles of a package's Python objects.

wgpu-native and Dawn both implement webgpu.h, and both packages call it through cffi. They differ in how errors are
reported and in how to wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime import transfer
from q8ta_wgpu.runtime.flags import BufferUsage
from q8ta_wgpu.runtime.recording import STAGING, Recorder, Staging

_UPLOAD: int = BufferUsage.COPY_SRC | BufferUsage.MAP_WRITE

_TARGET: int = BufferUsage.COPY_SRC | BufferUsage.COPY_DST

LARGE = 64 << 10
"""Inputs of at least so many bytes together are written to mapped memory, smaller ones by `write_buffer`, which copies
once more, with one thread, to memory that is new at every call: 1 to 3 GB/s in Dawn, 10 in wgpu-native, of 25 possible
beside an NVIDIA H100. A call of MobileNetV2 (588 KiB) took 0.65 ms by it, 0.45 by mapped memory."""

PIECE = 32 << 20
"""Bytes of mapped memory through which constants are written. Mapped memory for all 1.5 GB of a decoder's weights took
an H100's driver and Dawn, which clears it, 1.9 of the 5.8 seconds of opening."""

_SPIN = 5e-3
"""Seconds of polling before a wait blocks, on a GPU. After that the delay of blocking no longer matters."""

mapping: dict[int, Any] = {}
"""Callbacks that an engine may still call, so that they are not garbage collected before."""


class Mapped:
    """A buffer that is mapped by the engine's functions, with its callback and the callback's answers: (status,
    message), or an exception."""

    def __init__(self, buffer: Any, api: Any, mode: int) -> None:
        self.buffer = buffer
        self.size: int = buffer.size
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


class HandleStaging(Staging):
    """The buffers of a run in flight: one for outputs, and for large inputs one that they are written to.

    Attributes:
        outputs: the buffer for outputs.
        upload: the buffer for inputs, once a run was recorded; None where they are written to the queue.
    """

    def __init__(self, outputs: Mapped) -> None:
        super().__init__(outputs.buffer)
        self.outputs = outputs
        self.upload: Mapped | None = None

    @property
    def bytes(self) -> int:
        """Bytes of both buffers."""
        return self.size + (self.upload.size if self.upload else 0)

    def destroy(self) -> None:
        """Frees its memory once no run uses it."""
        super().destroy()
        if self.upload:
            self.upload.buffer.destroy()


class HandleRecorder(Recorder):
    """A recorder that calls webgpu.h's functions on handles. `works` tells whether they are available.

    Attributes:
        api: the module that holds `lib`, `libf` (which raises errors), `ffi` and helpers for structs.
        mode: when the engine may call back.
        large: bytes from which inputs are written to mapped memory.
    """

    api: Any
    mode: int
    large = LARGE

    def _prepare(self) -> None:
        """Takes the engine's functions and handles from `api`, which a subclass has set."""
        lib = self.api.lib
        self._safe = self.api.libf
        self._calls = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
        self._queue = self.device.queue._internal
        self._commands = self.api.ffi.new("WGPUCommandBuffer[]", 1)
        self._handles = [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in self.steps]

    def staging(self, size: int) -> Staging:
        """A new staging buffer of `size` bytes."""
        return HandleStaging(Mapped(self.device.create_buffer(size=size, usage=STAGING), self.api, self.mode))

    def _copy_inputs(self, encoder: Any, staging: Staging) -> None:
        """Records the copies of large inputs from a buffer that they are written to. Inputs that are too large for one
        buffer are written to the queue."""
        assert isinstance(staging, HandleStaging)
        taken = sum(size for _, size in self.inputs)
        if not self.large <= taken <= self.device.limits["max-buffer-size"]:
            return
        if staging.upload is None:  # not sooner: some sessions only bind
            staging.upload = Mapped(self.device.create_buffer(size=taken, usage=_UPLOAD), self.api, self.mode)
        first = 0
        for buffer, size in self.inputs:
            encoder.copy_buffer_to_buffer(staging.upload.buffer, first, buffer, 0, size)
            first += size

    def _dispatch(self, compute: Any) -> None:
        set_pipeline, set_bind_group, dispatch = self._calls
        handle, nothing, current = compute._internal, self.api.ffi.NULL, None
        for pipeline, group, x, y, z in self._handles:
            if pipeline is not current:
                set_pipeline(handle, pipeline)
                current = pipeline
            set_bind_group(handle, 0, group, 0, nothing)
            dispatch(handle, x, y, z)

    def write(self, staging: Staging, fills: Sequence[transfer.Fill]) -> None:
        """Writes the inputs of the run that was recorded for `staging` and is submitted next. Large inputs are written
        once, to mapped memory from which the run copies them. After an error, the staging can only be destroyed."""
        assert isinstance(staging, HandleStaging)
        if (upload := staging.upload) is None:
            super().write(staging, fills)
            return
        self._map(upload, self.api.lib.WGPUMapMode_Write, staging.submitted)
        memory = np.frombuffer(self._range(upload, self._safe.wgpuBufferGetMappedRange), np.uint32)
        first = 0
        for (_, size), fill in zip(self.inputs, fills, strict=True):
            fill(memory[first : first + size // 4])
            first += size // 4
        self._safe.wgpuBufferUnmap(upload.handle)

    def upload(self, contents: Sequence[tuple[Any, NDArray[Any]]]) -> None:
        """Writes words to buffers through two pieces of mapped memory in turns. Several threads write one of them while
        the device copies from the other."""
        total = sum(words.nbytes for _, words in contents)
        if total < self.large:
            super().upload(contents)
            return
        size = min(total, PIECE)
        pieces = [
            HandleStaging(Mapped(self.device.create_buffer(size=size, usage=_UPLOAD), self.api, self.mode))
            for _ in range(2 if total > PIECE else 1)
        ]
        try:
            for piece, parts in zip(itertools.cycle(pieces), _pieces(contents, size), strict=False):
                self._upload(piece, parts)
        finally:
            for piece in pieces:
                piece.destroy()

    def _upload(self, piece: HandleStaging, parts: Sequence[tuple[Any, int, NDArray[Any]]]) -> None:
        """Writes words to buffers, each from a byte of its buffer on, through a piece of mapped memory."""
        self._map(piece.outputs, self.api.lib.WGPUMapMode_Write, piece.submitted)
        memory = np.frombuffer(self._range(piece.outputs, self._safe.wgpuBufferGetMappedRange), np.uint32)
        encoder, first = self.device.create_command_encoder(), 0
        for buffer, offset, words in parts:
            transfer.copy(words, memory[first : first + words.size])
            encoder.copy_buffer_to_buffer(piece.buffer, 4 * first, buffer, offset, words.nbytes)
            first += words.size
        del memory
        self._safe.wgpuBufferUnmap(piece.outputs.handle)
        self.submit(piece, encoder.finish())

    def read(self, staging: Staging) -> Any:
        """Waits for a submitted run and returns its outputs, a buffer that is readable until `unmap`."""
        assert isinstance(staging, HandleStaging)
        self._map(staging.outputs, self.api.lib.WGPUMapMode_Read, staging.submitted)
        return self._range(staging.outputs, self._safe.wgpuBufferGetConstMappedRange)

    def _range(self, mapped: Mapped, get: Any) -> Any:
        """The memory of a mapped buffer. Raises RuntimeError if it is gone, as of a device that was lost meanwhile."""
        address = get(mapped.handle, 0, mapped.size)
        if address == self.api.ffi.NULL:
            raise RuntimeError("a mapped buffer has no memory: the device was lost")
        return self.api.ffi.buffer(address, mapped.size)

    def _map(self, mapped: Mapped, mode: int, submitted: Any) -> None:
        """Maps a whole buffer after a submission. Raises an error unless the answer was success."""
        mapped.expect()
        try:
            future = self._safe.wgpuBufferMapAsync(mapped.handle, mode, 0, mapped.size, mapped.callback)
        except BaseException:
            mapped.forget()  # the callback will never be called
            raise
        self._wait(mapped, submitted, future, time.perf_counter() + _SPIN if self.spins else 0.0)
        answer, *_ = mapped.answers
        mapped.answers.clear()  # the callback refers to them, and Python's collector does not see that
        if isinstance(answer, BaseException):
            raise answer
        status, message = answer
        if status != self.api.lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"a buffer could not be mapped: {message or status}")

    def _wait(self, mapped: Mapped, submitted: Any, future: Any, blocking: float) -> None:
        """Waits for the answer to a mapping: polls until the performance counter is `blocking`, then blocks."""
        raise NotImplementedError

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        assert isinstance(staging, HandleStaging)
        self._safe.wgpuBufferUnmap(staging.outputs.handle)


def _pieces(
    contents: Sequence[tuple[Any, NDArray[Any]]], size: int
) -> Iterator[Sequence[tuple[Any, int, NDArray[Any]]]]:
    """Contents of buffers in parts of at most `size` bytes together: (buffer, offset in bytes, words)."""
    parts, room = list[tuple[Any, int, NDArray[Any]]](), size
    for buffer, words in contents:
        first = 0
        while first < words.size:
            if not room:
                yield parts
                parts, room = [], size
            part = words[first : first + room // 4]
            parts.append((buffer, 4 * first, part))
            first, room = first + part.size, room - part.nbytes
    yield parts


def works(form: type[Recorder], device: Any) -> bool:
    """Whether a form of recorder works on a device: it writes a few words and reads them back, twice by the same
    buffers. It may not if this version of the package has other private names."""
    made: list[Any] = []
    try:
        target = device.create_buffer(size=16, usage=_TARGET)
        made.append(target)
        trial = form(device, (), [(target, 16, 0)], spins=False, inputs=[(target, 16)])
        if isinstance(trial, HandleRecorder):
            trial.large = 0
        staging = trial.staging(16)
        made.append(staging)
        for turn in range(2):
            wanted = np.arange(turn, turn + 4, dtype=np.uint32)
            commands = trial.record(staging)
            trial.write(staging, [partial(transfer.copy, wanted)])
            trial.submit(staging, commands)
            found = bytes(trial.read(staging))
            trial.unmap(staging)
            if found != wanted.tobytes():
                return False
    except Exception:  # also for a lost device: the public methods then report it
        return False
    finally:
        for each in made:
            each.destroy()
    return True
