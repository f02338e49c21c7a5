"""A program: everything that a device needs to run a model, as numbers and WGSL text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from q8ta_wgpu.errors import counted

BufferRef = tuple[Literal["slot", "constant"], int]
"""Kind and index of a buffer: a slot that values share, or a constant."""


@dataclass(frozen=True)
class Port:
    """An input, output or state of a program: the tensor, and the buffer that holds it in `layout`, of `size` bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    buffer: BufferRef
    size: int


@dataclass(frozen=True)
class Dispatch:
    """One kernel launch.

    Attributes:
        kernel: the kernel's name, for example q8ta_conv2d.direct.
        value: name of the value that it writes.
        source: its place in the user's model.
        shader: index into the program's shaders.
        buffers: buffers in binding order; the last one is written.
        uniform: (offset, bytes) into the program's uniforms, bound after the buffers.
        grid: workgroups in x, y, z.
        layouts: of the inputs that have one, then of the output.
        moved: bytes read and written if each operand is read once.
        macs: multiply-accumulates; 0 if its time does not depend on them.
        stages: what a product reads, where that is parts of tensors, and the names of its epilogue's stages.
        offsets: byte offset at which each buffer is bound; empty if all are 0.
    """

    kernel: str
    value: str
    source: str
    shader: int
    buffers: tuple[BufferRef, ...]
    uniform: tuple[int, int]
    grid: tuple[int, int, int]
    layouts: tuple[str, ...]
    moved: int
    macs: int
    stages: str = ""
    offsets: tuple[int, ...] = ()

    @property
    def described(self) -> str:
        """The name of its value, with the stages of its epilogue."""
        return f"{self.value} ({self.stages})" if self.stages else self.value


@dataclass(frozen=True)
class Program:
    """Shaders, buffers, and dispatches in order.

    Attributes:
        shaders: WGSL modules.
        slots: sizes of the slots in bytes.
        constants: words, uploaded once.
        uniforms: parameters of all dispatches.
        dispatches: in execution order.
        inputs, outputs: ports in order.
        states: port and initial words of each state. It has a slot of its own, which is kept from run to run.
        notes: features of the device that are not used, and why.
    """

    shaders: tuple[str, ...]
    slots: tuple[int, ...]
    constants: tuple[NDArray[Any], ...]
    uniforms: bytes
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[tuple[Port, NDArray[Any]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def activation_bytes(self) -> int:
        """Bytes of all slots: the device memory of activations."""
        return sum(self.slots)

    def on_matrix_units(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch uses matrix units."""
        return "\nenable chromium_experimental_subgroup_matrix;" in self.shaders[dispatch.shader]

    def __str__(self) -> str:
        constants = sum(c.nbytes for c in self.constants)
        dispatches = counted(len(self.dispatches), "dispatch", "dispatches")
        lines = [
            f"{dispatches}, {counted(len(self.shaders), 'shader')}, {counted(len(self.slots), 'slot')} of "
            f"{self.activation_bytes / 2**20:.2f} MiB, constants {constants / 2**20:.2f} MiB"
        ]
        rows = [
            (d.kernel, f"{' '.join(d.layouts[:-1])} -> {d.layouts[-1]}", f"grid {'x'.join(map(str, d.grid))}")
            for d in self.dispatches
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row, d in zip(rows, self.dispatches, strict=True):
            lines.append(
                " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + f" {d.described}"
            )
        return "\n".join((*lines, *self.notes))
