"""A program: everything a device needs to run a model, as numbers and WGSL text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from q8ta_wgpu.errors import counted

BufferRef = tuple[Literal["slot", "constant"], int]
"""A buffer by kind and index: a slot that values share, or a constant."""


@dataclass(frozen=True)
class Port:
    """An input or output of a program: the logical tensor, and the buffer that holds it in `layout`."""

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
        kernel: the kernel's name, for instance q8ta_conv2d.dw.
        value: the value it writes.
        source: its place in the user's model.
        shader: index into the program's shaders.
        buffers: buffers in binding order; the last one is written.
        uniform: (offset, bytes) into the program's uniforms, bound after the buffers.
        grid: workgroups in x, y, z.
        layouts: of the inputs that have one, then of the output.
        moved: bytes read and written if every operand moves once.
        macs: multiply-accumulates; 0 where its time does not depend on them.
        stages: names of the stages of a weighted sum's epilogue.
        offsets: the byte from which each buffer is bound; empty where all are from the first.
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
        """The value it writes, and the stages of its epilogue."""
        return f"{self.value} ({self.stages})" if self.stages else self.value


@dataclass(frozen=True)
class Program:
    """Shaders, buffers and dispatches in order.

    `slots` are sizes in bytes. `constants` are uploaded once, as they are. `values` has the bytes of each tensor in a
    slot; several share a slot one after the other. `states` are values that dispatches read and write in slots of their
    own, which stay from run to run, with the words that they begin with. `notes` say which features of the device it
    does not use, and why.
    """

    shaders: tuple[str, ...]
    slots: tuple[int, ...]
    constants: tuple[NDArray[Any], ...]
    uniforms: bytes
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[tuple[Port, NDArray[Any]], ...] = ()
    values: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def activation_bytes(self) -> int:
        """Bytes of all slots: the device memory of activations."""
        return sum(self.slots)

    def on_matrix_units(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch uses matrix units: its shader enables them."""
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
