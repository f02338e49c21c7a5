"""Checks the arguments of a call, converts them to arrays by name, and packs them into words for upload; and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import InputError, counted, shown
from q8ta_wgpu.ir.bytes_as_int8 import give, store
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT32, RANGES, Array, Graph
from q8ta_wgpu.ir.layout import Layout, Shape, pack, unpack
from q8ta_wgpu.program.program import Port
from q8ta_wgpu.runtime import transfer

RESHAPES = "model.reshape(...) gives a model for another input or batch size"
"""What a message about a wrong size says, where there is a model."""

_LAYOUTS = {layout.short: layout for layout in Layout}


def arguments(item: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and named arguments of an item of run_many."""
    if isinstance(item, Mapping):
        return (), item
    return item if isinstance(item, tuple) else (item,), {}


def arrays(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], resizes: str = RESHAPES) -> dict[str, Array]:
    """An array for each input of a graph, of its shape and the dtype that users give. Raises InputError for arguments
    that do not fit; of a wrong size it says what `resizes`."""
    found = {name: _checked(graph, name, value, resizes) for name, value in named(graph, args, kwargs).items()}
    if graph.dynamic and isinstance(why := graph.dynamic.point({n: x.shape for n, x in found.items()}), str):
        raise InputError(f"the model cannot take these inputs: {why}")
    return found


def shapes_of(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Shape, ...] | None:
    """The shapes of the arguments, if another session is needed and possible for them: they differ from the graph's in
    dynamic sizes. None if they are the graph's, or the model cannot take them."""
    if not graph.dynamic:
        return None
    arguments_by_name = named(graph, args, kwargs)
    shapes = {name: _shape(name, arguments_by_name[name]) for name in graph.arguments}
    if all(shape == graph.types[name].shape for name, shape in shapes.items()):
        return None
    alike = all(_is_like(graph, name, shape) for name, shape in shapes.items())
    return tuple(shapes.values()) if alike and not isinstance(graph.dynamic.point(shapes), str) else None


def _is_like(graph: Graph, name: str, shape: Shape) -> bool:
    """Whether a shape differs from that of an input only in dynamic sizes."""
    wanted = graph.types[name].shape
    pairs = enumerate(zip(shape, wanted, strict=False))
    return len(shape) == len(wanted) and all(a == b or (name, dim) in graph.dynamic.inputs for dim, (a, b) in pairs)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    """The shape of an argument, without copying it where it has a `shape`."""
    try:
        found = getattr(value, "shape", None)
    except Exception:  # torch's nested tensors have no shape
        found = None
    return found if isinstance(found, tuple) else as_array(name, value).shape


def named(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The argument for each input of a graph, in order; one mapping stands for arguments by name. Raises InputError if
    one is missing or there are too many."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        kwargs, args = args[0], ()
    names = graph.arguments
    takes = f"the model takes {counted(len(names), 'input')} ({', '.join(names)})"
    if len(args) > len(names):
        raise InputError(f"{takes}, found {len(args)}")
    found: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InputError(f"the model has no input {shown(name)}; its inputs are {', '.join(names)}")
        if name in found:
            raise InputError(f"input {name!r} was given twice, by position and by name")
        found[name] = value
    if missing := [name for name in names if name not in found]:
        raise InputError(f"{takes}; missing: {', '.join(missing)}")
    return {name: found[name] for name in names}


def _checked(graph: Graph, name: str, value: Any, resizes: str) -> Array:
    t, wanted = graph.types[name], graph.array_dtype(name)
    array = as_array(name, value)
    floats = t.dtype == FLOAT32
    integers = t.dtype == INT32 and array.dtype.kind in "iu"
    if array.dtype != wanted and not (floats and array.dtype.kind == "f") and not integers:
        hint = ": convert it the way the model was trained" if floats and array.dtype.kind in "iub" else ""
        hint = ": write mask.astype(bool), or mask > 0.5" if wanted == np.bool_ else hint
        wanted_text = "int64 or another integer" if t.dtype == INT32 else wanted
        raise InputError(f"input {name!r} must be {wanted_text}, found {array.dtype}{hint}")
    if not array.size or not _is_like(graph, name, array.shape):
        shape = f"({graph.sizes(name)})" if name in {each for each, _ in graph.dynamic.inputs} else t.shape
        what = ("is empty, it " if array.size == 0 else "") + f"must have shape {shape}"
        raise InputError(f"input {name!r} {what}, found shape {array.shape}{_way_to(t.shape, array.shape, resizes)}")
    if integers and (bounds := graph.values[name].bounds):
        _check_bounds(name, array, bounds)
    with np.errstate(over="ignore"):  # a float64 past float32 is an infinity, and saturates
        return np.asarray(array, wanted, order="C")


def _check_bounds(name: str, array: Array, bounds: tuple[int, int]) -> None:
    """Raises InputError for integers outside the bounds of an input."""
    for found in (int(array.min()), int(array.max())):
        if not bounds[0] <= found <= bounds[1]:
            raise InputError(
                f"input {name!r} holds {found}, and must be in [{bounds[0]}, {bounds[1]}]: beyond, the network's table "
                "or cache has no row, or its numbers would pass int32"
            )


def _way_to(wanted: tuple[int, ...], found: tuple[int, ...], resizes: str = RESHAPES) -> str:
    """A hint how to get from the shape found to the expected one: move channels, add a batch, or reshape the model."""
    if 0 in found:
        return ": there is nothing to compute, so make no such call"
    one = "[None]" if len(found) + 1 == len(wanted) and wanted[0] == 1 else ""
    if len(wanted) == 4 and found[-3:] == (*wanted[2:], wanted[1]) and (one or found[0] == wanted[0]):
        return f": channels come first, write np.moveaxis(x, -1, -3){one}"
    if one and found == wanted[1:]:
        return ": the first dimension is the batch, write x[None]"
    return f"; {resizes}"


def as_array(name: str, value: Any, what: str = "input") -> Array:
    """A numpy view of an array, a torch tensor (without importing torch), a nested list, or any DLPack object. Raises
    InputError, in which it is a `what`, for anything else."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # numpy has no bfloat16
                value = value.float()
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if np.ma.is_masked(value):
            raise ValueError("some of its elements are masked. Write array.filled(value)")
        if (found := np.asarray(value)).dtype == object:
            raise ValueError("its numpy dtype is object. If it holds numbers alone, write np.array(value, dtype)")
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found  # of ml_dtypes, whose kind is V
    except Exception as error:
        raise InputError(
            f"{what} {name!r} cannot become an array of numbers, found {type(value).__name__}: {error}"
        ) from error


def fills(ports: Sequence[Port], values: Mapping[str, Array]) -> list[transfer.Fill]:
    """What writes each input port's words, in their order. Values are arrays as users give them, or as graphs store
    them (`Graph.stored`). In layouts whose words lie in the order of the array's elements, each element is written
    once, where it belongs; for other layouts the words are made here."""
    return [_fill_of(port, values[port.name]) for port in ports]


def _fill_of(port: Port, array: Array) -> transfer.Fill:
    if port.dtype not in RANGES:
        return partial(_fill_rows, array)
    if _in_order(port):
        return partial(_fill_elements, port, array)
    stored = np.empty(array.shape, DTYPES[port.dtype])
    transfer.copy(array, stored, store)
    return partial(transfer.copy, pack(stored, _LAYOUTS[port.layout]))


@functools.lru_cache(maxsize=256)
def _in_order(port: Port) -> bool:
    """Whether a port's words lie in the order of its elements, but for padding. Finding that out may copy all words."""
    words = np.empty(port.size // 4, np.uint32)
    return np.may_share_memory(unpack(words, port.shape, _LAYOUTS[port.layout], DTYPES[port.dtype]), words)


def _fill_rows(array: Array, words: NDArray[np.uint32]) -> None:
    transfer.copy(array, words.view(array.dtype).reshape(array.shape))


def _fill_elements(port: Port, array: Array, words: NDArray[np.uint32]) -> None:
    transfer.copy(array, unpack(words, port.shape, _LAYOUTS[port.layout], DTYPES[port.dtype]), store)


def words(ports: Sequence[Port], values: Mapping[str, Array]) -> list[Array]:
    """The words of input ports, in their order, as new arrays."""
    found = [np.zeros(port.size // 4, np.uint32) for port in ports]
    for fill, array in zip(fills(ports, values), found, strict=True):
        fill(array)
    return found


def from_words(port: Port, found: Array, as_bytes: bool = False, empty: Callable[..., Array] = np.empty) -> Array:
    """A new array with what the words of a port hold. `as_bytes`: of int8 plus 128, as uint8. `empty` makes the array
    from a shape and a dtype."""
    if port.dtype not in RANGES:
        return transfer.copied(found.reshape(port.shape), empty=empty)
    stored = unpack(found, port.shape, _LAYOUTS[port.layout], DTYPES[port.dtype])
    if as_bytes:
        return transfer.copied(stored.view(np.uint8), give, empty)
    return transfer.copied(stored, empty=empty)
