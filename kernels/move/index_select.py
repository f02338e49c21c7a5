"""index_select: elements at constant indices of one dimension. roll, gather and indexing with constants are imported as
it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MOVED, Attr, Case, Op, Operand, extent, reads_same_place
from q8ta_wgpu.kernels.move.runs import axis_of


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, index, dim = types[0].shape, types[1].shape, attrs["dim"]
    if dim >= len(x) or len(index) != 1:
        raise GraphError(f"index_select of {x} along dimension {dim} needs that dimension and a list, found {index}")
    if x[dim] != attrs["extent"]:
        raise GraphError(
            f"index_select: its indices were chosen among {attrs['extent']} along dimension {dim}, found {x}"
        )
    return (*x[:dim], index[0], *x[dim + 1 :]), types[0].dtype


def _valid_index(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[1] is not None
    count = call.attrs["extent"]
    bad = arrays[1][(arrays[1] < 0) | (arrays[1] >= count)]
    return f"must be in [0, {count - 1}], found {bad[0]}" if bad.size else ""


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return np.take(arrays[0], arrays[1], call.attrs["dim"])


def _params(call: Call) -> Params:
    shape, dim = call.output.shape, call.attrs["dim"]
    trailing = len(shape) - 3
    return {
        "axis": np.uint32(max(dim - trailing + 1, 0)),
        "inner": np.uint32(math.prod(shape[dim + 1 : trailing]) if dim < trailing else 1),
        "count": np.uint32(shape[dim]),
        "extent": np.uint32(call.attrs["extent"]),
    }


OPS = (
    Op(
        name="index_select",
        operands=(
            Operand("x", dtypes=MOVED),
            Operand("index", constant=True, dtypes=(INT32,), valid=_valid_index),
        ),
        infer=_infer,
        reference=_reference,
        schema={"dim": Attr("int", low=0, high=63), "extent": extent()},
        kernels=(Kernel("index_select", ("index_select", "map"), (ANY,), ANY, params=_params),),
        int8=Moves(),
        reads=lambda call, axis, first, last: (
            None if axis_of(call.output.shape, call.attrs["dim"]) == axis else reads_same_place(call, axis, first, last)
        ),
        cases=(
            Case(((2, 11, 3, 7), (5,)), {"dim": 1, "extent": 11}),
            Case(((2, 5, 6, 7), (9,)), {"dim": 2, "extent": 6}),
            Case(((2, 5, 3, 7), (13,)), {"dim": 3, "extent": 7}),
            Case(((3, 5, 3, 4), (5,)), {"dim": 0, "extent": 3}),
            Case(((13,), (7,)), {"dim": 0, "extent": 13}),
            Case(((2, 5, 3, 2, 6), (7,)), {"dim": 1, "extent": 5}),
        ),
    ),
)
