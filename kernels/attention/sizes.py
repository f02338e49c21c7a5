"""Extents of an attention, and where the elements of its operands and of its result lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import Attrs, Call, TensorType
from q8ta_wgpu.ir.layout import Shape

WALKS = ("query", "key", "value")
"""Attributes that say where an operand's elements lie: of the first one, and how far it is from one batch, head and row
to the next. Elements of a row lie side by side. Where they are empty, operands are whole matrices, row after row."""

Walk = tuple[int, int, int, int]


@dataclass(frozen=True)
class Sizes:
    """Extents of a call: batch, heads of it, queries and keys of a head, elements of a key and of a value."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int

    @property
    def operands(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of queries, keys and values."""
        lead = self.batch, self.heads
        return (*lead, self.queries, self.depth), (*lead, self.keys, self.depth), (*lead, self.keys, self.width)

    @property
    def scores(self) -> Shape:
        """Shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys


def sizes_of(types: Sequence[TensorType], attrs: Attrs) -> Sizes:
    """The extents that attributes say. Where they are empty: those of queries (..., queries, depth), keys (..., keys,
    depth) and values (..., keys, width)."""
    if attrs["sizes"]:
        return Sizes(*attrs["sizes"])
    q, k, v = (t.shape for t in types[:3])
    return Sizes(math.prod(q[:-3]), math.prod(q[-3:-2]), q[-2], k[-2], q[-1], v[-1])


def sizes(call: Call) -> Sizes:
    """The extents of a call."""
    return sizes_of(call.inputs, call.attrs)


def _whole(shape: Shape) -> Walk:
    _, heads, rows, columns = shape
    return 0, heads * rows * columns, rows * columns, columns


def walks(found: Sizes, attrs: Attrs) -> tuple[Walk, Walk, Walk]:
    """Of queries, keys and values: the first element, and the steps from one batch, head and row to the next."""
    q, k, v = (tuple(attrs[name]) or _whole(shape) for name, shape in zip(WALKS, found.operands, strict=True))
    return q, k, v


def result_walk(found: Sizes, attrs: Attrs) -> Walk:
    """The same of the result: heads side by side in a row where attributes say sizes, else matrices."""
    if not attrs["sizes"]:
        return _whole((found.batch, found.heads, found.queries, found.width))
    row = found.heads * found.width
    return 0, found.queries * row, found.width, row
