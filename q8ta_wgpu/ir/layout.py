"""Memory layouts of tensors: names, packing rules and addresses.

Every tensor has four dimensions (N, C, H, W). Shapes of lower rank get ones on the left; leading dimensions beyond four
are folded into N. An int8 tensor is a buffer of u32 words of four int8 (dtype Int8x4); the lowest byte has the lowest
index along the packed dimension. Names and addresses are those of ExecuTorch's Vulkan backend. An int16 tensor has the
same layouts with a vec2<u32> for each word: also four elements, so counts and order of words are the same.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError

Shape = tuple[int, ...]
Shape4 = tuple[int, int, int, int]


class Layout(enum.Enum):
    """Memory layouts, with the names of ExecuTorch's `VkMemoryLayout`."""

    TENSOR_WIDTH_PACKED = 0
    TENSOR_HEIGHT_PACKED = 1
    TENSOR_CHANNELS_PACKED = 2
    PACKED_INT8_4W4C = 3
    PACKED_INT8_4H4W = 4
    PACKED_INT8_4W = 5
    PACKED_INT8_4C = 6
    PACKED_INT8_4C1W = 8
    PACKED_INT8_CONV2D = 9
    DEFAULT = 255

    @property
    def short(self) -> str:
        """The name without its prefix: `4W4C`, `CONV2D`, `WIDTH_PACKED`."""
        return self.name.removeprefix("PACKED_INT8_").removeprefix("TENSOR_")

    @property
    def is_int8(self) -> bool:
        """Whether tensors in this layout are words of four int8."""
        return self.name.startswith("PACKED_INT8_")

    def __repr__(self) -> str:
        return self.short


PART_ALIGNMENT = 256
"""Bytes: WebGPU binds a part of a buffer that begins at a multiple of them, on every device."""

ROW_MAJOR = Layout.TENSOR_WIDTH_PACKED
INT8_LAYOUTS = (
    Layout.PACKED_INT8_4W,
    Layout.PACKED_INT8_4C,
    Layout.PACKED_INT8_4C1W,
    Layout.PACKED_INT8_4W4C,
    Layout.PACKED_INT8_4H4W,
)
CHANNELS_PACKED_INT8 = frozenset({Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W, Layout.PACKED_INT8_4W4C})
WIDTH_PACKED_INT8 = frozenset({Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4H4W})
ANY_INT8 = CHANNELS_PACKED_INT8 | WIDTH_PACKED_INT8


@dataclass(frozen=True)
class Packing:
    """How a layout orders words: a row of the table of layouts.

    Attributes:
        packed: the axis (0=N 1=C 2=H 3=W) whose neighbours share a word.
        outer: the axis whose four neighbours share a 16-byte block, or None.
        order: axes of the words from slow to fast. A capital is the index of a word or block, lower case the row in a
            block.
        lanes: elements of a word.
    """

    packed: int
    outer: int | None
    order: str
    lanes: int = 4

    def block(self, axis: int) -> int:
        """How many neighbours along `axis` share a word or a block: 4 or 1."""
        return self.lanes if axis == self.packed else 4 if axis == self.outer else 1


PACKINGS: dict[Layout, Packing] = {
    Layout.PACKED_INT8_4W: Packing(3, None, "NCHW"),
    Layout.PACKED_INT8_4C: Packing(1, None, "NHWC"),
    Layout.PACKED_INT8_4C1W: Packing(1, None, "NHCW"),
    Layout.PACKED_INT8_4W4C: Packing(1, 3, "NHWCw"),
    Layout.PACKED_INT8_4H4W: Packing(3, 2, "NCHWh"),
}

ROWS = Packing(3, None, "NCHW", lanes=1)
"""The packing of row-major floats. q8ta_wgpu/program/layout_functions.py writes the WGSL of each packing."""


def packing_of(layout: Layout) -> Packing:
    """The packing of an int8 layout. Raises GraphError for float layouts, and for CONV2D, which is symbolic."""
    if layout not in PACKINGS:
        raise GraphError(f"{layout.short} has no addresses of its own: layouts with addresses are {list(PACKINGS)}")
    return PACKINGS[layout]


def canonical(shape: Shape) -> Shape4:
    """The (N, C, H, W) view of `shape`: ones on the left, extra leading dimensions folded into N."""
    lead, last = shape[:-3], shape[-3:]
    c, h, w = (1,) * (3 - len(last)) + tuple(last)
    return math.prod(lead), c, h, w


def packed_axis(layout: Layout) -> int:
    """The canonical axis (1 = C, 3 = W) whose neighbours are adjacent in memory."""
    return packing_of(layout).packed if layout.is_int8 else 3


def word_grid(shape: Shape, layout: Layout) -> Shape4:
    """Extents of (N, C, H, W) after padding: in elements, the packed axis in words."""
    packing = packing_of(layout)
    padded = [-(-d // packing.block(axis)) * packing.block(axis) for axis, d in enumerate(canonical(shape))]
    padded[packing.packed] //= 4
    return padded[0], padded[1], padded[2], padded[3]


def word_count(shape: Shape, layout: Layout) -> int:
    """Number of 4-byte words of a tensor in a layout; for row-major floats one word an element."""
    return math.prod(word_grid(shape, layout)) if layout.is_int8 else math.prod(shape)


def _split(array: NDArray[Any], packing: Packing) -> NDArray[Any]:
    """Pads to whole blocks and splits every axis into (block index, index in the block): rank 8."""
    blocks = [packing.block(axis) for axis in range(4)]
    counts = [-(-d // b) for d, b in zip(array.shape, blocks, strict=True)]
    whole = tuple(n * b for n, b in zip(counts, blocks, strict=True))
    if whole != array.shape:  # np.pad takes four times as long for an image of bytes
        padded = np.zeros(whole, array.dtype)
        padded[tuple(map(slice, array.shape))] = array
        array = padded
    return array.reshape([n for pair in zip(counts, blocks, strict=True) for n in pair])


def _permutation(packing: Packing) -> list[int]:
    """Axes of the rank-8 split array in memory order."""
    order = [("NCHW".index(letter.upper()) * 2) + letter.islower() for letter in packing.order]
    rest = [axis for axis in range(8) if axis not in order and axis != packing.packed * 2 + 1]
    return rest + order + [packing.packed * 2 + 1]


def pack(array: NDArray[Any], layout: Layout) -> NDArray[np.uint32]:
    """Packs a logical int8 or int16 array into words of `layout` (1-D uint32, two for each of int16); padding is 0."""
    packing = packing_of(layout)
    split = _split(np.ascontiguousarray(array).reshape(canonical(array.shape)), packing)
    return np.ascontiguousarray(split.transpose(_permutation(packing))).reshape(-1).view("<u4")


def unpack(words: NDArray[np.uint32], shape: Shape, layout: Layout, dtype: type[np.generic] = np.int8) -> NDArray[Any]:
    """The logical array of `shape` in `words`: the inverse of `pack`, without padding. It may be a view of `words`."""
    packing = packing_of(layout)
    n, c, h, w = canonical(shape)
    blocks = [packing.block(axis) for axis in range(4)]
    split = [s for d, b in zip((n, c, h, w), blocks, strict=True) for s in (-(-d // b), b)]
    order = _permutation(packing)
    data = np.ascontiguousarray(words, "<u4").view(dtype).reshape([split[axis] for axis in order])
    whole = data.transpose(np.argsort(order)).reshape([split[2 * a] * split[2 * a + 1] for a in range(4)])
    return whole[:n, :c, :h, :w].reshape(shape)
