"""Runs a program on a device: uploads inputs, submits a recorded command buffer, and reads outputs back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import DTYPES, RANGES
from q8ta_wgpu.program.program import BufferRef, Dispatch, Program
from q8ta_wgpu.runtime import transfer
from q8ta_wgpu.runtime.constants import Shared
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.device_states import States
from q8ta_wgpu.runtime.engine import STORAGE, UNIFORM, wgpu_errors
from q8ta_wgpu.runtime.memory import Memory
from q8ta_wgpu.runtime.pipelines import Compiling, Pipeline
from q8ta_wgpu.runtime.recorded_runs import RecordedRuns
from q8ta_wgpu.runtime.recording import Staging, Step, record_pass

Words = NDArray[Any]

Reader = Callable[[int, Words], Words]
"""Makes a new array of an output's number and words. These lie in mapped memory, valid during the call alone."""


def _copied(number: int, words: Words) -> Words:
    return transfer.copied(words)


class Run:
    """A submitted run. Take its `result` once, or `discard` it."""

    def __init__(self, executor: Executor, staging: Staging, read: Reader) -> None:
        self._executor = executor
        self._staging = staging
        self._read = read

    def result(self) -> list[Words]:
        """Waits for the run and returns what `submit` was to make of each output, in port order.

        Other threads may submit and wait meanwhile. Raises DeviceError if the device fails.
        """
        return self._executor._read(self._staging, self._read)

    def discard(self) -> None:
        """Gives the run's staging buffer back without reading it. The device still finishes the run. In a forked child
        it does nothing: the buffer is the parent's."""
        if not self._executor.device.lock.inherited:
            self._executor._runs.give_back(self._staging)


class Executor:
    """Buffers, pipelines and bind groups of one program on one device, made once. Several threads may call it.

    Runs may overlap: `submit` queues a run. The device executes runs in order, so they share slots. Each run in flight
    has a staging buffer of its own.

    All methods raise DeviceError with wgpu's message if the device fails: out of memory, lost.

    Args:
        program: the program to run.
        device: the device to run it on.
        sharing: an executor of the same network for inputs of other sizes. Both use that one's buffers for states, and
            it must be closed after this one.
        compiling: where the program's pipelines are being made.

    Attributes:
        steps: what a run records, one for each dispatch.
        recorded: how many runs were recorded in command encoders of the caller, who alone knows when they run.
    """

    def __init__(
        self, program: Program, device: Device, sharing: Executor | None = None, compiling: Compiling | None = None
    ) -> None:
        self.program = program
        self.device = device
        self._made: list[Any] = []
        self._constants: list[Shared] = []
        self._kept: dict[str, Shared] = {}
        self._pipelines: list[Pipeline] = []
        self._loaded = self._ran = False
        self.recorded = 0
        self._offsets, self._outputs_size = _offsets([port.size for port in program.outputs])
        try:
            with (
                wgpu_errors(f"{device.name} could not load the program ({_memory(program)})"),
                contextlib.nullcontext(compiling) if compiling else device.compiling() as making,
            ):
                self._load(sharing, making)
        except BaseException:
            self.close()
            raise

    def _load(self, sharing: Executor | None, compiling: Compiling) -> None:
        """Creates all buffers and pipelines. The lock is released in between, so that other programs can run while
        pipelines compile."""
        program, device = self.program, self.device
        self.steps: list[Step] = []
        for dispatch in program.dispatches:
            compiling.start(program.shaders[dispatch.shader], len(dispatch.buffers))
        with device.lock:
            self._slots = self._made_slots(sharing)
            self._uniforms = device.wgpu.create_buffer_with_data(data=program.uniforms or bytes(16), usage=UNIFORM)
            self._made.append(self._uniforms)
            self._take_constants()
            self._states = States(program, device, self._slots)
            if sharing is None:
                self._states.reset()
        for dispatch in program.dispatches:
            pipeline = compiling.pipeline(program.shaders[dispatch.shader], len(dispatch.buffers))
            with device.lock:
                self.steps.append(self._bind(dispatch, pipeline))
        copies = [
            (self.buffer(port.buffer), _aligned(port.size), offset)
            for port, offset in zip(program.outputs, self._offsets, strict=True)
        ]
        with device.lock:
            inputs = [(self.buffer(port.buffer), _aligned(port.size)) for port in program.inputs]
            self._recorder = device.recorder(device.wgpu, self.steps, copies, not device.software, inputs)
            self._runs = RecordedRuns(self._recorder, device.lock, max(self._outputs_size, 16))
            self._loaded = True

    def _take_constants(self) -> None:
        """Takes the buffers of constants, and writes those that no other program has."""
        device, written = self.device, list[tuple[Any, Words]]()
        for array in self.program.constants:

            def new(array: Words = array) -> Any:
                written.append((device.wgpu.create_buffer(size=array.nbytes, usage=STORAGE), array))
                return written[-1][0]

            self._constants.append(device.constants.take(array, new))
        device.upload(written)

    def _buffer(self, size: int, usage: int) -> Any:
        self._made.append(self.device.wgpu.create_buffer(size=size, usage=usage))
        return self._made[-1]

    def _made_slots(self, sharing: Executor | None) -> list[Any]:
        """A buffer for each slot. Those of states are another executor's if it shares them."""
        states, slots = {port.buffer[1]: port.name for port, _ in self.program.states}, []
        if sharing is not None:
            sharing.check_open()
        for index, size in enumerate(self.program.slots):
            if (name := states.get(index)) is None:
                slots.append(self._buffer(size, STORAGE))
                continue
            shared = (
                sharing._kept[name].taken()
                if sharing
                else Shared(self.device.wgpu.create_buffer(size=size, usage=STORAGE))
            )
            self._kept[name] = shared
            slots.append(shared.buffer)
        return slots

    def _bind(self, dispatch: Dispatch, pipeline: Pipeline) -> Step:
        if max(dispatch.grid) > (limit := self.device.target.workgroups):
            raise DeviceError(
                f"{dispatch.kernel} for {dispatch.value} needs a grid of {dispatch.grid} workgroups, and the limit of "
                f"{self.device.name} is {limit}: take smaller inputs, or TiledSession for images"
            )
        self._pipelines.append(pipeline)
        offset, size = dispatch.uniform
        uniform = {"buffer": self._uniforms, "offset": offset, "size": size}
        offsets = dispatch.offsets or (0,) * len(dispatch.buffers)
        bound = [{"buffer": self.buffer(p), "offset": o} for p, o in zip(dispatch.buffers, offsets, strict=True)]
        group = self.device.bind_group(pipeline, [*bound, uniform])
        return pipeline.pipeline, group, dispatch.grid

    def buffer(self, ref: BufferRef) -> Any:
        """The wgpu buffer of a reference."""
        kind, index = ref
        return self._slots[index] if kind == "slot" else self._constants[index].buffer

    @property
    def memory(self) -> Memory:
        """Device memory, at its maximum so far."""
        program = self.program
        return Memory(
            slots=program.slots,
            constants=sum(int(c.nbytes) for c in program.constants),
            uniforms=max(len(program.uniforms), 16),
            staging=self._runs.bytes,
        )

    @contextlib.contextmanager
    def states(self) -> Iterator[States]:
        """The states of the program. During the context nothing else is submitted."""
        with self.device.lock, wgpu_errors(f"{self.device.name} could not read or write states"):
            self.check_open()
            yield self._states

    def run(self, inputs: Sequence[Words], read: Reader = _copied) -> list[Words]:
        """The result of a run on input words in port order."""
        return self.submit(
            [partial(transfer.copy, words.reshape(-1).view(np.uint32)) for words in inputs], read
        ).result()

    def submit(self, fills: Sequence[transfer.Fill], read: Reader = _copied) -> Run:
        """Writes inputs, in port order, and queues a run. What `fills` read may be changed when it returns. The run's
        result is what `read` makes of each output."""
        recorder = self._recorder
        with self.device.lock, wgpu_errors(f"{self.device.name} could not run the program"):
            self.check_open()
            if not fills:  # writing raises an error of its own
                self._check_alive()
            staging, commands = self._runs.take()
            try:
                recorder.write(staging, fills)
                recorder.submit(staging, commands)
                # The next run is recorded while the device works on this one. But not at the first run: many programs
                # run only once, and recorded commands must be submitted.
                if self._ran:
                    self._runs.record_ahead()
                self._ran = True
            except BaseException:
                self._runs.drop(staging)
                raise
        return Run(self, staging, read)

    def submit_beside(self, fills: Sequence[transfer.Fill], read: Reader) -> Run:
        """As `submit`, a run that is no call: it begins with the initial states, and leaves states as they were."""
        with self.device.lock, wgpu_errors(f"{self.device.name} could not run the program"):
            self.check_open()
            with self._states.preserved():
                self._states.reset()
                return self.submit(fills, read)

    def record(self, encoder: Any, before: Sequence[Step], after: Sequence[Step]) -> None:
        """Records a run between the caller's steps, in one compute pass of the caller's encoder. The caller holds
        `device.lock` and has called `check_open`."""
        self.recorded += 1
        record_pass(encoder, [*before, *self.steps, *after])

    def upload(self, inputs: Sequence[Words]) -> None:
        """Writes input words to the buffers of the input ports, for runs that are no calls."""
        if not inputs:
            self._check_alive()
        for port, words in zip(self.program.inputs, inputs, strict=True):
            self.device.wgpu.queue.write_buffer(self.buffer(port.buffer), 0, words)

    def _check_alive(self) -> None:
        """Raises DeviceError for a lost device, since submitting to it would end the process."""
        if not self.device.alive:
            raise DeviceError(f"{self.device.name} was lost: open another session")

    def _read(self, staging: Staging, read: Reader) -> list[Words]:
        with self.device.waiting, wgpu_errors(f"{self.device.name} could not run the program"):
            try:
                data = self._recorder.read(staging)
                outputs = []
                for number, (port, offset) in enumerate(zip(self.program.outputs, self._offsets, strict=True)):
                    dtype = np.uint32 if port.dtype in RANGES else DTYPES[port.dtype]
                    outputs.append(read(number, np.frombuffer(data, dtype, port.size // 4, offset)))
                self._recorder.unmap(staging)
            except BaseException:
                self._runs.drop(staging)
                raise
        self._runs.give_back(staging)
        return outputs

    @contextlib.contextmanager
    def measuring(self, inputs: Sequence[Words]) -> Iterator[None]:
        """Uploads inputs for runs of `steps` that are no calls: in the end, states are what they were. During the
        context nothing else is submitted."""
        with self.device.lock, wgpu_errors(f"{self.device.name} could not time the program"):
            self.check_open()
            self.upload(inputs)
            with self._states.preserved():
                yield

    def poison(self, word: int) -> None:
        """Fills every slot except those of states with a word. Tests use it to show that nothing reads memory that was
        not written."""
        for index, (size, slot) in enumerate(zip(self.program.slots, self._slots, strict=True)):
            if index not in self._states.slots:
                self.device.wgpu.queue.write_buffer(slot, 0, np.full(size // 4, word, np.uint32))

    def close(self) -> None:
        """Frees the buffers once no run uses them. Runs in flight still give their results; later ones raise
        DeviceError. In a forked child it does nothing: the buffers are the parent's."""
        if self.device.lock.inherited:
            return
        with self.device.lock:
            if self._loaded:
                ahead = [commands for _, commands in self._runs.ahead]
                with contextlib.suppress(DeviceError), wgpu_errors(f"{self.device.name} was lost"):
                    if ahead and self.device.alive:
                        with self._states.preserved():  # some engines must submit what was recorded, which runs it
                            self.device.engine.discard(self.device.wgpu, ahead)
                self._runs.close()
            for buffer in self._made:
                buffer.destroy()
            for shared in (*self._constants, *self._kept.values()):
                shared.give_back()
            self._constants, self._kept = [], {}
            self._made, self.steps, self._pipelines = [], [], []

    def check_open(self) -> None:
        """Raises DeviceError after `close`."""
        # wgpu-native ends the whole process when destroyed buffers are submitted.
        if not self._made:
            raise DeviceError("this program was closed: open another session")


def _memory(program: Program) -> str:
    weights = sum(c.nbytes for c in program.constants)
    return f"{program.activation_bytes / 2**20:.0f} MiB of activations, {weights / 2**20:.0f} MiB of weights"


def _aligned(size: int) -> int:
    return -(-size // 4) * 4


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // 16) * 16
    return offsets, total
