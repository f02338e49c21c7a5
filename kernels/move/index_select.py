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
        "places": np.uint32(shape[dim]),
        "extent": np.uint32(call.attrs["extent"]),
    }


def _keeps_words(call: Call, target: Target, axis: int) -> bool:
    return axis_of(call.output.shape, call.attrs["dim"]) != axis


def _places(b: Builder, value: Any) -> Array:
    """The array of a constant index."""
    array = b.array(value)
    if array is None:
        raise b.refuse("its index is computed from the input: only constant ones are supported here")
    return array


def select(b: Builder, x: str, dim: int, places: Array) -> str:
    """The elements of `x` at indices `places` of a dimension; negative ones count from its end."""
    count = b.type(x).shape[dim]
    index = b.constant(np.where(places < 0, places + count, places).astype(np.int32), "index")
    return b.emit("index_select", (x, index), {"dim": dim, "extent": count})


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    x, rank = args["self"], len(b.type(args["self"]).shape)
    if b.array(args["index"]) is None and rank:
        return gather.along(b, x, args["dim"] % rank, args["index"])
    places = _places(b, args["index"])
    return select(b, x, args["dim"] % rank, places.reshape(-1)) if rank else str(x)


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
    places = np.roll(np.arange(b.type(x).shape[dim]), shift)
    return select(b, x, dim, places) if places[0] else x


def _import_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """A gather with constant indices: indices into the flattened tensor."""
    x, shape = args["self"], b.type(args["self"]).shape
    if b.array(args["index"]) is None and shape:
        return gather.elements(b, x, args["dim"] % len(shape), args["index"])
    places = _places(b, args["index"])
    where = list(np.indices(places.shape))
    where[args["dim"] % len(shape)] = places
    flat = b.emit("view", (x,), {"shape": (-1,)})
    chosen = select(b, flat, 0, np.ravel_multi_index(where, shape).reshape(-1))
    return b.emit("view", (chosen,), {"shape": places.shape})


def _import_index(b: Builder, args: Mapping[str, Any]) -> str:
    """Indexing by numpy's rules: the indexed dimensions become those of the indices, in front unless they were
    adjacent."""
    x, indices = args["self"], args["indices"]
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(b.array(index) is None for _, index in given):
        return _import_computed(b, x, given)
    places = [None if i is None else _places(b, i) for i in indices]
    dims = [d for d, found in enumerate(places) if found is not None]
    chosen = np.broadcast_arrays(*(found for found in places if found is not None))
    first, count = dims[0], len(dims)
    if dims != list(range(first, first + count)):
        rank = len(b.type(x).shape)
        x = b.emit("permute", (x,), {"dims": (*dims, *(d for d in range(rank) if d not in dims))})
        first = 0
    shape = b.type(x).shape
    extents, trailing = shape[first : first + count], len(shape) - first - count
    # In a view's shape, 0 keeps the dimension of that index, -2 the one as far from the end.
    if count > 1:
        x = b.emit("view", (x,), {"shape": (*[0] * first, math.prod(extents), *[-2] * trailing)})
    positive = [np.where(c < 0, c + extent, c) for c, extent in zip(chosen, extents, strict=True)]
    y = select(b, x, first, np.ravel_multi_index(positive, extents).reshape(-1))
    if chosen[0].ndim == 1:
        return y
    return b.emit("view", (y,), {"shape": (*[0] * first, *chosen[0].shape, *[-2] * trailing)})


def _import_computed(b: Builder, x: str, given: Sequence[tuple[int, Any]]) -> str:
    """Indexing with computed indices: the indexed dimensions are merged, in front unless they are adjacent."""
    dims, shape = [dim for dim, _ in given], b.type(x).shape
    first, count = dims[0], len(dims)
    if dims != list(range(first, first + count)):
        x = b.emit("permute", (x,), {"dims": (*dims, *(d for d in range(len(shape)) if d not in dims))})
        first = 0
    extents = [shape[dim] for dim in dims]
    if count == 1 and b.type(given[0][1]).dtype == INT32:  # a gather counts negative ones from the end
        return gather.along(b, x, first, given[0][1])
    if math.prod(extents) > gather.LARGEST_INDEX:
        raise b.refuse(f"indices among {extents} elements are no float32 numbers, at most {gather.LARGEST_INDEX} are")
    place = ""
    for (_, index), size in zip(given, extents, strict=True):
        found = _counted(b, index, size)
        if place:
            whole = b.emit("affine", (place,), {"factor": float(size), "term": 0.0})
            found = b.aten("aten.add.Tensor", {"self": whole, "other": found})
        place = found
    if count > 1:
        x = b.emit("view", (x,), {"shape": (*[0] * first, math.prod(extents), *[-2] * (len(shape) - first - count))})
    return gather.along(b, x, first, place)


def _counted(b: Builder, index: Any, size: int) -> str:
    """An index whose negative values count from the end, as non-negative numbers, of int32 where it is."""
    array = b.array(index)
    if array is not None:
        return b.constant(np.where(array < 0, array + size, array).astype(np.int32), "index")
    if b.type(index).dtype == INT32:
        return b.emit("remainder", (index,), {"divisor": float(size)})
    negative = b.emit("lt_scalar", (index,), {"number": 0.0})
    return b.emit("add", (index, negative), {"alpha": float(size)})


def _onnx_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """Gather: rows of a dimension, at indices of any shape."""
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, places = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if places is None:
        whole = b.type(index).dtype == INT32
        return gather.along(b, x, dim, index if whole else _counted(b, index, shape[dim]))
    _check_places(b, places, shape[dim])
    y = select(b, x, dim, places.reshape(-1))
    behind = [-2] * (len(shape) - dim - 1)
    return y if places.ndim == 1 else b.emit("view", (y,), {"shape": (*[0] * dim, *places.shape, *behind)})


def _onnx_gather_elements(b: Builder, args: Mapping[str, Any]) -> str:
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, places = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if places is None:
        return gather.elements(b, x, dim, _counted(b, index, shape[dim]))
    _check_places(b, places, shape[dim])
    positive = b.constant(np.where(places < 0, places + shape[dim], places).astype(np.int32), "index")
    return _import_gather(b, {"self": x, "dim": dim, "index": positive})


def _onnx_gather_nd(b: Builder, args: Mapping[str, Any]) -> str:
    """GatherND with constant indices: places of the dimensions that they name, merged into one."""
    x, batch = args["inputs"][0], int(args["batch_dims"])
    places = onnx_calls.constant(b, args["inputs"][1], "indices")
    assert places is not None
    if batch:
        raise b.refuse(f"batch_dims must be 0, found {batch}")
    indices = [b.constant(np.ascontiguousarray(part).astype(np.int32), "index") for part in np.moveaxis(places, -1, 0)]
    return str(_import_index(b, {"self": x, "indices": indices}))


def _check_places(b: Builder, places: Array, count: int) -> None:
    if places.dtype.kind not in "iu" or (places.size and not -count <= places.min() <= places.max() < count):
        span = f"{places.min()} to {places.max()}" if places.size else "none"
        raise b.refuse(f"its indices must be integers from {-count} to {count - 1}, found {places.dtype}, {span}")


def _import_put(b: Builder, args: Mapping[str, Any]) -> str:
    """Values written at constant indices: old and new elements are joined, and each position takes one of them. Rows
    are written at computed ones."""
    if args["accumulate"]:
        raise b.refuse("it adds up what is written at one index: write each index once, with accumulate=False")
    x, shape = args["self"], b.type(args["self"]).shape
    given = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(given) == 1 and b.array(given[0][1]) is None:
        return update.write(b, x, *given[0], args["values"])
    if any(b.array(index) is None for _, index in given):
        raise b.refuse(
            "it writes at computed places of several dimensions: write along one of them, x.scatter(dim, index, values)"
        )
    whole = [slice(None) if i is None else _places(b, i) for i in args["indices"]]
    written = np.arange(math.prod(shape)).reshape(shape)[tuple(whole)]
    values = args["values"]
    if b.type(values).shape != written.shape:
        values = b.emit("expand", (values,), {"shape": written.shape})
    flat = [b.emit("view", (name,), {"shape": (-1,)}) for name in (x, values)]
    places = np.arange(math.prod(shape))
    places[written.reshape(-1)] = places.size + np.arange(written.size)
    chosen = select(b, b.emit("cat", flat, {"dim": 0}), 0, places)
    return b.emit("view", (chosen,), {"shape": shape})


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
