"""Extents of an attention, and where the elements of its operands and result are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape

WALKS = ("query", "key", "value")
"""Attributes with an operand's offset and strides: of the first element, and from one batch, head and row to the next.
Elements of a row are adjacent. Where they are empty, operands are contiguous matrices."""

Walk = tuple[int, int, int, int]


@dataclass(frozen=True)
class Sizes:
    """Extents of a call: batches, heads, queries and keys of a head, elements of a key and of a value; and how many
    heads keys and values have, each for as many heads of queries."""

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
    """The extents in the attributes. Where they are empty: those of queries (..., queries, depth), keys (..., keys,
    depth) and values (..., keys, width)."""
    if attrs["sizes"]:
        return Sizes(*attrs["sizes"])
    q, k, v = (t.shape for t in types[:3])
    heads = math.prod(q[-3:-2])
    return Sizes(math.prod(q[:-3]), heads, q[-2], k[-2], q[-1], v[-1], heads)


def sizes(call: Call) -> Sizes:
    """The extents of a call."""
    return sizes_of(call.inputs, call.attrs)


def _whole(shape: Shape) -> Walk:
    _, heads, rows, columns = shape
    return 0, heads * rows * columns, rows * columns, columns


def walks(found: Sizes, attrs: Attrs) -> tuple[Walk, Walk, Walk]:
    """Offset and strides of queries, keys and values: the first element, and the step from one batch, head and row to
    the next."""
    q, k, v = (tuple(attrs[name]) or _whole(shape) for name, shape in zip(WALKS, found.operands, strict=True))
    return q, k, v


def result_walk(found: Sizes, attrs: Attrs) -> Walk:
    """Offset and strides of the result: heads side by side in a row where attributes give sizes, else matrices."""
    if not attrs["sizes"]:
        return _whole((found.batch, found.heads, found.queries, found.width))
    row = found.heads * found.width
    return 0, found.queries * row, found.width, row
