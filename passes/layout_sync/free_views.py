"""Finds views, permutes and slices that are free in certain layouts: their result is the operand's buffer, unchanged.

Digits are mixed-radix digits of an element's row-major index: its address is the sum of digit times stride. Two tensors
have the same values at the same addresses if their digits, in the same order and merged where possible, are equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from q8ta_wgpu.ir.graph import INT16X4, TensorType
from q8ta_wgpu.ir.layout import PART_ALIGNMENT, Layout, Shape, canonical, packing_of, word_grid

Digit = tuple[int, tuple[int, ...]]
"""An extent, and the byte stride of an index below it; or the two strides of index // 4 and index % 4."""


def _axis_strides(shape: Shape, layout: Layout) -> list[tuple[int, ...]]:
    """Byte strides of each canonical axis: one stride, or (between blocks of four, within a block)."""
    extents = canonical(shape)
    if not layout.is_int8:
        return [(4 * math.prod(extents[axis + 1 :]),) for axis in range(4)]
    packing, words = packing_of(layout), word_grid(shape, layout)
    blocks: dict[int, int] = {}
    lanes: dict[int, int] = {packing.packed: 1}
    stride = 4
    for letter in reversed(packing.order):
        axis = "NCHW".index(letter.upper())
        if letter.islower():
            lanes[axis] = stride
            stride *= 4
        else:
            blocks[axis] = stride
            stride *= words[axis] // 4 if axis == packing.outer else words[axis]
    return [(blocks[axis], lanes[axis]) if axis in lanes else (blocks[axis],) for axis in range(4)]


def _digit(extent: int, strides: tuple[int, ...]) -> list[Digit]:
    """The digits of one axis, the slowest first; none for an axis of one element."""
    if extent == 1:
        return []
    if len(strides) == 1 or extent <= 4:
        return [(extent, strides[-1:])]
    block, lane = strides
    if block == 4 * lane:
        return [(extent, (lane,))]
    # A last block that is not full cannot be expressed as two digits.
    return [(extent // 4, (block,)), (4, (lane,))] if extent % 4 == 0 else [(extent, strides)]


def _merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """Digits with neighbours merged where the slow stride is the fast digit's extent times its stride."""
    merged: list[Digit] = []
    for extent, strides in digits:
        slow = merged[-1] if merged else None
        if slow and len(slow[1]) == len(strides) == 1 and slow[1][0] == extent * strides[0]:
            merged[-1] = (slow[0] * extent, strides)
        else:
            merged.append((extent, strides))
    return tuple(merged)


@functools.lru_cache(maxsize=1 << 14)
def address_order(shape: Shape, layout: Layout, dims: tuple[int, ...] | None = None) -> tuple[Digit, ...] | None:
    """The digits of a tensor's addresses, in row-major order of its elements or of their permutation by `dims`.

    Tensors with equal digits have equal buffers. The converse does not hold, since a partly filled block is not split.
    None if `dims` moves a dimension that canonical shapes fold into the batch.
    """
    extents, strides = canonical(shape), _axis_strides(shape, layout)
    lead = 4 - len(shape)
    folded = 1 - lead if lead < 0 else 0
    dims = dims or tuple(range(len(shape)))
    if dims[:folded] != tuple(range(folded)):
        return None
    axes = [*range(lead if lead > 0 else min(folded, 1)), *(d + lead for d in dims[folded:])]
    return _merged([digit for axis in axes for digit in _digit(extents[axis], strides[axis])])


def part_offset(x: TensorType, y: TensorType, dim: int, start: int, layout: Layout) -> int | None:
    """The byte offset in the buffer of `x` at which `y`, its elements from `start` on along a dimension, begins. None
    where `y` is not contiguous there in `layout`, or the offset is not a multiple of PART_ALIGNMENT."""
    if len(x.shape) > 4:
        return None
    strides, axis = _axis_strides(x.shape, layout), 4 - len(x.shape) + dim
    own = zip(canonical(y.shape), strides, _axis_strides(y.shape, layout), strict=True)
    block = 4 if len(strides[axis]) > 1 else 1
    if start % block or any(_digit(extent, a) != _digit(extent, b) for extent, a, b in own):
        return None
    offset = start // block * strides[axis][0] * (2 if x.dtype == INT16X4 else 1)
    fits = offset % PART_ALIGNMENT == 0 and offset + y.stored_bytes(layout) <= x.stored_bytes(layout)
    return offset if fits else None
