"""The walk over a program's nodes, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.calibrate.insert import FloatProgram
from q8ta_wgpu.errors import GraphError, Q8taError, UnsupportedError, counted, shown
from q8ta_wgpu.frontend.importer.builder import GraphBuilder, RefusedError
from q8ta_wgpu.ir.graph import BOOL, DTYPES, FLOAT32, INT8X4, INT32, UINT8, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Monotonic, Moves
from q8ta_wgpu.kernels import ONNX
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.onnx_import import four_bits, nodes, quantized
from q8ta_wgpu.onnx_import.fold import Folder
from q8ta_wgpu.onnx_import.nodes import FLOAT, INTEGERS, label
from q8ta_wgpu.onnx_import.read import Program, array_of

WAY_OUT = (
    "Write these with operators of the table (docs/onnx.md), compute them before or after the network, or add them "
    "(CONTRIBUTING.md)."
)

RULES = {**quantized.RULES, "com.microsoft.MatMulNBits": four_bits.matmul}
"""The importer functions of operators on integers, by name."""

RESULTS: dict[int, str] = {
    TensorProto.BOOL: "bool",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
}
"""The dtypes of results that are numbers in a graph, as the user gets them."""

DEEPEST = 8
"""How deep operators that are functions of others may be nested."""


@dataclass
class Scope:
    """Names of one graph or function: our value of each, or None of one that could not be imported, and its dtype."""

    values: dict[str, str | None] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """A program at some sizes.

    Attributes:
        program: its graph, with what its values are in the file.
        structure: of its outputs.
        open: by input and dimension, the name of each size that the file leaves open.
    """

    program: FloatProgram
    structure: Structure
    open: Mapping[tuple[str, int], str]


def import_program(program: Program, sizes: Mapping[str, int]) -> Imported:
    """A program at sizes of the dimensions that it leaves open.

    Raises:
        UnsupportedError: names every node that cannot be imported, equal causes on one line; or an input.
    """
    importer = _Importer(program, sizes)
    found, structure = importer.run()
    return Imported(found, structure, importer.open)


class _Graph(Graph):
    """A graph whose new names are not those of constants that it does not hold yet."""

    raw: Mapping[str, Array]

    def fresh(self, hint: str) -> str:
        name = super().fresh(hint)
        while name in self.raw:
            name = super().fresh(f"{name}_")
        return name


class _Importer(GraphBuilder):
    """The builder with what ONNX knows of values.

    Attributes:
        problems: nodes by operator and reason.
        made: the ONNX dtype of stored integers, by value.
        sized: a node that computed something from the sizes of values.
        open: the names of sizes that the file leaves open.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.graph = _Graph()
        self.graph.raw = self.raw
        self.program, self.sizes = program, sizes
        self.opsets = program.opsets
        self.folder = Folder(dict(program.opsets))
        self.problems: dict[tuple[str, str], list[str]] = {}
        self.made: dict[str, int] = {}
        self.sized = ""
        self.open: dict[tuple[str, int], str] = {}
        self.found = FloatProgram(self.graph)

    def run(self) -> tuple[FloatProgram, Structure]:
        scope, graph = Scope(), self.program.graph
        for name, array in self.program.constants.items():
            self._define(scope, name, self.raw_constant(array, name), nodes.dtype_of(array))
        for port in graph.input:
            if port.name not in self.program.constants:
                self._input(scope, port)
        self._note_rest()
        self._walk(graph.node, scope, 0)
        if self.problems:
            lines = "\n".join(f"  {op} at {_places(at)}: {why}" for (op, why), at in self.problems.items())
            raise UnsupportedError(f"cannot import this program:\n{lines}\n{WAY_OUT}")
        structure = self._outputs(scope, [port.name for port in graph.output])
        self._note_rest()
        return self.found, structure

    # --- inputs and outputs ---

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
                graph.bools.add(name)
                graph.types[name] = TensorType(shape, INT8X4, BOOL)
            case TensorProto.UINT8:
                graph.uint8.add(name)
                graph.types[name] = TensorType(shape, INT8X4, UINT8)
            case TensorProto.INT8 | TensorProto.INT16:
                stored = quantized.STORED[dtype][0]
                graph.types[name] = TensorType(shape, stored, self._read_as(name, dtype))
            case TensorProto.INT32 | TensorProto.INT64:
                graph.types[name] = TensorType(shape, INT32)
                graph.bounds[name] = nodes.bounds_of(self.program, name)
            case _:
                found = nodes.dtype_name(dtype)
                raise UnsupportedError(
                    f"input {shown(name)} must be float32, bool, int64, int32, int16, int8 or uint8, found {found}: "
                    "convert it before the network"
                )
        graph.inputs.append(name)
        if dtype in quantized.STORED:
            self.made[name] = dtype
        if dtype == TensorProto.FLOAT:
            self.found.observable.add(name)
        self.hint = f"{name}.real"
        value = self.emit("dequantize", (name,)) if dtype == TensorProto.BOOL else name
        self._define(scope, name, value, dtype)

    def _size(self, name: str, index: int, dim: onnx.TensorShapeProto.Dimension) -> int:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
            return int(dim.dim_value)
        key = dim.dim_param or f"{name}.{index}"
        self.open[name, index] = key
        if key not in self.sizes:
            raise UnsupportedError(
                f"dimension {index} of input {shown(name)} is of any size: give one, sizes={{{shown(key)}: 1}} or "
                f"--size {shown(f'{key}=1')}, or the least and the largest, sizes={{{shown(key)}: (1, 64)}} or "
                f"--size {shown(f'{key}=1:64')}"
            )
        return self.sizes[key]

    def _read_as(self, name: str, dtype: int) -> QParams:
        """Scale and zero point by which the first reader of integers takes them, what moves them left out; 1 and 0 of
        those that have none."""
        names, (stored, shift) = {name}, quantized.STORED[dtype]
        for node in self.program.graph.node:
            at = next((i for i, each in enumerate(node.input) if each in names), None)
            if at is None:
                continue
            if nodes.full_name(node) in RULES:
                scale, zero = (self.program.constants.get(n) for n in (*node.input[at + 1 : at + 3], "", "")[:2])
                if scale is not None and scale.size == 1 and (zero is None or zero.size == 1):
                    offset = 0 if zero is None else int(zero.reshape(()))
                    return QParams(float(scale.reshape(())), offset - shift, stored)
            elif node.op_type in nodes.MOVES and at == 0:
                names.update(node.output)
        return QParams(1.0, -shift, stored)

    def _outputs(self, scope: Scope, names: Sequence[str]) -> Structure:
        if not names:
            raise UnsupportedError("the file has no outputs, so there is nothing to compute")
        dtypes: list[str | None] = []
        for name in names:
            value = scope.values.get(name)
            if value is None:
                raise UnsupportedError(f"output {shown(name)} is written by no node of the file")
            dtype, q = scope.dtypes[name], self.quantization(value)
            direct = q is not None and dtype in (TensorProto.INT8, TensorProto.INT16) and value not in self.graph.inputs
            found = value if direct else self.result(self.numbers(value))
            found = self.emit("to_float32", (found,)) if self.type(found).dtype == INT32 else found
            if found in self.graph.inputs or found in self.graph.outputs:
                found = self.emit("view", (found,), {"shape": self.type(found).shape})
            self.graph.outputs.append(found)
            dtypes.append(None if direct else RESULTS.get(dtype))
        if self.sized:
            why = f"numbers were computed from the sizes of values at {self.sized}"
            self.graph.fixed = {
                (n, d): (0, why) for n in self.graph.inputs for d in range(len(self.graph.types[n].shape))
            }
        gathers = {node.output for node in self.graph.nodes if node.op == "gather"}
        for node in self.graph.nodes:  # rows of a list are cut into rows of the length that the file has
            if node.op == "view" and node.inputs[0] in gathers and any(size > 0 for size in node.attrs["shape"]):
                for name in self.graph.inputs:
                    for dim in range(1, len(self.graph.types[name].shape)):
                        self.graph.fixed.setdefault((name, dim), (0, f"{node.output} has rows of one length"))
        tree = 0 if len(names) == 1 else {name: i for i, name in enumerate(names)}
        return Structure.of(tree, dtypes)

    # --- nodes ---

    def _define(self, scope: Scope, name: str, value: str | None, dtype: int) -> None:
        if name in scope.values:
            raise UnsupportedError(f"the file has two values that are called {shown(name)}")
        scope.values[name], scope.dtypes[name] = value, dtype

    def _walk(self, program: Sequence[onnx.NodeProto], scope: Scope, depth: int) -> None:
        for node in program:
            self._node(node, scope, depth)

    def _node(self, node: onnx.NodeProto, scope: Scope, depth: int) -> None:
        for name in filter(None, node.input):
            if name not in scope.values:
                raise UnsupportedError(
                    f"{label(node)} reads {shown(name)}, which nothing before it writes: nodes must be in order and "
                    "form no circle"
                )
        given = [scope.values[name] if name else None for name in node.input]
        known = all(value is not None for name, value in zip(node.input, given, strict=True) if name)
        dtypes = [scope.dtypes[name] if name else 0 for name in node.input]
        found: list[tuple[str, int]] = []
        if known:
            self.source, self.hint = label(node), next(filter(None, node.output), node.op_type)
            try:
                found = self._results(node, given, dtypes, depth)
            except (RefusedError, GraphError) as problem:
                self._problem(node, str(problem))
            except Q8taError:
                raise
            except Exception as bad:  # whatever importer functions meet in what is not as they expect it
                self._problem(node, f"its inputs or attributes are not what it takes: {shown(str(bad))}")
        self._note_call(node, found, depth)
        for i, name in enumerate(node.output):
            value, dtype = found[i] if i < len(found) else (None, FLOAT)
            if name:
                if known and found and value is None:
                    self._problem(node, f"its result {i} is not supported")
                self._define(scope, name, value, dtype)

    def _note_call(self, node: onnx.NodeProto, found: Sequence[tuple[str, int]], depth: int) -> None:
        """Notes which nodes of the graph a node of the file became, and the floats that it gives."""
        made, name = self.graph.nodes[len(self.found.calls) :], nodes.full_name(node)
        if made:
            call = made[-1].output
            self.found.calls.update((each.output, call) for each in made)
            if name in ONNX and isinstance(kind := ONNX[name][0].int8, Moves | Monotonic):
                self.found.moving[call] = kind
        for at, (value, dtype) in zip(node.output, found, strict=False):
            if dtype == FLOAT and value not in self.raw and self.type(value).dtype == FLOAT32:
                self.found.observable.add(value)
                if at and not depth:
                    self.found.names.setdefault(value, at)

    def _note_rest(self) -> None:
        """Notes the nodes that belong to inputs and outputs."""
        self.found.calls.update((n.output, n.output) for n in self.graph.nodes[len(self.found.calls) :])

    def _problem(self, node: onnx.NodeProto, reason: str) -> None:
        version = self.opsets.get(nodes.domain_of(node), 1)
        name = nodes.full_name(node)
        self.problems.setdefault((f"{name} (opset {version})", reason), []).append(
            node.name or next(iter(node.output), "")
        )

    def _results(
        self, node: onnx.NodeProto, given: Sequence[str | None], dtypes: Sequence[int], depth: int
    ) -> list[tuple[str, int]]:
        """The value and the dtype of each result of a node."""
        attributes = nodes.attributes(node)
        name = nodes.full_name(node)
        if (special := _SPECIAL.get(name)) is not None:
            return special(self, node, given, dtypes, attributes)
        arrays = [None if value is None else self.array(value) for value in given]
        fixed = all(value is None or array is not None for value, array in zip(given, arrays, strict=True))
        if given and fixed and self.folder.takes(node):
            made = self.folder.run(node, arrays)
            return [(self.raw_constant(array), nodes.dtype_of(array)) for array in made]
        schema = nodes.schema_of(node, self.opsets)
        results = nodes.result_dtypes(schema, node, dtypes)
        if (rule := quantized.on_integers(name, dtypes, attributes) or RULES.get(name)) is not None:
            args = self._arguments(node, schema, attributes, given)
            values = rule(self, {**args, "dtypes": [*dtypes, *[0] * 8]})
            values = [values] if isinstance(values, str) else values
            return [(v, self.made.get(v, t)) for v, t in zip(values, results, strict=False)]
        if name in ONNX:
            self._check_dtypes(name, dtypes, results)
            args = self._arguments(node, schema, attributes, self._operands(name, given))
            if name in nodes.TABLES and dtypes[0] in quantized.STORED and arrays[1] is None:
                assert given[0] is not None
                return [(self._rows(node, given[0], args, dtypes[0]), dtypes[0])]
            if results[0] in INTEGERS and name in nodes.ARITHMETIC and results[0] in dtypes:
                return [(self._small_integers(name, args, results[0]), results[0])]
            values = self._kept(name, ONNX[name][1](self, args), results)
            return list(zip(values, results, strict=False))
        return self._function(node, schema, given, dtypes, depth)

    def _operands(self, name: str, given: Sequence[str | None]) -> list[str | None]:
        """Operands as an operator takes them: integers as they are stored where it moves or compares them, as numbers
        for another one."""
        moves = isinstance(ONNX[name][0].int8, Moves | Monotonic) and name != "Pad"
        stored = {self.quantization(v) for v in given if v is not None and v not in self.raw}
        if moves and len(stored) == 1:
            return list(given)
        return [v if v is None or v in self.raw else self.numbers(v) for v in given]

    def _rows(self, node: onnx.NodeProto, x: str, args: Mapping[str, Any], dtype: int) -> str:
        """Rows of stored integers at computed indices: those of a constant table have the scale by which they are
        read."""
        if x in self.raw:
            q = self._read_as(node.output[0], dtype)
            whole = self.raw[x].astype(np.int64) - quantized.STORED[dtype][1]
            x = self.add_stored(whole.astype(DTYPES[q.dtype]), q)
        stored = self.quantization(x)
        assert stored is not None
        inputs = [self.emit("dequantize", (x,)), *args["inputs"][1:]]
        rows = str(ONNX[nodes.full_name(node)][1](self, {**args, "inputs": inputs}))
        return self.stored(rows, stored, dtype, stored.range)

    def _kept(self, name: str, found: str | list[str], results: Sequence[int]) -> list[str]:
        """An operator's results; bools that it computes are stored as such."""
        values = [found] if isinstance(found, str) else found
        if isinstance(ONNX[name][0].int8, Moves | Monotonic):
            for value, dtype in zip(values, results, strict=False):
                if self.quantization(value) is not None:
                    self.made[value] = dtype
            return values
        return [self.truth(v) if t == TensorProto.BOOL else v for v, t in zip(values, results, strict=False)]

    def _check_dtypes(self, name: str, dtypes: Sequence[int], results: Sequence[int]) -> None:
        for dtype in (*dtypes, *results):
            if dtype and dtype != FLOAT and dtype not in RESULTS:
                raise RefusedError(
                    f"it computes with {nodes.dtype_name(dtype)}: store the network's numbers as float32"
                )

    def _small_integers(self, name: str, args: Mapping[str, Any], dtype: int) -> str:
        """Arithmetic of integers that float32 computes exactly, as integers that wrap."""
        bits = 8 * np.dtype(RESULTS[dtype]).itemsize
        exact = ("Add", "Sub", "Div", "Mod", "Neg", *(("Mul",) if bits == 8 else ()))
        if bits > 16 or name not in exact:
            raise RefusedError(
                f"it computes with {nodes.dtype_name(dtype)} while the network runs: compute them before the network, "
                "or from sizes and constants alone"
            )
        if name != "Div":
            return self.wrapped(str(ONNX[name][1](self, args)), dtype)
        left, right = args["inputs"]
        whole = {"self": left, "other": right, "rounding_mode": "trunc"}
        return self.wrapped(str(self.aten("aten.div.Tensor_mode", whole)), dtype)

    def _arguments(
        self,
        node: onnx.NodeProto,
        schema: onnx.defs.OpSchema | None,
        attributes: Mapping[str, Any],
        given: Sequence[str | None],
    ) -> dict[str, Any]:
        defaults = nodes.defaults(schema) if schema is not None else {}
        inputs = list(given)
        if schema is not None and not nodes.is_variadic(schema):
            inputs += [None] * (len(schema.inputs) - len(inputs))
        return {
            **defaults,
            **attributes,
            "inputs": inputs,
            "outputs": len(node.output),
            "operator": node.op_type,
            "opset": attributes.get("opset", self.opsets.get(nodes.domain_of(node), 1)),
        }

    def _function(
        self,
        node: onnx.NodeProto,
        schema: onnx.defs.OpSchema | None,
        given: Sequence[str | None],
        dtypes: Sequence[int],
        depth: int,
    ) -> list[tuple[str, int]]:
        """An operator that ONNX defines by others, as these."""
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise RefusedError("control flow is not supported: unroll loops and choose branches when the file is made")
        if schema is None:
            raise RefusedError("this operator is not known: no operator of this name is in the table")
        types = [
            onnx.helper.make_tensor_type_proto(dtype, self._shape_of(value)) if value is not None else onnx.TypeProto()
            for value, dtype in zip(given, dtypes, strict=True)
        ]
        body = nodes.body_of(node, schema, self.opsets[nodes.domain_of(node)], types)
        if body is None or depth >= DEEPEST:
            raise RefusedError("this operator is not supported")
        scope = Scope()
        for i, name in enumerate(body.input):
            value = given[i] if i < len(given) else None
            if value is not None:
                self._define(scope, name, value, dtypes[i])
        before, at = dict(self.problems), self.source
        self._walk(nodes.with_attributes(body, node, schema), scope, depth + 1)
        if new := [key for key in self.problems if key not in before]:
            self.problems = before
            raise RefusedError(f"of the operators that it stands for {new[0][0]} is not supported: {new[0][1]}")
        self.source = at
        found = [(scope.values.get(name), scope.dtypes.get(name, FLOAT)) for name in body.output]
        return [(value, dtype) for value, dtype in found if value is not None]

    def _shape_of(self, value: str) -> tuple[int, ...]:
        array = self.array(value)
        return array.shape if array is not None else self.type(value).shape

    # --- for importer functions ---

    def onnx(self, name: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
        """The value of another operator of the table."""
        version = self.opsets[""]
        schema = onnx.defs.get_schema(name, version, "")
        given = list(inputs)
        if not nodes.is_variadic(schema):
            given += [None] * (len(schema.inputs) - len(given))
        kept = {key: value for key, value in attributes.items() if value is not None}
        call = {"inputs": given, "outputs": 1, "operator": name, "opset": version}
        return ONNX[name][1](self, {**nodes.defaults(schema), **call, **kept})

    def raw_constant(self, array: Array, hint: str = "") -> str:
        """Adds a constant of any dtype, which becomes one of the graph when it is read."""
        name = self.graph.fresh(hint or self.hint or "constant")
        self.raw[name] = array
        return name

    def add_stored(self, array: Array, q: QParams) -> str:
        """Adds a constant of stored integers."""
        return self.graph.add_constant(self.hint or "constant", array, q.dtype, q)

    def stored(self, x: str, q: QParams, dtype: int, bounds: tuple[int, int]) -> str:
        """A float value rounded to integers of an ONNX dtype, which are stored."""
        x, name = self.operand(x), self.graph.fresh(self.hint)
        self.graph.types[name] = TensorType(self.graph.types[x].shape, q.dtype, q)
        self.append(Node("quantize", (x,), name, {"lo": bounds[0], "hi": bounds[1]}, self.source))
        self.made[name] = dtype
        return name

    def turned(self, x: str, dims: Sequence[int]) -> str:
        """A value, or stored integers, with its dimensions in another order."""
        y = str(self.aten("aten.permute.default", {"self": x, "dims": list(dims)}))
        if x in self.made:
            self.made[y] = self.made[x]
        return y

    def wrapped(self, x: str, dtype: int) -> str:
        """Whole float32 numbers as integers of a dtype; what does not fit wraps, as on processors."""
        (stored, shift), bits = quantized.STORED[dtype], 8 * np.dtype(RESULTS[dtype]).itemsize
        half = 0.0 if shift else float(1 << (bits - 1))
        x = self.emit("affine", (x,), {"factor": 1.0, "term": half}) if half else x
        x = self.emit("remainder", (x,), {"divisor": float(1 << bits)})
        x = self.emit("affine", (x,), {"factor": 1.0, "term": -half}) if half else x
        q = QParams(1.0, -shift, stored)
        return self.stored(x, q, dtype, q.range)

    def quantization(self, x: str) -> QParams | None:
        """Scale and zero point of a value that is stored as integers."""
        return self.type(x).q if x in self.graph.types else None

    def numbers(self, x: str) -> str:
        """The integers of a value as float32 numbers; any other value as it is."""
        q = self.quantization(x)
        if q is None:
            return x
        real = self.emit("dequantize", (x,))
        dtype = self.made.get(x)
        shift = quantized.STORED[dtype][1] if dtype is not None else 0
        if q.scale == 1.0 and q.zero == -shift:
            return real
        steps = self.emit("affine", (real,), {"factor": 1.0 / q.scale, "term": float(q.zero + shift)})
        return self.emit("round", (steps,))


def _places(at: Sequence[str]) -> str:
    return f"{shown(at[0])}" + (f" and {counted(len(at) - 1, 'more node')}" if len(at) > 1 else "")


# --- operators that are about names, constants and dtypes alone ---

Special = Callable[
    [_Importer, onnx.NodeProto, Sequence["str | None"], Sequence[int], Mapping[str, Any]], "list[tuple[str, int]]"
]


def _constant(
    b: _Importer, node: onnx.NodeProto, given: Sequence[str | None], dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    if len(node.attribute) != 1:
        raise RefusedError("it has not one value")
    name, value = next(iter(attrs.items()))
    if name == "value":
        array = array_of(value, None)
    elif name in ("value_float", "value_floats"):
        array = np.asarray(value, np.float32)
    elif name in ("value_int", "value_ints"):
        array = np.asarray(value, np.int64)
    else:
        raise RefusedError(f"its {name} is not supported: it must be a dense tensor of numbers")
    return [(b.raw_constant(array), nodes.dtype_of(array))]


def _shape(
    b: _Importer, node: onnx.NodeProto, given: Sequence[str | None], dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Shape or Size, which follow from types."""
    assert given[0] is not None
    shape = b._shape_of(given[0])
    if not b.is_constant(given[0]):
        b.sized = b.sized or b.source
    part = shape[attrs.get("start", 0) : attrs.get("end", len(shape))]
    array = np.asarray(part if node.op_type == "Shape" else np.prod(shape), np.int64)
    return [(b.raw_constant(array), TensorProto.INT64)]


def _same(
    b: _Importer, node: onnx.NodeProto, given: Sequence[str | None], dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Identity, and Dropout where it is not trained."""
    training = b.array(given[2]) if len(given) > 2 and given[2] is not None else np.asarray(False)
    if training is None or training.any():
        raise RefusedError("it is a dropout in training mode: export the network for inference")
    assert given[0] is not None
    return [(given[0], dtypes[0])]


def _cast(
    b: _Importer, node: onnx.NodeProto, given: Sequence[str | None], dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """A conversion between float32, integers and bools, all of which are float32 numbers."""
    x, source = given[0], dtypes[0]
    assert x is not None
    wanted = dtypes[1] if node.op_type == "CastLike" else int(attrs["to"])
    array = b.array(x)
    if array is not None and wanted in (FLOAT, *RESULTS, *nodes.FLOATS):
        with np.errstate(all="ignore"):
            made = array.astype(onnx.helper.tensor_dtype_to_np_dtype(wanted))
        return [(b.raw_constant(made), wanted)]
    for dtype in (source, wanted):
        if dtype != FLOAT and dtype not in RESULTS:
            raise RefusedError(
                f"it converts {nodes.dtype_name(source)} to {nodes.dtype_name(wanted)}: numbers are float32, integers "
                "and bools here"
            )
    if source == wanted:
        return [(x, wanted)]
    x = b.numbers(x)
    if wanted == FLOAT and b.type(x).dtype == INT32:
        x = b.emit("to_float32", (x,))
    if wanted == TensorProto.BOOL:
        return [(b.truth(b.emit("ne_scalar", (x,), {"number": 0.0})), wanted)]
    if source == FLOAT and wanted in INTEGERS:
        x = b.emit("trunc", (x,))
    return [(b.wrapped(x, wanted) if wanted in quantized.STORED else x, wanted)]


_SPECIAL: Mapping[str, Special] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _shape,
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "CastLike": _cast,
}
