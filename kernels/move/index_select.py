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
from q8ta_wgpu.kernels.move import gather, update
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


def _constant(b: Builder, value: Any) -> Array:
    """The array of a constant index. Refuses computed ones."""
    array = b.array(value)
    if array is None:
        raise b.refuse("its index is computed from the input: only constant ones are supported here")
    return array


def select(b: Builder, x: str, dim: int, indices: Array) -> str:
    """The elements of `x` at constant indices of a dimension. Negative indices count from its end."""
    count = b.type(x).shape[dim]
    index = b.constant(np.where(indices < 0, indices + count, indices).astype(np.int32), "index")
    return b.emit("index_select", (x, index), {"dim": dim, "extent": count})


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    x, rank = args["self"], len(b.type(args["self"]).shape)
    if b.array(args["index"]) is None and rank:
        return gather.along(b, x, args["dim"] % rank, args["index"])
    indices = _constant(b, args["index"])
    return select(b, x, args["dim"] % rank, indices.reshape(-1)) if rank else str(x)


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
    return select(b, x, dim, indices) if indices[0] else x


def _import_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """torch.gather. With constant indices it is an index_select of the flattened tensor."""
    x, shape = args["self"], b.type(args["self"]).shape
    if b.array(args["index"]) is None and shape:
        return gather.elements(b, x, args["dim"] % len(shape), args["index"])
    indices = _constant(b, args["index"])
    coordinates = list(np.indices(indices.shape))
    coordinates[args["dim"] % len(shape)] = indices
    flat = b.emit("view", (x,), {"shape": (-1,)})
    selected = select(b, flat, 0, np.ravel_multi_index(coordinates, shape).reshape(-1))
    return b.emit("view", (selected,), {"shape": indices.shape})


def _import_index(b: Builder, args: Mapping[str, Any]) -> str:
    """Indexing by numpy's rules: the indexed dimensions are replaced by those of the indices, which come first if the
    indexed dimensions are not adjacent."""
    x, indices = args["self"], args["indices"]
    indexed = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(b.array(index) is None for _, index in indexed):
        return _import_computed(b, x, indexed)
    arrays = [None if i is None else _constant(b, i) for i in indices]
    dims = [d for d, array in enumerate(arrays) if array is not None]
    broadcast = np.broadcast_arrays(*(array for array in arrays if array is not None))
    first, count = dims[0], len(dims)
    if dims != list(range(first, first + count)):
        rank = len(b.type(x).shape)
        x = b.emit("permute", (x,), {"dims": (*dims, *(d for d in range(rank) if d not in dims))})
        first = 0
    shape = b.type(x).shape
    extents, trailing = shape[first : first + count], len(shape) - first - count
    # In the shape of a view, 0 keeps the dimension of the same index, -2 that at the same distance from the end.
    if count > 1:
        x = b.emit("view", (x,), {"shape": (*[0] * first, math.prod(extents), *[-2] * trailing)})
    positive = [np.where(i < 0, i + extent, i) for i, extent in zip(broadcast, extents, strict=True)]
    y = select(b, x, first, np.ravel_multi_index(positive, extents).reshape(-1))
    if broadcast[0].ndim == 1:
        return y
    return b.emit("view", (y,), {"shape": (*[0] * first, *broadcast[0].shape, *[-2] * trailing)})


def _import_computed(b: Builder, x: str, indexed: Sequence[tuple[int, Any]]) -> str:
    """Indexing with computed indices. `indexed` has pairs (dimension, index). The indexed dimensions are merged into
    one, which comes first if they are not adjacent."""
    dims, shape = [dim for dim, _ in indexed], b.type(x).shape
    first, count = dims[0], len(dims)
    if dims != list(range(first, first + count)):
        x = b.emit("permute", (x,), {"dims": (*dims, *(d for d in range(len(shape)) if d not in dims))})
        first = 0
    extents = [shape[dim] for dim in dims]
    if count == 1 and b.type(indexed[0][1]).dtype == INT32:  # a gather counts negative ones from the end
        return gather.along(b, x, first, indexed[0][1])
    if math.prod(extents) > gather.LARGEST_INDEX:
        raise b.refuse(f"indices among {extents} elements are no float32 numbers, at most {gather.LARGEST_INDEX} are")
    merged = ""
    for (_, index), size in zip(indexed, extents, strict=True):
        found = _non_negative(b, index, size)
        if merged:
            scaled = b.emit("affine", (merged,), {"factor": float(size), "term": 0.0})
            found = b.aten("aten.add.Tensor", {"self": scaled, "other": found})
        merged = found
    if count > 1:
        x = b.emit("view", (x,), {"shape": (*[0] * first, math.prod(extents), *[-2] * (len(shape) - first - count))})
    return gather.along(b, x, first, merged)


def _non_negative(b: Builder, index: Any, size: int) -> str:
    """An index without negative values, which count from the end of `size` elements. The dtype stays the same."""
    array = b.array(index)
    if array is not None:
        return b.constant(np.where(array < 0, array + size, array).astype(np.int32), "index")
    if b.type(index).dtype == INT32:
        return b.emit("remainder", (index,), {"divisor": float(size)})
    negative = b.emit("lt_scalar", (index,), {"number": 0.0})
    return b.emit("add", (index, negative), {"alpha": float(size)})


def _onnx_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Gather: rows along a dimension, at indices of any shape."""
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is None:
        is_int32 = b.type(index).dtype == INT32
        return gather.along(b, x, dim, index if is_int32 else _non_negative(b, index, shape[dim]))
    _check_indices(b, indices, shape[dim])
    y = select(b, x, dim, indices.reshape(-1))
    trailing = [-2] * (len(shape) - dim - 1)
    return y if indices.ndim == 1 else b.emit("view", (y,), {"shape": (*[0] * dim, *indices.shape, *trailing)})


def _onnx_gather_elements(b: Builder, args: Mapping[str, Any]) -> str:
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is None:
        return gather.elements(b, x, dim, _non_negative(b, index, shape[dim]))
    _check_indices(b, indices, shape[dim])
    positive = b.constant(np.where(indices < 0, indices + shape[dim], indices).astype(np.int32), "index")
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
    return str(_import_index(b, {"self": x, "indices": indices}))


def _check_indices(b: Builder, indices: Array, count: int) -> None:
    if indices.dtype.kind not in "iu" or (indices.size and not -count <= indices.min() <= indices.max() < count):
        span = f"{indices.min()} to {indices.max()}" if indices.size else "none"
        raise b.refuse(f"its indices must be integers from {-count} to {count - 1}, found {indices.dtype}, {span}")


def _import_put(b: Builder, args: Mapping[str, Any]) -> str:
    """index_put. With constant indices it is an index_select of the concatenation of old elements and new ones. With a
    computed index it is an update of rows."""
    if args["accumulate"]:
        raise b.refuse("it adds up what is written at one index: write each index once, with accumulate=False")
    x, shape = args["self"], b.type(args["self"]).shape
    indexed = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(indexed) == 1 and b.array(indexed[0][1]) is None:
        return update.write(b, x, *indexed[0], args["values"])
    if any(b.array(index) is None for _, index in indexed):
        raise b.refuse(
            "it writes at computed indices of several dimensions: write along one, x.scatter(dim, index, values)"
        )
    indices = [slice(None) if i is None else _constant(b, i) for i in args["indices"]]
    written = np.arange(math.prod(shape)).reshape(shape)[tuple(indices)]
    values = args["values"]
    if b.type(values).shape != written.shape:
        values = b.emit("expand", (values,), {"shape": written.shape})
    flat = [b.emit("view", (name,), {"shape": (-1,)}) for name in (x, values)]
    source = np.arange(math.prod(shape))
    source[written.reshape(-1)] = source.size + np.arange(written.size)
    selected = select(b, b.emit("cat", flat, {"dim": 0}), 0, source)
    return b.emit("view", (selected,), {"shape": shape})


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
            "aten.index.Tensor": _import_index,
            "aten._unsafe_index.Tensor": _import_index,
            "aten.index_put.default": _import_put,
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
