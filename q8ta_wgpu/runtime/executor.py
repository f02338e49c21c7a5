"""Runs a program on a device: uploads, one command encoder per call, read-back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.program import Place, Program

_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC

Words = NDArray[Any]


class Executor:
    """Buffers, pipelines and bind groups of one program on one device, made once."""

    def __init__(self, program: Program, device: Device) -> None:
        self.program = program
        self.device = device
        gpu = device.wgpu
        with device.lock:
            self._slots = [gpu.create_buffer(size=size, usage=_USAGE) for size in program.slots]
            self._constants = [gpu.create_buffer_with_data(data=c, usage=_USAGE) for c in program.constants]
            uniforms = program.uniforms or bytes(16)
            self._uniforms = gpu.create_buffer_with_data(data=uniforms, usage=wgpu.BufferUsage.UNIFORM)
            self._offsets, total = _offsets([port.size for port in program.outputs])
            self._staging = gpu.create_buffer(size=max(total, 16), usage=wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ)
            self._steps = [self._bind(d) for d in program.dispatches]

    def _bind(self, dispatch: Any) -> tuple[Any, Any, tuple[int, int, int]]:
        text = self.program.shaders[dispatch.shader]
        compiled = self.device.pipeline(text, len(dispatch.buffers))
        entries = [{"binding": i, "resource": {"buffer": self.buffer(place)}} for i, place in enumerate(dispatch.buffers)]
        offset, size = dispatch.uniform
        uniform = {"buffer": self._uniforms, "offset": offset, "size": size}
        entries.append({"binding": len(entries), "resource": uniform})
        group = self.device.wgpu.create_bind_group(layout=compiled.layout, entries=entries)
        return compiled.pipeline, group, dispatch.grid

    def buffer(self, place: Place) -> Any:
        """The wgpu buffer of a place."""
        kind, index = place
        return self._slots[index] if kind == "slot" else self._constants[index]

    def run(self, inputs: Sequence[Words]) -> list[Words]:
        """Uploads input words in port order, runs every dispatch and returns the output words in port order."""
        with self.device.lock:
            self.upload(inputs)
            encoder = self.device.wgpu.create_command_encoder()
            self.record(encoder)
            self.device.wgpu.queue.submit([encoder.finish()])
            return self._read()

    def upload(self, inputs: Sequence[Words]) -> None:
        """Writes input words to the buffers of the input ports."""
        for port, words in zip(self.program.inputs, inputs, strict=True):
            self.device.wgpu.queue.write_buffer(self.buffer(port.place), 0, words)

    def record(self, encoder: Any) -> None:
        """Records all dispatches in one pass, and the copies of the outputs to the staging buffer."""
        compute = encoder.begin_compute_pass()
        for pipeline, group, grid in self._steps:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)
        compute.end()
        for port, offset in zip(self.program.outputs, self._offsets, strict=True):
            encoder.copy_buffer_to_buffer(self.buffer(port.place), 0, self._staging, offset, _aligned(port.size))

    def _read(self) -> list[Words]:
        self._staging.map_sync(wgpu.MapMode.READ)
        try:
            data = bytes(self._staging.read_mapped(copy=False))
        finally:
            self._staging.unmap()
        found = []
        for port, offset in zip(self.program.outputs, self._offsets, strict=True):
            dtype = np.float32 if port.dtype == "float32" else np.uint32
            found.append(np.frombuffer(data, dtype, port.size // 4, offset))
        return found

    def time(self, inputs: Sequence[Words], repeats: int) -> NDArray[np.float64]:
        """Microseconds of every dispatch, (repeats, dispatches), by timestamp queries: one compute pass a dispatch."""
        gpu, count = self.device.wgpu, len(self._steps)
        size = 16 * count
        queries = gpu.create_query_set(type="timestamp", count=2 * count)
        resolved = gpu.create_buffer(size=size, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC)
        found = []
        with self.device.lock:
            self.upload(inputs)
            for _ in range(repeats):
                encoder = gpu.create_command_encoder()
                for i, (pipeline, group, grid) in enumerate(self._steps):
                    writes = {"query_set": queries, "beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
                    compute = encoder.begin_compute_pass(timestamp_writes=writes)
                    compute.set_pipeline(pipeline)
                    compute.set_bind_group(0, group)
                    compute.dispatch_workgroups(*grid)
                    compute.end()
                encoder.resolve_query_set(queries, 0, 2 * count, resolved, 0)
                gpu.queue.submit([encoder.finish()])
                ticks = np.frombuffer(gpu.queue.read_buffer(resolved), np.uint64).reshape(count, 2)
                found.append((ticks[:, 1] - ticks[:, 0]).astype(np.float64) / 1e3)
        return np.array(found)

    def poison(self, word: int) -> None:
        """Fills every slot with a word: for tests that nothing reads what was not written."""
        for size, slot in zip(self.program.slots, self._slots, strict=True):
            self.device.wgpu.queue.write_buffer(slot, 0, np.full(size // 4, word, np.uint32))

    def close(self) -> None:
        """Frees the buffers."""
        for buffer in (*self._slots, *self._constants, self._uniforms, self._staging):
            buffer.destroy()
        self._steps = []


def _aligned(size: int) -> int:
    return -(-size // 4) * 4


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // 16) * 16
    return offsets, total


