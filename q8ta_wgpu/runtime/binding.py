"""Runs a program on an application's own buffers and textures, so that no data passes through the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import NoneType
from typing import Any

from q8ta_wgpu.errors import InputError, counted
from q8ta_wgpu.ir.graph import FLOAT32
from q8ta_wgpu.program import textures
from q8ta_wgpu.program.program import Port
from q8ta_wgpu.runtime.engine import STORAGE, wgpu_errors
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.flags import COMPUTE, BufferUsage, TextureUsage
from q8ta_wgpu.runtime.recording import Step


class Binding:
    """A program bound to buffers and textures, to be run repeatedly. `Session.bind` makes it.

    Args:
        executor: runs the program.
        inputs: a buffer or texture for each input.
        outputs: a buffer or texture for each output; None makes a buffer, or a buffer for each.
        uint8: names of the inputs that are images of uint8.

    Raises:
        InputError: a resource does not fit, or there are more or fewer than outputs.
        DeviceError: the device refuses.

    Attributes:
        outputs: the resources that the outputs are written to, in order.
    """

    def __init__(
        self,
        executor: Executor,
        inputs: Sequence[Any],
        outputs: Sequence[Any | None] | None,
        uint8: Collection[str] = (),
    ) -> None:
        ports = executor.program.outputs
        if not isinstance(outputs, (Sequence, NoneType)):
            raise InputError(f"outputs must be a list of buffers and textures, found {type(outputs).__name__}")
        if outputs is not None and len(outputs) != len(ports):
            raise InputError(f"the model has {counted(len(ports), 'output')}, found {len(outputs)} to write them to")
        self._executor = executor
        self._device = executor.device
        self._before: list[Step] = []
        self._after: list[Step] = []
        self._copies_in: list[tuple[Any, Any, int]] = []
        self._copies_out: list[tuple[Any, Any, int]] = []
        self.outputs: list[Any] = []
        with self._device.lock, wgpu_errors(f"{self._device.name} could not bind the program"):
            for port, resource in zip(executor.program.inputs, inputs, strict=True):
                self._bind_input(port, resource, port.name in uint8)
            for port, resource in zip(ports, outputs or [None] * len(ports), strict=True):
                if resource is None:
                    resource = self._device.wgpu.create_buffer(size=port.size, usage=STORAGE)
                self.outputs.append(resource)
                self._bind_output(port, resource)

    def _bind_input(self, port: Port, resource: Any, uint8: bool) -> None:
        what = f"input {port.name!r}"
        if self._is_buffer(resource, what):
            _check_buffer(what, port, resource, "COPY_SRC")
            self._copies_in.append((resource, self._executor.buffer(port.buffer), port.size))
            return
        _check_texture(what, port, resource, "TEXTURE_BINDING")
        if port.dtype != FLOAT32 and not uint8:
            raise InputError(
                f"{what} is {port.dtype}: only a float32 or uint8 image can be read from a texture; give a buffer of "
                f"{port.size} bytes in {port.layout}"
            )
        if resource.format.endswith(("uint", "sint")) or "depth" in resource.format or "stencil" in resource.format:
            raise InputError(f"{what}: a texture of floats is read, unorm or float, found {resource.format}")
        sampled = {"sample_type": "unfilterable-float", "view_dimension": "2d"}
        self._before.append(
            self._step(
                textures.read_texture(port),
                port,
                ({"texture": sampled}, resource.create_view()),
                ({"buffer": {"type": "storage"}}, {"buffer": self._executor.buffer(port.buffer)}),
            )
        )

    def _bind_output(self, port: Port, resource: Any) -> None:
        what = f"output {port.name!r}"
        if self._is_buffer(resource, what):
            _check_buffer(what, port, resource, "COPY_DST")
            self._copies_out.append((self._executor.buffer(port.buffer), resource, port.size))
            return
        _check_texture(what, port, resource, "STORAGE_BINDING")
        if port.dtype != FLOAT32:
            raise InputError(
                f"{what} is {port.dtype}: only a float32 image can be written to a texture; give a buffer of "
                f"{port.size} bytes in {port.layout}"
            )
        if resource.format not in textures.WRITABLE:
            raise InputError(
                f"{what}: a texture that is written must be {', '.join(textures.WRITABLE)}, found {resource.format}"
            )
        stored = {"access": "write-only", "format": resource.format, "view_dimension": "2d"}
        self._after.append(
            self._step(
                textures.write_texture(port, resource.format),
                port,
                ({"buffer": {"type": "read-only-storage"}}, {"buffer": self._executor.buffer(port.buffer)}),
                ({"storage_texture": stored}, resource.create_view()),
            )
        )

    def _is_buffer(self, resource: Any, what: str) -> bool:
        """Whether a resource is a buffer. Raises InputError if it is no texture either, or of another device."""
        package, found = self._device.engine.package, type(resource).__name__
        if not isinstance(resource, (package.GPUBuffer, package.GPUTexture)):
            raise InputError(f"{what} must be a buffer or a texture of {package.__name__}, found {found}")
        if resource._device is not self._device.wgpu:
            raise InputError(
                f"{what} is a {found} of another device: open the session on that one, Session(model, device=...)"
            )
        return isinstance(resource, package.GPUBuffer)

    def _step(self, text: str, port: Port, *bound: tuple[dict[str, Any], Any]) -> Step:
        """A dispatch with a bind group layout of its own. `bound` has the kind and the resource of each binding."""
        gpu = self._device.wgpu
        entries = [{"binding": i, "visibility": COMPUTE, **kind} for i, (kind, _) in enumerate(bound)]
        layout = gpu.create_bind_group_layout(entries=entries)
        pipeline = gpu.create_compute_pipeline(
            layout=gpu.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": gpu.create_shader_module(code=text), "entry_point": "main"},
        )
        resources = [{"binding": i, "resource": resource} for i, (_, resource) in enumerate(bound)]
        count, limit = textures.groups(port), self._device.target.workgroups
        grid = min(count, limit), -(-count // limit), 1
        return pipeline, gpu.create_bind_group(layout=layout, entries=resources), grid

    def record(self, encoder: Any) -> None:
        """Adds a run to a command encoder of the application, which submits it. Later passes read what the run wrote.

        Close the session after that submission: WebGPU refuses commands on freed buffers, and wgpu-native ends the
        process.

        Raises DeviceError where the session was closed or the device refuses.
        """
        device = self._device
        with device.lock, wgpu_errors(f"{device.name} could not record the program"):
            self._executor.check_open()  # before copies of freed buffers reach the application's encoder
            for source, target, size in self._copies_in:
                encoder.copy_buffer_to_buffer(source, 0, target, 0, size)
            self._executor.record(encoder, self._before, self._after)
            for source, target, size in self._copies_out:
                encoder.copy_buffer_to_buffer(source, 0, target, 0, size)

    def run(self) -> None:
        """Submits a run without waiting for it. Raises as `record` does."""
        device = self._device
        with device.lock, wgpu_errors(f"{device.name} could not run the program"):
            encoder = device.wgpu.create_command_encoder()
            self.record(encoder)
            device.wgpu.queue.submit([encoder.finish()])


def _check_buffer(what: str, port: Port, buffer: Any, usage: str) -> None:
    if buffer.size < port.size:
        raise InputError(
            f"{what}, {port.dtype} {port.shape} in {port.layout}, takes a buffer of {port.size} bytes, "
            f"found {buffer.size}"
        )
    if not buffer.usage & BufferUsage[usage]:
        raise InputError(f"{what}: the buffer must have the usage {usage}")


def _check_texture(what: str, port: Port, texture: Any, usage: str) -> None:
    wanted = textures.image_size(port.shape)
    if wanted is None:
        raise InputError(f"{what} has shape {port.shape}: a texture is one image of 1, 3 or 4 channels; give a buffer")
    if (size := tuple(texture.size)) != (*wanted, 1):
        raise InputError(f"{what} takes a texture of {wanted[0]} x {wanted[1]}, found {' x '.join(map(str, size))}")
    if not texture.usage & TextureUsage[usage]:
        raise InputError(f"{what}: the texture must have the usage {usage}")
