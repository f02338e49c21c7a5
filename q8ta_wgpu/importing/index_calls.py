"""Importer functions of index_select, and of indexing with one index or several, constant or computed, by numpy's
rules: x[i, :, j], and x[i, :, j] = values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.importing import gather_calls, onnx_calls
from q8ta_wgpu.importing.builder import Builder, Rules
from q8ta_wgpu.ir.graph import INT32, Array
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels.move import gather
from q8ta_wgpu.kernels.move.view import flexible


def constant(b: Builder, value: Any) -> Array:
    """The array of a constant index. Refuses computed ones."""
    array = b.array(value)
    if array is None:
        raise b.refuse("its index is computed from the input: only constant ones are supported here")
    return array


def select(b: Builder, x: str, dim: int, indices: Array) -> str:
    """The elements of `x` at constant indices of a dimension. Negative indices count from its end."""
    count = b.type(x).shape[dim]
    index = b.constant(gather.from_start(indices, count).astype(np.int32), "index")
    return b.emit("index_select", (x, index), {"dim": dim, "extent": count})


def read(b: Builder, args: Mapping[str, Any]) -> str:
    """aten.index: the indexed dimensions are replaced by those of the indices, which come first if the indexed
    dimensions are not adjacent."""
    x, indices = args["self"], args["indices"]
    indexed = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(b.array(index) is None for _, index in indexed):
        return _read_computed(b, x, indexed)
    arrays = np.broadcast_arrays(*(constant(b, index) for _, index in indexed))
    x, first, extents, _ = _merged_dims(b, x, [dim for dim, _ in indexed])
    trailing = len(b.type(x).shape) - first - 1
    positive = [gather.from_start(*pair) for pair in zip(arrays, extents, strict=True)]
    y = select(b, x, first, np.ravel_multi_index(positive, extents).reshape(-1))
    if arrays[0].ndim == 1:
        return y
    # In the shape of a view, 0 keeps the dimension of the same index, -2 that at the same distance from the end.
    return b.emit("view", (y,), {"shape": (*[0] * first, *arrays[0].shape, *[-2] * trailing)})


def _read_computed(b: Builder, x: str, indexed: Sequence[tuple[int, Any]]) -> str:
    """Reads at computed indices. `indexed` has pairs (dimension, index)."""
    if (found := _read_of_each(b, x, indexed)) is not None:
        return found
    x, first, extents, _ = _merged_dims(b, x, [dim for dim, _ in indexed])
    if len(extents) == 1 and b.type(indexed[0][1]).dtype == INT32:  # a gather counts negative ones from the end
        return gather_calls.along(b, x, first, indexed[0][1], from_end=True)
    indices = [non_negative(b, index, size) for (_, index), size in zip(indexed, extents, strict=True)]
    return gather_calls.along(b, x, first, _merged(b, indices, extents))


def _read_of_each(b: Builder, x: str, indexed: Sequence[tuple[int, Any]]) -> str | None:
    """x[arange(n), places] by a gather: of each row the element at its place. None for other indices.

    It needs no indices of merged dimensions, whose constants would hold the sizes of dimensions."""
    (dim, rows), (after, places) = indexed if len(indexed) == 2 else ((0, ""), (0, ""))
    counted, shape = b.array(rows) if rows else None, b.type(x).shape
    if counted is None or after != dim + 1 or not np.array_equal(counted, np.arange(shape[dim])) or len(shape) > 4:
        return None
    if b.type(places).shape != counted.shape:
        return None
    trailing = len(shape) - after - 1
    index = b.emit("view", (places,), {"shape": (*[1] * dim, -1, 1, *[1] * trailing)})
    y = b.emit("gather", (x, index), {"dim": after, "from_end": True})
    return b.emit("view", (y,), {"shape": (*[0] * after, *[-2] * trailing)})


def _viewed(b: Builder, x: str, shape: Shape) -> str:
    old = b.type(x).shape
    return x if old == tuple(shape) else b.emit("view", (x,), {"shape": flexible(old, tuple(shape))})


def _permuted(b: Builder, x: str, dims: Sequence[int]) -> str:
    return x if list(dims) == sorted(dims) else b.emit("permute", (x,), {"dims": tuple(dims)})


def _merged_dims(b: Builder, x: str, dims: Sequence[int]) -> tuple[str, int, list[int], list[int]]:
    """`x` with some of its dimensions merged into one, which comes first if they are not adjacent. Returns it, the
    number of that dimension, the extents that were merged, and the order of all dimensions before."""
    shape, first, count = b.type(x).shape, dims[0], len(dims)
    order = list(range(len(shape)))
    if list(dims) != order[first : first + count]:
        order, first = [*dims, *(d for d in order if d not in dims)], 0
    x = _permuted(b, x, order)
    extents = [shape[dim] for dim in dims]
    if count > 1:
        x = b.emit("view", (x,), {"shape": (*[0] * first, math.prod(extents), *[-2] * (len(shape) - first - count))})
    return x, first, extents, order


def _merged(b: Builder, indices: Sequence[str], extents: Sequence[int]) -> str:
    """The index in merged dimensions of these extents, from an index in each of them that is not negative. Refuses more
    elements than a gather or an update reaches."""
    if math.prod(extents) > gather.LARGEST_INDEX:
        raise b.refuse(f"indices among {extents} elements are no float32 numbers, at most {gather.LARGEST_INDEX} are")
    merged = indices[0]
    for index, size in zip(indices[1:], extents[1:], strict=True):
        scaled = b.emit("affine", (merged,), {"factor": float(size), "term": 0.0})
        merged = b.aten("aten.add.Tensor", {"self": scaled, "other": index})
    return merged


def non_negative(b: Builder, index: Any, size: int) -> str:
    """An index without negative values, which count from the end of `size` elements. The dtype stays the same."""
    array = b.array(index)
    if array is not None:
        return b.constant(gather.from_start(array, size).astype(np.int32), "index")
    if b.type(index).dtype == INT32:
        return b.emit("remainder", (index,), {"divisor": float(size)})
    negative = b.emit("lt_scalar", (index,), {"number": 0.0})
    return b.emit("add", (index, negative), {"alpha": float(size)})


def write(b: Builder, args: Mapping[str, Any]) -> str:
    """aten.index_put. With constant indices it is an index_select of the concatenation of old elements and new ones.
    With computed ones it is an update of rows."""
    if args["accumulate"]:
        raise b.refuse("it adds up what is written at one index: write each index once, with accumulate=False")
    x, shape, values = args["self"], b.type(args["self"]).shape, args["values"]
    indexed = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if any(b.array(index) is None for _, index in indexed):
        return _write_computed(b, x, indexed, values)
    indices = [slice(None) if i is None else constant(b, i) for i in args["indices"]]
    written = np.arange(math.prod(shape)).reshape(shape)[tuple(indices)]
    if b.type(values).shape != written.shape:
        values = b.emit("expand", (values,), {"shape": written.shape})
    flat = [b.emit("view", (name,), {"shape": (-1,)}) for name in (x, values)]
    source = np.arange(math.prod(shape))
    source[written.reshape(-1)] = source.size + np.arange(written.size)
    selected = select(b, b.emit("cat", flat, {"dim": 0}), 0, source)
    return b.emit("view", (selected,), {"shape": shape})


def _write_computed(b: Builder, x: str, indexed: Sequence[tuple[int, Any]], values: str) -> str:
    """Writes at computed indices. Nothing is written where one of them lies outside of its dimension."""
    if len(indexed) == 1:
        return gather_calls.write(b, x, *indexed[0], values, from_end=True)
    merged, first, extents, order = _merged_dims(b, x, [dim for dim, _ in indexed])
    pairs = list(zip((index for _, index in indexed), extents, strict=True))
    index = _merged(b, [non_negative(b, *pair) for pair in pairs], extents)
    for found, size in pairs:
        if b.array(found) is None:
            nearest = b.aten("aten.clamp.default", {"self": found, "min": -size, "max": size - 1})
            inside = b.aten("aten.eq.Tensor", {"self": nearest, "other": found})
            none = b.constant(np.full((), -1, np.int32), "none")
            index = b.aten("aten.where.self", {"condition": inside, "self": index, "other": none})
    y = gather_calls.write(b, merged, first, index, values, from_end=False)
    y = _viewed(b, y, tuple(b.type(x).shape[dim] for dim in order))
    return _permuted(b, y, [order.index(dim) for dim in range(len(order))])


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    x, rank = args["self"], len(b.type(args["self"]).shape)
    if b.array(args["index"]) is None and rank:
        return gather_calls.along(b, x, args["dim"] % rank, args["index"])
    indices = constant(b, args["index"])
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
        return gather_calls.elements(b, x, args["dim"] % len(shape), args["index"])
    indices = constant(b, args["index"])
    coordinates = list(np.indices(indices.shape))
    coordinates[args["dim"] % len(shape)] = indices
    flat = b.emit("view", (x,), {"shape": (-1,)})
    selected = select(b, flat, 0, np.ravel_multi_index(coordinates, shape).reshape(-1))
    return b.emit("view", (selected,), {"shape": indices.shape})


def _onnx_gather(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Gather: rows along a dimension, at indices of any shape."""
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is None:
        is_int32 = b.type(index).dtype == INT32
        found = index if is_int32 else non_negative(b, index, shape[dim])
        return gather_calls.along(b, x, dim, found, from_end=is_int32)
    _check_indices(b, indices, shape[dim])
    y = select(b, x, dim, indices.reshape(-1))
    trailing = [-2] * (len(shape) - dim - 1)
    return y if indices.ndim == 1 else b.emit("view", (y,), {"shape": (*[0] * dim, *indices.shape, *trailing)})


def _onnx_gather_elements(b: Builder, args: Mapping[str, Any]) -> str:
    x, index = args["inputs"]
    shape = b.type(x).shape
    dim, indices = onnx_calls.axis(b, args, len(shape)), b.array(index)
    if indices is not None:
        _check_indices(b, indices, shape[dim])
    positive = non_negative(b, index, shape[dim])
    if indices is None:
        return gather_calls.elements(b, x, dim, positive)
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
    return str(read(b, {"self": x, "indices": indices}))


def _check_indices(b: Builder, indices: Array, count: int) -> None:
    if indices.dtype.kind not in "iu" or (indices.size and not -count <= indices.min() <= indices.max() < count):
        span = f"{indices.min()} to {indices.max()}" if indices.size else "none"
        raise b.refuse(f"its indices must be integers from {-count} to {count - 1}, found {indices.dtype}, {span}")


ATEN: Rules = {
    "index_select": {
        "aten.index_select.default": _import_select,
        "aten.roll.default": _import_roll,
        "aten.gather.default": _import_gather,
        "aten.index.Tensor": read,
        "aten._unsafe_index.Tensor": read,
        "aten.index_put.default": write,
    },
}
ONNX: Rules = {
    "index_select": {"Gather": _onnx_gather, "GatherElements": _onnx_gather_elements, "GatherND": _onnx_gather_nd},
}
