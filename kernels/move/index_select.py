"""index_select: elements at constant indices of one dimension. roll, gather and indexing with constants are imported as
it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MOVED, Attr, Builder, Case, Op, Operand, extent, reads_same_place
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib import onnx_calls
from q8ta_wgpu.kernels.move import gather, indexing
from q8ta_wgpu.kernels.move.runs import axis_of
from q8ta_wgpu.kernels.move.strided import word_kernels


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


def _keeps_words(call: Call, target: Target, axis: int) -> bool:
    return axis_of(call.output.shape, call.attrs["dim"]) != axis


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    x, rank = args["self"], len(b.type(args["self"]).shape)
    if b.array(args["index"]) is None and rank:
        return gather.along(b, x, args["dim"] % rank, args["index"])
    indices = indexing.constant(b, args["index"])
    return indexing.select(b, x, args["dim"] % rank, indices.reshape(-1)) if rank else str(x)


def _import_roll(b: Builder, args: Mapping[str, Any]) -> str:
    x, dims = args["self"], args["dims"]
    shape = b.type(x).shape
    if not dims:
        flat = b.emit("view", (x,), {"shape": (-1,)})
        return b.emit("view", (_rolled(b, flat, 0, args["shifts"][0]),), {"shape": shape})
    for shift, dim in zip(args["shifts"], dims, strict=True):
        x = _rolled(b, x, dim % len(shape), shift)
    return str(x)


def _rolled(b: Builder, x: str, dim: int, shift: int) -> str:
    indices = np.roll(np.arange(b.type(x).shape[dim]), shift)
    return indexing.select(b, x, dim, indices) if indices[0] else x


def _import_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """torch.gather. With constant indices it is an index_select of the flattened tensor."""
    x, shape = args["self"], b.type(args["self"]).shape
    if b.array(args["index"]) is None and shape:
        return gather.elements(b, x, args["dim"] % len(shape), args["index"])
    indices = indexing.constant(b, args["index"])
    coordinates = list(np.indices(indices.shape))
    coordinates[args["dim"] % len(shape)] = indices
    flat = b.emit("view", (x,), {"shape": (-1,)})
    selected = indexing.select(b, flat, 0, np.ravel_multi_index(coordinates, shape).reshape(-1))
    return b.emit("view", (selected,), {"shape": indices.shape})


def _onnx_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Gather: rows along a dimension, at indices of any shape."""
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is None:
        is_int32 = b.type(index).dtype == INT32
        found = index if is_int32 else indexing.non_negative(b, index, shape[dim])
        return gather.along(b, x, dim, found, from_end=is_int32)
    _check_indices(b, indices, shape[dim])
    y = indexing.select(b, x, dim, indices.reshape(-1))
    trailing = [-2] * (len(shape) - dim - 1)
    return y if indices.ndim == 1 else b.emit("view", (y,), {"shape": (*[0] * dim, *indices.shape, *trailing)})


def _onnx_gather_elements(b: Builder, args: Mapping[str, Any]) -> str:
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is not None:
        _check_indices(b, indices, shape[dim])
    positive = indexing.non_negative(b, index, shape[dim])
    if indices is None:
        return gather.elements(b, x, dim, positive)
    return _import_gather(b, {"self": x, "dim": dim, "index": positive})


def _onnx_gather_nd(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's GatherND with constant indices. The last dimension of the indices has an index for each of the leading
    dimensions of x."""
    x, batch = args["inputs"][0], int(args["batch_dims"])
    tuples = onnx_calls.constant(b, args["inputs"][1], "indices")
    assert tuples is not None
    if batch:
        raise b.refuse(f"batch_dims must be 0, found {batch}")
    indices = [b.constant(np.ascontiguousarray(i).astype(np.int32), "index") for i in np.moveaxis(tuples, -1, 0)]
    return str(indexing.read(b, {"self": x, "indices": indices}))


def _check_indices(b: Builder, indices: Array, count: int) -> None:
    if indices.dtype.kind not in "iu" or (indices.size and not -count <= indices.min() <= indices.max() < count):
        span = f"{indices.min()} to {indices.max()}" if indices.size else "none"
        raise b.refuse(f"its indices must be integers from {-count} to {count - 1}, found {indices.dtype}, {span}")


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
        kernels=(
            *word_kernels("index_select.words", ("index_select", "words"), _keeps_words, _params),
            Kernel("index_select", ("index_select", "map"), (ANY,), ANY, params=_params),
        ),
        aten={
            "aten.index_select.default": _import_select,
            "aten.roll.default": _import_roll,
            "aten.gather.default": _import_gather,
            "aten.index.Tensor": indexing.read,
            "aten._unsafe_index.Tensor": indexing.read,
            "aten.index_put.default": indexing.write,
        },
        onnx={"Gather": _onnx_gather, "GatherElements": _onnx_gather_elements, "GatherND": _onnx_gather_nd},
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
