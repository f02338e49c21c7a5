"""Reads and checks an ONNX file: its graph, its constants and the opsets that it was written for.

A file may be hostile: only its own folder is read, and no more bytes than a constant's shape and dtype need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, numpy_helper

from q8ta_wgpu.errors import InputError, UnsupportedError, shown
from q8ta_wgpu.ir.graph import Array

OLDEST = 7
"""The oldest opset that is read. Since then operands broadcast as they do today."""

MOST_NODES = 1 << 18
"""Limit of nodes in a file, including those of functions as often as they are called."""


@dataclass(frozen=True)
class Program:
    """A file's main graph.

    Attributes:
        graph: nodes in order.
        constants: arrays by name.
        opsets: version by domain, '' for ONNX's own.
        folders: where external data may lie; none of a file that was given as bytes.
    """

    graph: onnx.GraphProto
    constants: Mapping[str, Array]
    opsets: Mapping[str, int]
    folders: tuple[Path, ...] = ()


def parsed(source: str | os.PathLike[str] | bytes | bytearray) -> tuple[onnx.ModelProto, tuple[Path, ...]]:
    """A file, or its bytes, as it is stored, and the folders where its external data may lie. Raises as `read` does."""
    folders: tuple[Path, ...] = ()
    if not isinstance(source, (bytes, bytearray)):
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(f"from_onnx takes the path of an .onnx file or its bytes, found {type(source).__name__}")
        folders = (Path(source).parent, Path(source).resolve().parent)  # of a link also the folder that it leads to
        try:
            source = Path(source).read_bytes()
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {shown(str(source))}: {error}") from error
    try:
        return onnx.ModelProto.FromString(bytes(source)), folders
    except Exception as error:  # protobuf's DecodeError, whose package is no dependency of its own
        raise UnsupportedError(f"this is no ONNX file, or it is nested too deep: {error}") from error


def read(source: str | os.PathLike[str] | bytes | bytearray) -> Program:
    """Reads a file, or its bytes.

    Raises:
        InputError: it is neither a path nor bytes, or there is no such file.
        UnsupportedError: it is no ONNX file, or one that cannot be imported.
    """
    model, folders = parsed(source)
    opsets = _opsets(model)
    if model.functions:
        model = _inlined(model)
    graph = model.graph
    if not graph.node and not graph.output:
        raise UnsupportedError("this is no ONNX file: it has neither nodes nor outputs")
    if len(graph.node) > MOST_NODES:
        raise UnsupportedError(f"the file has {len(graph.node)} nodes, more than {MOST_NODES}")
    return Program(graph, constants_of(graph, folders), opsets, folders)


def constants_of(graph: onnx.GraphProto, folders: tuple[Path, ...]) -> dict[str, Array]:
    """The constants of a graph, or of the branch of a node. Raises UnsupportedError if one cannot be read."""
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise UnsupportedError(f"initializer {shown(name)} is sparse: store it as a dense tensor")
    return {tensor.name: array_of(tensor, folders) for tensor in graph.initializer}


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    found = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= found.get("", newest) <= newest:
        raise UnsupportedError(
            f"the file is written for opset {found['']}, {OLDEST} to {newest} are read: convert it by "
            f"onnx.version_converter.convert_version(model, {max(OLDEST, min(found[''], newest))})"
        )
    return {"": newest, **found}


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its own functions inlined. Raises UnsupportedError if they are recursive, or would make too many
    nodes."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Any, open_: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in open_ or len(open_) > 64:
                raise UnsupportedError(f"function {shown(node.op_type)} calls itself")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, (*open_, key))
            total += sizes.get(key, 1)
        return total

    if (count := size(model.graph.node, ())) > MOST_NODES:
        raise UnsupportedError(f"with its functions written out the file has {count} nodes, more than {MOST_NODES}")
    try:
        inlined: onnx.ModelProto = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # of the library's own code, which names no classes
        raise UnsupportedError(f"the functions of the file cannot be written out: {error}") from error
    return inlined


def array_of(tensor: TensorProto, folders: tuple[Path, ...]) -> Array:
    """A tensor's array. Raises UnsupportedError if its data does not match its shape and dtype."""
    name = shown(tensor.name)
    shape = tuple(tensor.dims)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError) as error:
        raise UnsupportedError(f"initializer {name} has the unknown data type {tensor.data_type}") from error
    if any(d < 0 for d in shape):
        raise UnsupportedError(f"initializer {name} has the shape {shape}, which has a negative dimension")
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = _loaded(tensor, folders, dtype)
    stored = len(tensor.raw_data) or sum(len(field) for _, field in tensor.ListFields() if _is_data(field))
    if int(np.prod(shape, dtype=object)) > 4 * stored:
        raise UnsupportedError(
            f"initializer {name} has the shape {shape}, but data of {stored} elements or bytes: the file is damaged"
        )
    try:
        return np.asarray(numpy_helper.to_array(tensor), order="C")
    except Exception as error:  # whatever the library meets in data that is not what it should be
        raise UnsupportedError(f"initializer {name} cannot be read: {error}") from error


def _is_data(field: Any) -> bool:
    return hasattr(field, "__len__") and not isinstance(field, str)


def _inside(folders: tuple[Path, ...], location: str) -> Path | None:
    """A plain file, named from the first of the folders, that lies in one of them or below it, links followed; None
    where there is none of this name."""
    try:
        path = (folders[0] / location).resolve()
        inside = any(path.is_relative_to(folder.resolve()) for folder in folders)
        found = bool(location) and inside and path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, links in a circle
        return None
    return path if found else None


def _loaded(tensor: TensorProto, folders: tuple[Path, ...], dtype: np.dtype[Any]) -> TensorProto:
    """A tensor with its external data, which lies in the folder of the file."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    name, location = shown(tensor.name), where.get("location", "")
    if not folders:
        raise UnsupportedError(f"initializer {name} lies in the file {shown(location)}: give the path, not the bytes")
    path = _inside(folders, location)
    if path is None:
        raise UnsupportedError(f"initializer {name} lies in {shown(location)}, which is no file in {folders[0]}")
    size = path.stat().st_size
    count = int(np.prod(tensor.dims, dtype=object))
    bits = 4 if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4) else 8 * dtype.itemsize
    expected = (count * bits + 7) // 8
    try:
        offset, length = int(where.get("offset", 0)), int(where.get("length", expected))
    except ValueError as error:
        raise UnsupportedError(
            f"initializer {name} has no numbers as offset and length: {shown(str(where))}"
        ) from error
    if offset < 0 or length != expected or offset + length > size:
        raise UnsupportedError(
            f"initializer {name} takes {expected} bytes, found {length} from {offset} on in a file of {size}"
        )
    loaded = TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name)
    with path.open("rb") as file:
        file.seek(offset)
        loaded.raw_data = file.read(length)
    return loaded
