"""The states of a program on a device: what stays from run to run, read and set from outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import DTYPES, RANGES, Array
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import STORAGE


class States:
    """The states of a program in its buffers. The caller holds `device.lock` and turns errors of wgpu into its own.

    Args:
        program: what dispatches read and write.
        device: where.
        slots: the wgpu buffers of the program's slots.
    """

    def __init__(self, program: Program, device: Device, slots: Sequence[Any]) -> None:
        self._ports = [port for port, _ in program.states]
        self._initial = [words for _, words in program.states]
        self._sizes = [program.slots[port.buffer[1]] for port in self._ports]
        self._device, self._buffers = device, [slots[port.buffer[1]] for port in self._ports]
        self.slots = {port.buffer[1] for port in self._ports}

    def reset(self) -> None:
        """Makes every state what the program begins with."""
        self.write(dict(enumerate(self._initial)))

    def write(self, words: Mapping[int, Array]) -> None:
        """Writes states by their places, behind all runs that were submitted. Raises DeviceError for a lost device."""
        self._check(bool(words))
        for place, array in words.items():
            self._device.wgpu.queue.write_buffer(self._buffers[place], 0, array)

    def read(self, places: Sequence[int]) -> list[Array]:
        """The words of states, by their places, behind all runs that were submitted. Raises DeviceError for a lost
        device."""
        self._check(bool(places))
        found = []
        for port, buffer in ((self._ports[place], self._buffers[place]) for place in places):
            dtype = np.uint32 if port.dtype in RANGES else DTYPES[port.dtype]
            data = self._device.read(buffer, -(-port.size // 4) * 4)
            found.append(np.frombuffer(data, dtype, port.size // 4).copy())
        return found

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Gives states back what they were: runs that are measured are no calls."""
        if not self._ports:
            yield
            return
        copies = [self._device.wgpu.create_buffer(size=size, usage=STORAGE) for size in self._sizes]
        try:
            self._copy(self._buffers, copies)
            try:
                yield
            finally:
                if self._device.alive:
                    self._copy(copies, self._buffers)
        finally:
            for buffer in copies:
                buffer.destroy()

    def _copy(self, sources: list[Any], targets: list[Any]) -> None:
        encoder = self._device.wgpu.create_command_encoder()
        for source, target, size in zip(sources, targets, self._sizes, strict=True):
            encoder.copy_buffer_to_buffer(source, 0, target, 0, size)
        self._device.wgpu.queue.submit([encoder.finish()])

    def _check(self, used: bool) -> None:
        # wgpu-native ends the whole process when a lost device is written to.
        if used and not self._device.alive:
            raise DeviceError(f"{self._device.name} was lost, and its states: open another session")
