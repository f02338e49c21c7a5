"""Kernels that reduce rows by teams of threads, for softmax and the norms: kernels/lib/rows.wgsl."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.target import LOOP_TURNS, Target
from q8ta_wgpu.kernels.lib.thresholds import ITEMS, MANY_THREADS

THREADS = 256
"""Threads of a workgroup."""


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor.

    Attributes:
        rows: number of rows.
        length: elements of each row.
        inner: distance between neighbouring elements of a row, in elements.
        vectors: number of adjacent elements of one channel. Rows are read as vectors of four if 4 divides it.
    """

    rows: int
    length: int
    inner: int
    vectors: int


def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators on rows along the attribute `dim`: float32 of the same shape. Raises GraphError if
    there is no such dimension."""
    shape, dim = types[0].shape, attrs["dim"]
    if dim >= len(shape):
        raise GraphError(f"rows along dimension {dim} of {shape}: there is no such dimension")
    return shape, FLOAT32


def along(call: Call) -> Rows:
    """The rows along the attribute `dim`."""
    shape, dim = call.output.shape, call.attrs["dim"]
    inner = math.prod(shape[dim + 1 :])
    return Rows(call.output.numel // shape[dim], shape[dim], inner, vectors=shape[dim] if inner == 1 else 1)


def too_long(shape: Shape, dim: int) -> str:
    """Why rows along `dim` are too long for a kernel in which the thread of each element sums the element's row; empty
    if they are not. Such a kernel is used for rows that are not along words."""
    longest = LOOP_TURNS // 8
    if dim == len(shape) - 1 or shape[dim] <= longest:
        return ""
    return f"it is over dimension {dim} of {shape}: {longest} elements at most where it is not the last"


def are_words(call: Call, target: Target) -> bool:
    """Whether the attribute `dim` is the last dimension, so that words lie along the rows."""
    return bool(call.attrs["dim"] == len(call.output.shape) - 1)


def of_words(call: Call) -> Rows:
    """The rows along the last dimension, with words as elements."""
    width = call.output.shape[-1]
    return Rows(call.output.numel // width, -(-width // 4), inner=1, vectors=1)


RowsOf = Callable[[Call], Rows]


MOST_ITEMS = LOOP_TURNS // 4
"""The longest row, in items, that a single thread may read, since a thread's loop turns are limited."""


def lanes(rows: Rows, size: int) -> int:
    """The number of threads that share a row, a power of two. An item has `size` elements, 1 or 4."""
    items = rows.length // size
    if rows.inner > 1 and rows.rows >= MANY_THREADS // ITEMS[size] and items <= MOST_ITEMS:
        return 1  # neighbouring threads take neighbouring rows and read adjacent elements
    found = 1 << (-(-items // ITEMS[size]) - 1).bit_length()
    while rows.rows * found < MANY_THREADS and 2 * found <= items:
        found *= 2
    return min(found, THREADS)


def kernel(
    op: str,
    stems: tuple[str, ...],
    wide: tuple[str, ...],
    rows: RowsOf,
    params: Callable[[Call, int], Params],
    passes: int,
    constants: Mapping[str, int] | None = None,
) -> Kernel:
    """The kernel of an operator on rows: by vectors of four elements where possible, else by elements.

    Args:
        op: the operator's name.
        stems: its WGSL files.
        wide: operands bound as vectors.
        rows: the rows of a call.
        params: more uniform fields, by the call and the elements of an item.
        passes: how many times a thread reads its items.
        constants: more WGSL constants.
    """

    def size(call: Call) -> int:
        """Elements of an item."""
        return 1 if rows(call).vectors % 4 else 4

    def all_params(call: Call) -> Params:
        found = rows(call)
        return {
            "rows": np.uint32(found.rows),
            "items": np.uint32(found.length // size(call)),
            **params(call, size(call)),
        }

    def all_constants(call: Call) -> dict[str, int]:
        return {"THREADS": THREADS, "LANES": lanes(rows(call), size(call)), **(constants or {})}

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return rows(call).rows * lanes(rows(call), size(call)), 1, 1

    return Kernel(
        op,
        lambda call: ("by_rows", *stems, "rows", "rows_wide" if size(call) > 1 else "rows_narrow"),
        (FLOAT,),
        FLOAT,
        turns=lambda call: passes * -(-rows(call).length // size(call) // lanes(rows(call), size(call))),
        wide=lambda call: wide if size(call) > 1 else (),
        params=all_params,
        constants=all_constants,
        threads=threads,
        workgroup=(THREADS, 1, 1),
    )


def int8_kernel(
    name: str,
    stems: tuple[str, ...],
    rows: RowsOf,
    params: Callable[[Call], Params],
    passes: int,
    supports: Callable[[Call, Target], bool] = lambda call, target: True,
) -> Kernel:
    """The kernel of an operator on rows of consecutive int8 words in 4W. A row has one or more lines along the last
    dimension, each padded to whole words.

    Args:
        name: of the kernel.
        stems: its WGSL files.
        rows: the rows of a call, with words as elements.
        params: more uniform fields.
        passes: how many times a thread reads its words.
        supports: whether the rows of a call are consecutive words.
    """

    def line_params(call: Call, item: int) -> Params:
        width = call.output.shape[-1]
        return {"width": np.uint32(width), "line": np.uint32(-(-width // 4)), **params(call)}

    source = ("by_rows", *stems, "rows", "int8_rows")
    by_words = kernel(name, stems, (), rows, line_params, passes)
    return replace(by_words, source=source, inputs=(ONLY_4W,), output=ONLY_4W, supports=supports)
