"""Extents of an attention, and the strides of its operands and result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape

STRIDES = ("query", "key", "value")
"""The attributes with the strides of an operand. Where they are empty, operands are contiguous matrices."""

Strides = tuple[int, int, int, int]
"""The index of the first element, and the steps from one batch, head and row to the next, in elements. Elements of a
row are adjacent."""


@dataclass(frozen=True)
class Sizes:
    """Extents of a call.

    Attributes:
        batch: number of batches.
        heads: heads of queries in a batch.
        queries: queries of a head.
        keys: keys of a head, as many as values.
        depth: elements of a query and of a key.
        width: elements of a value.
        shared: heads of keys and values in a batch. Each is used by heads / shared heads of queries.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    shared: int

    @property
    def operands(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of queries, keys and values."""
        own, shared = (self.batch, self.heads), (self.batch, self.shared)
        return (*own, self.queries, self.depth), (*shared, self.keys, self.depth), (*shared, self.keys, self.width)

    @property
    def scores(self) -> Shape:
        """Shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys


def sizes_of(types: Sequence[TensorType], attrs: Attrs) -> Sizes:
    """The extents of a call with these operand types and attributes. If the attribute `sizes` is empty, they follow
    from the shapes: queries (..., queries, depth), keys (..., keys, depth) and values (..., keys, width)."""
    if attrs["sizes"]:
        return Sizes(*attrs["sizes"])
    q, k, v = (t.shape for t in types[:3])
    heads = math.prod(q[-3:-2])
    return Sizes(math.prod(q[:-3]), heads, q[-2], k[-2], q[-1], v[-1], heads)


def sizes(call: Call) -> Sizes:
    """The extents of a call."""
    return sizes_of(call.inputs, call.attrs)


def _contiguous(shape: Shape) -> Strides:
    _, heads, rows, columns = shape
    return 0, heads * rows * columns, rows * columns, columns


def operand_strides(found: Sizes, attrs: Attrs) -> tuple[Strides, Strides, Strides]:
    """The strides of queries, keys and values."""
    q, k, v = (tuple(attrs[name]) or _contiguous(shape) for name, shape in zip(STRIDES, found.operands, strict=True))
    return q, k, v


def result_strides(found: Sizes, attrs: Attrs) -> Strides:
    """The strides of the result. With the attribute `sizes`, heads lie side by side in a row; without, each is a
    matrix."""
    if not attrs["sizes"]:
        return _contiguous((found.batch, found.heads, found.queries, found.width))
    row = found.heads * found.width
    return 0, found.queries * row, found.width, row
