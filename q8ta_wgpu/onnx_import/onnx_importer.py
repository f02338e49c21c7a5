"""Imports an ONNX program: its inputs and constants, its nodes (onnx_walk.py), and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.errors import InputError, UnsupportedError, shown
from q8ta_wgpu.ir.graph import BOOL, INT8X4, INT32, UINT8, Array, TensorType
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.onnx_import import onnx_nodes
from q8ta_wgpu.onnx_import.onnx_builder import STORED
from q8ta_wgpu.onnx_import.onnx_nodes import RESULTS
from q8ta_wgpu.onnx_import.onnx_walk import Scope, Walk
from q8ta_wgpu.onnx_import.read import Program
from q8ta_wgpu.quantization.float_program import FloatProgram


@dataclass(frozen=True)
class Imported:
    """A program at some sizes.

    Attributes:
        program: its graph, and which calls of the file its nodes belong to.
        structure: the structure of its outputs.
        open: the name of each size that the file leaves open, by input and dimension.
    """

    program: FloatProgram
    structure: Structure
    open: Mapping[tuple[str, int], str]


def import_program(program: Program, sizes: Mapping[str, int], constants: Mapping[str, Array]) -> Imported:
    """Imports a program at these sizes of the dimensions that it leaves open, with these arrays as some of its inputs.

    Raises:
        InputError: a constant does not fit the input of its name, or there is none.
        UnsupportedError: names every node that cannot be imported, equal causes on one line; or an input.
    """
    importer = _Importer(program, sizes, constants)
    found, structure = importer.run()
    return Imported(found, structure, importer.open)


def _constant(port: onnx.ValueInfoProto, value: Array) -> Array:
    """An array that takes the place of an input, in the input's dtype. Raises InputError if it does not fit."""
    name, tensor = shown(port.name), port.type.tensor_type
    if port.type.WhichOneof("value") != "tensor_type" or tensor.elem_type not in (TensorProto.FLOAT, *RESULTS):
        raise InputError(f"input {name} cannot be a constant: it is no tensor of float32, integers or bools")
    dims = [dim.dim_value for dim in tensor.shape.dim] if tensor.HasField("shape") else list(value.shape)
    if value.size == 1 and all(n in (0, 1) for n in dims):
        value = value.reshape([1] * len(dims))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if value.dtype.kind not in "fiub":
        raise InputError(f"the constant for input {name} must be {dtype}, found {shown(str(value))}")
    with np.errstate(all="ignore"):
        found = value.astype(dtype)
    if value.ndim != len(dims) or any(n and n != m for n, m in zip(dims, value.shape, strict=True)):
        raise InputError(f"the constant for input {name} must have the shape {tuple(dims)}, found {value.shape}")
    if dtype.kind != "f" and not np.array_equal(found, value):
        raise InputError(f"the constant for input {name} must be {dtype}, found {shown(str(value))}")
    return found


class _Importer(Walk):
    """Imports inputs and outputs around the walk over nodes.

    Attributes:
        open: the names of sizes that the file leaves open, by input and dimension.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int], constants: Mapping[str, Array]) -> None:
        super().__init__(program)
        self.sizes, self.given = sizes, constants
        self.open: dict[tuple[str, int], str] = {}

    def run(self) -> tuple[FloatProgram, Structure]:
        scope, graph = Scope(), self.program.graph
        for name, array in self.program.constants.items():
            self.define(scope, name, self.raw_constant(array, name), onnx_nodes.dtype_of(array))
        ports = [port for port in graph.input if port.name not in self.program.constants]
        if unknown := sorted(self.given.keys() - {port.name for port in ports}):
            raise InputError(
                f"constants name {shown(unknown[0])}, which is no input of the file: it has "
                f"{', '.join(shown(port.name) for port in ports)}"
            )
        for port in ports:
            if port.name in self.given:
                array = _constant(port, self.given[port.name])
                self.define(scope, port.name, self.raw_constant(array, port.name), onnx_nodes.dtype_of(array))
        ports = [port for port in ports if port.name not in self.given]
        self._check_sizes(ports)
        for port in ports:
            self._input(scope, port)
        self.note_rest()
        self.walk(graph.node, scope)
        self.check(scope)
        structure = self._outputs(scope, [port.name for port in graph.output])
        self.note_rest()
        return self.found, structure

    def _input(self, scope: Scope, port: onnx.ValueInfoProto) -> None:
        kind = port.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(f"input {shown(port.name)} must be a tensor, found {kind}")
        dtype, dims = port.type.tensor_type.elem_type, port.type.tensor_type.shape.dim
        if not port.type.tensor_type.HasField("shape"):
            raise UnsupportedError(f"input {shown(port.name)} has no shape: store one in the file")
        shape = tuple(self._size(port.name, i, dim) for i, dim in enumerate(dims))
        if any(n < 1 for n in shape):
            raise UnsupportedError(f"input {shown(port.name)} has the shape {shape}: sizes are at least 1")
        graph, name = self.graph, port.name
        match dtype:
            case TensorProto.FLOAT:
                graph.types[name] = TensorType(shape)
            case TensorProto.BOOL:
                graph.values.set(name, given="bool")
                graph.types[name] = TensorType(shape, INT8X4, BOOL)
            case TensorProto.UINT8:
                graph.values.set(name, given="uint8")
                graph.types[name] = TensorType(shape, INT8X4, UINT8)
            case TensorProto.INT8 | TensorProto.INT16:
                stored = STORED[dtype][0]
                graph.types[name] = TensorType(shape, stored, self.read_as(name, dtype))
            case TensorProto.INT32 | TensorProto.INT64:
                graph.types[name] = TensorType(shape, INT32)
                graph.values.set(name, bounds=onnx_nodes.bounds_of(self.program, name))
            case _:
                found = onnx_nodes.dtype_name(dtype)
                raise UnsupportedError(
                    f"input {shown(name)} must be float32, bool, int64, int32, int16, int8 or uint8, found {found}: "
                    "convert it before the network"
                )
        graph.inputs.append(name)
        if dtype in STORED:
            self.made[name] = dtype
        if dtype == TensorProto.FLOAT:
            self.found.observable.add(name)
        self.hint = f"{name}.real"
        value = self.emit("dequantize", (name,)) if dtype == TensorProto.BOOL else name
        self.define(scope, name, value, dtype)

    def _size(self, name: str, index: int, dim: onnx.TensorShapeProto.Dimension) -> int:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
            return int(dim.dim_value)
        self.open[name, index] = key = self._key(name, index, dim)
        return self.sizes[key]

    def _key(self, name: str, index: int, dim: onnx.TensorShapeProto.Dimension) -> str:
        """What `sizes` calls a dimension: its place if that is given, as of two that the file gives one name, else its
        name."""
        place = f"{name}.{index}"
        return place if place in self.sizes else str(dim.dim_param) or place

    def _check_sizes(self, ports: Sequence[onnx.ValueInfoProto]) -> None:
        """Raises UnsupportedError if sizes are missing; names all of them."""
        missing: dict[str, list[str]] = {}
        for port in ports:
            for index, dim in enumerate(port.type.tensor_type.shape.dim):
                known = dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0
                key = "" if known else self._key(port.name, index, dim)
                if key and key not in self.sizes:
                    missing.setdefault(key, []).append(f"dimension {index} of input {shown(port.name)}")
        if not missing:
            return
        places = "; ".join(f"{shown(key)} is {' and '.join(at)}" for key, at in missing.items())
        one, least = (", ".join(f"{shown(key)}: {size}" for key in missing) for size in ("1", "(1, 64)"))
        twice = next(((key, at) for key, at in missing.items() if len(at) > 1), None)
        place = twice and f"{twice[1][0].split()[-1][1:-1]}.{twice[1][0].split()[1]}"
        alone = f". One of those of one name alone is called by its place, {shown(place)}" if place else ""
        flags = " ".join(f"--size {shown(f'{key}=1')}" for key in missing)
        raise UnsupportedError(
            f"the file leaves sizes open: {places}. Give each a size, sizes={{{one}}} or {flags}, or the least and the "
            f"largest, sizes={{{least}}}{alone}"
        )

    def _outputs(self, scope: Scope, names: Sequence[str]) -> Structure:
        if not names:
            raise UnsupportedError("the file has no outputs, so there is nothing to compute")
        dtypes: list[str | None] = []
        for name in names:
            value = scope.values.get(name)
            if value is None:
                raise UnsupportedError(f"output {shown(name)} is written by no node of the file")
            dtype, q = scope.dtypes[name], self.quantization(value)
            stored = dtype in (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8)
            direct = q is not None and stored and value not in self.graph.inputs
            found = value if direct else self.result(self.numbers(value))
            found = self.emit("to_float32", (found,)) if self.type(found).dtype == INT32 else found
            if found in self.graph.inputs or found in self.graph.outputs:
                found = self.emit("view", (found,), {"shape": self.type(found).shape})
            self.graph.outputs.append(found)
            dtypes.append(None if direct and dtype != TensorProto.UINT8 else RESULTS.get(dtype))
        if self.sized:
            why = f"numbers were computed from the sizes of values at {self.sized}"
            self._fix(0, why)
        gathers = {node.output for node in self.graph.nodes if node.op == "gather"}
        for node in self.graph.nodes:  # gathered elements are viewed as rows of a length that the file fixes
            if node.op == "view" and node.inputs[0] in gathers and any(size > 0 for size in node.attrs["shape"]):
                self._fix(1, f"{node.output} has rows of one length")
        tree = 0 if len(names) == 1 else {name: i for i, name in enumerate(names)}
        return Structure.of(tree, dtypes)

    def _fix(self, first: int, why: str) -> None:
        """Fixes the sizes of all inputs' dimensions from `first` on that are not fixed yet."""
        for name in self.graph.inputs:
            dims = range(first, len(self.graph.types[name].shape))
            known = self.graph.values[name].fixed
            self.graph.values.set(name, fixed=dict.fromkeys(dims, (0, why)) | dict(known))
