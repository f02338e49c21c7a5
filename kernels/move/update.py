"""update: rows written into a tensor at places computed at run time, as a decoder writes keys and values into a cache.
index_copy and index_put with one computed index are imported as it.

Lowering makes `update_rows` of one that writes a state: the rows alone are written, into the memory of the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, canonical, word_count
from q8ta_wgpu.ir.op import MOVED, Attr, Builder, Case, Op, Operand, extent
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.gather import LARGEST_INDEX
from q8ta_wgpu.kernels.move.view import flexible

ROWS_SCHEMA = {"dim": Attr("int", low=0, high=3), "extent": extent()}
_PLACE = Operand("place", real=True)
_THREADS = 64
"""Of a workgroup of rows that are written."""

_W = 3
"""The canonical axis along which the layouts of states pack four elements to a word."""


def _check(x: Shape, rows: TensorType, places: Shape, dim: int) -> None:
    if not dim < len(x) <= 4 or x[dim] > LARGEST_INDEX:
        raise GraphError(f"update of {x} along dimension {dim}: it has up to 4 dimensions, each up to {LARGEST_INDEX}")
    if rows.shape != (*x[:dim], *rows.shape[dim : dim + 1], *x[dim + 1 :]) or places != rows.shape[dim : dim + 1]:
        raise GraphError(
            f"update of {x} along dimension {dim} with rows {rows.shape} at {places} places: they must fit"
        )


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, rows, places = types
    _check(x.shape, rows, places.shape, attrs["dim"])
    if rows.dtype != x.dtype:
        raise GraphError(f"update writes rows of the same dtype, found {rows} for {x}")
    return x.shape, x.dtype


def infer_rows(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of rows that are written into a state, whose shape the result has."""
    rows, dim = types[0].shape, attrs["dim"]
    shape = (*rows[:dim], attrs["extent"], *rows[dim + 1 :])
    _check(shape, types[0], types[1].shape, dim)
    return shape, types[0].dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, rows, places = arrays
    return _written(x.copy(), rows, places, call.attrs["dim"])


def _written(x: Array, rows: Array, places: Array, dim: int) -> Array:
    """`x` with rows at whole places, of which negative ones count from the end; what is written last stays, and what
    lies elsewhere is not written."""
    for i, place in enumerate(places):
        if place == np.trunc(place) and -x.shape[dim] <= place < x.shape[dim]:
            x.swapaxes(0, dim)[int(place)] = rows.swapaxes(0, dim)[i]
    return x


def _reference_rows(call: Call, arrays: Sequence[Array]) -> Array:
    return written_rows(call, *arrays)


def written_rows(call: Call, rows: Array, places: Array) -> Array:
    """As if zeros had been there: what is not written stays what it was."""
    return _written(np.zeros(call.output.shape, rows.dtype), rows, places, call.attrs["dim"])


def _axis(call: Call) -> int:
    return int(call.attrs["dim"]) + 4 - len(call.output.shape)


def _count(call: Call) -> int:
    return call.inputs[-1].numel


def row_turns(call: Call) -> int:
    """Turns in which a thread asks whether places ascend, and whether a later row has the same place."""
    return _count(call) + -(-_count(call) // _THREADS)


def place_params(call: Call) -> Params:
    """The uniform fields of the places that rows are written at, the last operand."""
    return {"axis": np.uint32(_axis(call)), "count": np.uint32(_count(call))}


def _items(call: Call) -> int:
    """Words of the rows; where each word holds several rows, lines of them."""
    rows = call.inputs[0]
    if rows.dtype in RANGES and _axis(call) == _W:
        return int(np.prod(canonical(rows.shape)[:_W]))
    return word_count(rows.shape, Layout.PACKED_INT8_4W if rows.dtype in RANGES else Layout.TENSOR_WIDTH_PACKED)


def _rows_kernel(name: str, source: str, layouts: Any, supports: Any) -> Kernel:
    def takes(call: Call, target: Target) -> bool:
        return bool(supports(call.output.dtype in RANGES, _axis(call) == _W))

    return Kernel(
        name,
        (source,),
        (layouts, FLOAT),
        layouts,
        supports=takes,
        turns=lambda call: row_turns(call) * (_count(call) + 2 if source == "update_lanes" else 1),
        params=lambda call: {**place_params(call), "items": np.uint32(_items(call))},
        threads=lambda call, layout: (_items(call), 1, 1),
    )


def write(b: Builder, x: str, dim: int, places: str, rows: str) -> str:
    """`x` with rows written at a list of computed places of a dimension."""
    shape, found, given = b.type(x).shape, b.type(places).shape, b.type(rows).shape
    if len(found) != 1 or len(shape) > 4:
        raise b.refuse(f"it writes at places of shape {found} into {shape}: one list of places is supported")
    dim %= len(shape)
    wanted = (*shape[:dim], found[0], *shape[dim + 1 :])
    if lead := (1,) * (len(shape) - len(given)):
        rows = b.emit("view", (rows,), {"shape": flexible(given, (*lead, *given))})
    if (*lead, *given) != wanted:
        rows = b.emit("expand", (rows,), {"shape": wanted})
    return b.emit("update", (x, rows, places), {"dim": dim})


def _import_copy(b: Builder, args: Mapping[str, Any]) -> str:
    return write(b, args["self"], args["dim"], args["index"], args["source"])


OPS = (
    Op(
        name="update",
        operands=(Operand("x", dtypes=MOVED), Operand("rows", dtypes=MOVED), _PLACE),
        infer=_infer,
        reference=_reference,
        schema={"dim": Attr("int", low=0, high=3)},
        kernels=(Kernel("update", ("update", "map"), (ANY, ANY, FLOAT), ANY, params=place_params, turns=_count),),
        aten={"aten.index_copy.default": _import_copy},
        int8=Moves(),
        rows=lambda call: call.output.shape[call.attrs["dim"]],
        work=lambda call: call.output.numel * call.inputs[-1].numel,
        cases=(
            Case(((2, 3, 7, 5), (2, 3, 2, 5), (2,)), {"dim": 2}),
            Case(((1, 2, 8, 11), (1, 2, 8, 3), (3,)), {"dim": 3}),
            Case(((6, 9), (1, 9), (1,)), {"dim": 0}),
            Case(((5,), (4,), (4,)), {"dim": 0}),
        ),
    ),
    Op(
        name="update_rows",
        operands=(Operand("rows", dtypes=MOVED), _PLACE),
        infer=infer_rows,
        reference=_reference_rows,
        schema=ROWS_SCHEMA,
        kernels=(
            _rows_kernel("update_rows", "update_rows", ONLY_4W, lambda packed, lanes: packed and not lanes),
            _rows_kernel("update_rows.lanes", "update_lanes", ONLY_4W, lambda packed, lanes: packed and lanes),
            _rows_kernel("update_rows.float", "update_rows", FLOAT, lambda packed, lanes: not packed),
        ),
        int8=Moves(),
        work=lambda call: _items(call) * call.inputs[-1].numel,
    ),
)
