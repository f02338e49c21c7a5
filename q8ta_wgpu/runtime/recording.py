"""Records and submits a program's command buffers, and reads outputs back, at the least cost for the host.

A command buffer can be submitted only once, so each run needs a new one; WebGPU has no reusable form for compute. For
60 dispatches recording takes 266 us through wgpu-py's methods and 153 us through wgpu-native's functions on the
handles. The executor hides that by recording the next run while the device works on this one. Blocking in the driver
takes 190 us longer than polling on an NVIDIA H200 (74 dispatches in 320 us), so on a GPU handles.py polls before it
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.runtime.flags import READ, BufferUsage
from q8ta_wgpu.runtime.transfer import Fill

STAGING: int = BufferUsage.COPY_DST | BufferUsage.MAP_READ

Step = tuple[Any, Any, tuple[int, int, int]]
"""Pipeline, bind group, and workgroups in x, y, z."""

Copy = tuple[Any, int, int]
"""Source buffer, bytes, and offset in the staging buffer."""


def dispatch_steps(compute: Any, steps: Sequence[Step]) -> None:
    """Records steps in a compute pass."""
    current = None
    for pipeline, group, grid in steps:
        if pipeline is not current:
            compute.set_pipeline(pipeline)
            current = pipeline
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*grid)


def record_pass(encoder: Any, steps: Sequence[Step], **options: Any) -> None:
    """Records steps in a compute pass of their own. `options` are those of `begin_compute_pass`."""
    compute = encoder.begin_compute_pass(**options)
    dispatch_steps(compute, steps)
    compute.end()


class Staging:
    """What a run in flight needs of its own: a buffer that outputs are copied to and read from.

    Attributes:
        buffer: the buffer for outputs.
        size: its bytes.
        submitted: what identifies the run that uses it, for an engine that waits for a certain one.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.size: int = buffer.size
        self.submitted: Any = None

    @property
    def bytes(self) -> int:
        """Bytes of all its buffers."""
        return self.size

    def destroy(self) -> None:
        """Frees its memory once no run uses it."""
        self.buffer.destroy()


class Recorder:
    """Records, submits and reads back through WebGPU's public methods, and raises what they raise.

    Only one thread at a time may record, write and submit; any thread may read.

    Args:
        device: the engine's device.
        steps: the dispatches of a run.
        copies: how outputs are copied to a staging buffer.
        spins: whether a wait may keep a core of the host busy. On a software adapter the work needs that core.
        inputs: the buffer of each input, and its bytes.
    """

    def __init__(
        self,
        device: Any,
        steps: Sequence[Step],
        copies: Sequence[Copy],
        spins: bool,
        inputs: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self.device = device
        self.steps = steps
        self.copies = copies
        self.spins = spins
        self.inputs = inputs
        self._prepare()

    def _prepare(self) -> None:
        """Looks up what an engine's form of it needs."""

    def staging(self, size: int) -> Staging:
        """A new staging buffer of `size` bytes."""
        return Staging(self.device.create_buffer(size=size, usage=STAGING))

    def record(self, staging: Staging) -> Any:
        """The command buffer of one run that copies its outputs to `staging`. It must be submitted, or passed to
        `Engine.discard`."""
        encoder = self.device.create_command_encoder()
        self._copy_inputs(encoder, staging)
        compute = encoder.begin_compute_pass()
        self._dispatch(compute)
        compute.end()
        for source, size, offset in self.copies:
            encoder.copy_buffer_to_buffer(source, 0, staging.buffer, offset, size)
        return encoder.finish()

    def _copy_inputs(self, encoder: Any, staging: Staging) -> None:
        """Records the copies of inputs that are written to buffers of `staging`. Here they are written to the queue."""

    def _dispatch(self, compute: Any) -> None:
        dispatch_steps(compute, self.steps)

    def write(self, staging: Staging, fills: Sequence[Fill]) -> None:
        """Writes the inputs of the run that was recorded for `staging` and is submitted next."""
        for (buffer, size), fill in zip(self.inputs, fills, strict=True):
            words = np.zeros(size // 4, np.uint32)
            fill(words)
            self.device.queue.write_buffer(buffer, 0, words)

    def submit(self, staging: Staging, commands: Any) -> None:
        """Submits the commands that were recorded for `staging`."""
        self.device.queue.submit([commands])

    def upload(self, contents: Sequence[tuple[Any, NDArray[Any]]]) -> None:
        """Writes words to buffers, at once and for good."""
        for buffer, words in contents:
            self.device.queue.write_buffer(buffer, 0, words)
        # Engines keep the memory of uploads until the next submission, and some sessions never run.
        self.device.queue.submit([])

    def read(self, staging: Staging) -> Any:
        """Waits for a submitted run and returns its outputs as memory that is readable until `unmap`."""
        staging.buffer.map_sync(READ)
        return staging.buffer.read_mapped(copy=False)

    def unmap(self, staging: Staging) -> None:
        """Ends reading: the buffer may be written by the device again."""
        staging.buffer.unmap()
