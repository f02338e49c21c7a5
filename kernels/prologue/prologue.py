"""The prologue of a product: what it reads, as a value that is never stored.

The operand x of a product is made of parts. A part is some vectors of 16 channels of a stored tensor, and each pixel of
the tensor may count for several (nearest upsampling). Parts stand one after another along the channels of x. So cat,
slice, chunk and nearest upsampling need no dispatch of their own. Nor does another order of channels, as of a
channel_shuffle: the weights are then in the order of the parts (passes/fold_moves.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Operand
from q8ta_wgpu.kernels.prologue.stage import Stage

MOST_PARTS = 16
"""The most parts: each has a uniform field, and a comparison for each vector along k."""

MOST_SHIFT = 8
"""The largest upsampling is by 2^8."""

VECTOR = 16
"""Channels of a vector: four words."""


class Part(NamedTuple):
    """Vectors of the channels of a tensor.

    Attributes:
        tensor: 0 for the operand x, i for the operand x`i`.
        first: the word of a pixel at which it begins.
        vectors: how many vectors of four words it has. The last one may pass the end of the pixel: these lanes are no
            channels, nothing is known of them.
        shift: every pixel stands for 2^shift x 2^shift pixels.
    """

    tensor: int
    first: int
    vectors: int
    shift: int


@dataclass(frozen=True)
class Prologue:
    """Parts in order, and what is computed of a single one. Raises GraphError where their numbers are none."""

    parts: tuple[Part, ...]
    stage: Stage | None = None

    def __post_init__(self) -> None:
        tensors = sorted({part.tensor for part in self.parts})
        if not 1 <= len(self.parts) <= MOST_PARTS or tensors != list(range(len(tensors))):
            raise GraphError(f"a prologue has 1 to {MOST_PARTS} parts, of tensors 0, 1 and so on, found {self}")
        if any(part.first < 0 or part.vectors < 1 or not 0 <= part.shift <= MOST_SHIFT for part in self.parts):
            raise GraphError(f"a part begins at a word, has vectors, and a shift of 0 to {MOST_SHIFT}, found {self}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors as operands: x, x1, x2 .."""
        return "x", *(f"x{i}" for i in range(1, max(part.tensor for part in self.parts) + 1))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of the tensors x1, x2 .. They follow the product's own, before those of its epilogue."""
        tensors = (Operand(name, dtypes=(INT8X4,)) for name in self.names[1:])
        return *tensors, *((self.stage.operand,) if self.stage else ())

    @property
    def vectors(self) -> int:
        """Vectors of x."""
        return sum(part.vectors for part in self.parts)

    def tensors(self, operands: Sequence[Any], own: int) -> tuple[Any, ...]:
        """What belongs to the tensors and the stage, of what belongs to the operands of a call. `own` is the number of
        operands that the operator has without prologue and epilogue."""
        return operands[0], *operands[own : own + len(self.operands)]

    def shape(self, types: Sequence[TensorType]) -> Shape:
        """The shape of x, for tensors of these types. Raises GraphError where one does not have a part, or where they
        differ."""
        images = set()
        for tensor, first, vectors, shift in self.parts:
            if len(types[tensor].shape) != 4 or 4 * first + VECTOR * (vectors - 1) >= types[tensor].shape[1]:
                raise GraphError(f"the vectors of {self} begin within channels of (N, C, H, W), found {types[tensor]}")
            n, _, h, w = types[tensor].shape
            images.add((n, h << shift, w << shift))
        if len(images) != 1 or len({t.q for t in types[: len(self.names)]}) != 1:
            found = ", ".join(map(str, types))
            raise GraphError(f"parts {self} must have images of one size, scale and zero point, found {found}")
        ((n, h, w),) = images
        if self.stage:
            if len(self.parts) > 1 or self.parts[0][:2] != (0, 0) or self.parts[0].shift:
                raise GraphError(f"a stage reads all channels of one tensor, found {self}")
            self.stage.check(*types)
        return n, VECTOR * self.vectors, h, w

    def read(self, arrays: Sequence[Array]) -> Array:
        """x less its zero point, of tensors int8 (n, c, h, w) less theirs: the definition of every prologue. Lanes that
        are no channels are 0 here."""
        if self.stage:
            arrays = (self.stage.apply(arrays[0], arrays[1]),)
        found = []
        for tensor, first, vectors, shift in self.parts:
            taken = arrays[tensor][:, 4 * first : 4 * first + VECTOR * vectors]
            padded = np.pad(taken, ((0, 0), (0, VECTOR * vectors - taken.shape[1]), (0, 0), (0, 0)))
            found.append(padded.repeat(1 << shift, axis=2).repeat(1 << shift, axis=3))
        return np.concatenate(found, axis=1)

    def wide(self, types: Sequence[TensorType]) -> bool:
        """Whether tensors are bound as vectors: if their pixels are whole ones, and parts begin with one."""
        begins = all(part.first % 4 == 0 for part in self.parts)
        return begins and all(-(-t.shape[1] // 4) % 4 == 0 for t in types[: len(self.names)])

    def rows(self, weight: Array) -> Array:
        """A weight (outputs, lanes of x, kernel height, kernel width) in the order in which x is read: (outputs, bytes
        along k), which count (part, tap, lane)."""
        cuts = np.cumsum([VECTOR * part.vectors for part in self.parts])[:-1]
        parts = np.split(weight.reshape(*weight.shape[:2], -1), cuts, axis=1)
        return np.concatenate([part.transpose(0, 2, 1).reshape(len(weight), -1) for part in parts], axis=1)

    def params(self, types: Sequence[TensorType], taps: int) -> Params:
        """Uniform fields: the extents of x; for each part the vector along k at which it ends, where it begins in a
        pixel less where it begins in x, the size of a pixel, both in items of the buffer (vectors where `wide`, else
        words), and its tensor and shift.

        Args:
            types: of the tensors.
            taps: of the product's window.
        """
        fields: dict[str, Any] = {"image": self.shape(types)}
        unit, start = (4, 0) if self.wide(types) else (1, 0)
        for i, (tensor, first, vectors, shift) in enumerate(self.parts):
            begins = (first - 4 * start) // unit & 0xFFFFFFFF
            start += vectors
            pixel = -(-types[tensor].shape[1] // 4) // unit
            fields[f"part_{i}"] = (start * taps, begins, pixel, tensor << 8 | shift)
        return {**fields, **(self.stage.fields(types) if self.stage else {})}

    def declarations(self, wide: bool, taps: int) -> Iterator[str]:
        """WGSL: of a vector along k its part (`part_at`), its tap and which vector of x it is (`place_at`); a vector of
        a tensor's buffer (`part_vector`), also by conditions alone, or another where there is no such tensor
        (`part_vector_or`)."""
        part = "params.part_0"
        for i in range(1, len(self.parts)):
            part = f"select({part}, params.part_{i}, k >= params.part_{i - 1}.x)"
        yield f"fn part_at(k: u32) -> vec4<u32> {{ return {part}; }}"
        starts = list(itertools.accumulate((part.vectors for part in self.parts), initial=0))
        places = [
            f"if (k >= {start * taps}u) {{ let at = k - {start * taps}u; "
            f"return vec2<u32>(at / {part.vectors}u, {start}u + at % {part.vectors}u); }}"
            for start, part in zip(starts[1:-1], self.parts[1:], strict=True)
        ]
        first = self.parts[0].vectors
        yield (
            f"fn place_at(k: u32) -> vec2<u32> {{ {' '.join(reversed(places))} "
            f"return vec2<u32>(k / {first}u, k % {first}u); }}"
        )
        loads = [_vector(name, wide) for name in self.names]
        cases = "".join(f"case {i}u: {{ return {load}; }} " for i, load in enumerate(loads[1:], 1))
        body = f"switch tensor {{ {cases}default: {{ return {loads[0]}; }} }}" if cases else f"return {loads[0]};"
        yield f"fn part_vector(tensor: u32, at: u32) -> vec4<u32> {{ {body} }}"
        chosen = "".join(f"if (tensor == {i}u) {{ v = {load}; }} " for i, load in enumerate(loads))
        yield f"fn part_vector_or(w: vec4<u32>, tensor: u32, at: u32) -> vec4<u32> {{ var v = w; {chosen}return v; }}"

    @property
    def label(self) -> str:
        """What it reads, as in reports: of each part the operand, its channels, and how often a pixel counts."""
        found = []
        for tensor, first, vectors, shift in self.parts:
            upsampled = f" up {1 << shift}" if shift else ""
            found.append(f"{self.names[tensor]}[{4 * first}:{4 * first + VECTOR * vectors}]{upsampled}")
        return " + ".join(found) + (f" -> {self.stage.operand.name}" if self.stage else "")

    def __str__(self) -> str:
        return self.label


def _vector(name: str, wide: bool) -> str:
    """WGSL for a vector of a tensor's buffer."""
    return f"{name}[at]" if wide else f"vec4<u32>({', '.join(f'{name}[at + {i}u]' for i in range(4))})"


PROLOGUE = Attr("value", type=Prologue)
"""The attribute of an operator that reads parts."""
