"""update: rows written into a tensor at indices that are computed at run time, as a decoder writes keys and values into
a cache. index_copy and index_put with one computed index are imported as it.

An update of a state is lowered to `update_rows`, which writes only the rows, into the memory of the state. `store`
copies the new value of another state there; lowering inserts it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, FLOAT, ONLY_4W, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.layout import Layout, Shape, word_count
from q8ta_wgpu.ir.op import MOVED, Attr, Case, Op, Operand, extent
from q8ta_wgpu.kernels.move.gather import LARGEST_INDEX, from_end
from q8ta_wgpu.kernels.move.strided import move, strides

_SCHEMA = {"dim": Attr("int", low=0, high=3), "from_end": Attr("bool")}
ROWS_SCHEMA = {**_SCHEMA, "extent": extent()}
_INDICES = Operand("indices", real=True)
_THREADS = 64
"""Threads of a workgroup."""

OF_WORDS = ("update_rows", "row_coord=coord_4W")
_OF_ELEMENTS = ("update_rows", "row_coord=coord_WIDTH_PACKED", "Word=Element")
"""WGSL that writes rows of int8 or int16 words, and rows of other elements."""


def _check(x: Shape, rows: TensorType, indices: Shape, dim: int) -> None:
    if not dim < len(x) <= 4 or x[dim] > LARGEST_INDEX:
        raise GraphError(f"update of {x} along dimension {dim}: it has up to 4 dimensions, each up to {LARGEST_INDEX}")
    if rows.shape != (*x[:dim], *rows.shape[dim : dim + 1], *x[dim + 1 :]) or indices != rows.shape[dim : dim + 1]:
        raise GraphError(
            f"update of {x} along dimension {dim} with rows {rows.shape} at {indices} indices: they must fit"
        )


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, rows, indices = types
    _check(x.shape, rows, indices.shape, attrs["dim"])
    if rows.dtype != x.dtype:
        raise GraphError(f"update writes rows of the same dtype, found {rows} for {x}")
    return x.shape, x.dtype


def infer_rows(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators that write rows into a state. The result has the shape of the state. `types` are
    those of rows and indices. Raises GraphError where they do not fit."""
    rows, dim = types[0].shape, attrs["dim"]
    if in_words(types[0], dim):
        raise GraphError(f"rows along dimension {dim} of {types[0]} are no whole words, and cannot be written in place")
    shape = (*rows[:dim], attrs["extent"], *rows[dim + 1 :])
    _check(shape, types[0], types[1].shape, dim)
    return shape, types[0].dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, rows, indices = arrays
    return _written(call, x.copy(), rows, indices)


def _written(call: Call, x: Array, rows: Array, indices: Array) -> Array:
    """Writes rows into `x` and returns it. Of rows with the same index the last one is written. Rows whose index is no
    integer, or outside of the dimension, are not written."""
    dim = call.attrs["dim"]
    least = -x.shape[dim] if call.attrs["from_end"] else 0
    for i, index in enumerate(indices):
        if index == np.trunc(index) and least <= index < x.shape[dim]:
            x.swapaxes(0, dim)[int(index)] = rows.swapaxes(0, dim)[i]
    return x


def _reference_rows(call: Call, arrays: Sequence[Array]) -> Array:
    return written_rows(call, *arrays)


def written_rows(call: Call, rows: Array, indices: Array) -> Array:
    """Rows written into zeros, in the shape of the state. It is the reference of operators that write into a state,
    whose other rows keep their values."""
    return _written(call, np.zeros(call.output.shape, rows.dtype), rows, indices)


def _axis(call: Call) -> int:
    return int(call.attrs["dim"]) + 4 - len(call.output.shape)


def _count(call: Call) -> int:
    return call.inputs[-1].numel


def row_turns(call: Call) -> int:
    """`Kernel.turns`: those in which a thread checks whether indices ascend, and whether a later row has the same
    index."""
    return _count(call) + -(-_count(call) // _THREADS)


def index_params(call: Call) -> Params:
    """The uniform fields of the indices, which are the last operand: their axis and number, and what is added to
    negative ones."""
    rows = call.output.shape[call.attrs["dim"]]
    return {"axis": np.uint32(_axis(call)), "count": np.uint32(_count(call)), "from_end": from_end(call, rows)}


def _items(call: Call) -> int:
    """The number of words of the rows, or of elements of float32 and int32."""
    rows = call.inputs[0]
    return word_count(rows.shape, Layout.PACKED_INT8_4W if rows.dtype in RANGES else Layout.TENSOR_WIDTH_PACKED)


def in_words(t: TensorType, dim: int) -> bool:
    """Whether words of a state have elements of several rows along a dimension, so that rows are not whole words."""
    return t.dtype in RANGES and dim == len(t.shape) - 1


def _rows_kernel(name: str, source: tuple[str, ...], layouts: LayoutSet, packed: bool) -> Kernel:
    return Kernel(
        name,
        source,
        (layouts, FLOAT),
        layouts,
        supports=lambda call, target: (call.output.dtype in RANGES) == packed,
        turns=row_turns,
        params=lambda call: {**index_params(call), "items": np.uint32(_items(call))},
        threads=lambda call, layout: (_items(call), 1, 1),
    )


OPS = (
    Op(
        name="update",
        operands=(Operand("x", dtypes=MOVED), Operand("rows", dtypes=MOVED), _INDICES),
        infer=_infer,
        reference=_reference,
        schema=_SCHEMA,
        kernels=(Kernel("update", ("update", "map"), (ANY, ANY, FLOAT), ANY, params=index_params, turns=_count),),
        int8=Moves(),
        rows=lambda call: call.output.shape[call.attrs["dim"]],
        work=lambda call: call.output.numel * call.inputs[-1].numel,
        cases=(
            Case(((2, 3, 7, 5), (2, 3, 2, 5), (2,)), {"dim": 2, "from_end": True}),
            Case(((1, 2, 8, 11), (1, 2, 8, 3), (3,)), {"dim": 3, "from_end": False}),
            Case(((6, 9), (1, 9), (1,)), {"dim": 0, "from_end": False}),
            Case(((5,), (4,), (4,)), {"dim": 0, "from_end": True}),
        ),
    ),
    Op(
        name="update_rows",
        operands=(Operand("rows", dtypes=MOVED), _INDICES),
        infer=infer_rows,
        reference=_reference_rows,
        schema=ROWS_SCHEMA,
        kernels=(
            _rows_kernel("update_rows", OF_WORDS, ONLY_4W, True),
            _rows_kernel("update_rows.float", _OF_ELEMENTS, FLOAT, False),
        ),
        int8=Moves(),
        work=lambda call: _items(call) * call.inputs[-1].numel,
    ),
)

store = move(
    "store",
    shape=lambda x, attrs: x,
    digits=lambda x, y, attrs: (list(zip(x, strides(x), strict=True)), 0),
    reference=lambda x, y, attrs: x,
    schema={},
    cases=(((2, 5, 3, 7), {}), ((13,), {}), ((2, 3, 2, 3, 5), {}), ((1, 8, 4, 16), {})),
)
