"""Questions about an ONNX node: its operator, attributes, dtypes of results, and the function that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto
from onnx.shape_inference import infer_node_outputs

from q8ta_wgpu.errors import shown
from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.onnx_import.read import Program

FLOAT = TensorProto.FLOAT

INTEGERS = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT32,
    TensorProto.INT64,
)
"""Integer dtypes that values of a network may have."""

RESULTS: dict[int, str] = {
    TensorProto.BOOL: "bool",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
}
"""The dtypes in which the user gets results that are float32 numbers in the graph."""

FLOATS = (TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
"""Float dtypes that only constants may have."""

_ARITHMETIC = (
    "Add Sub Mul Div Mod Pow Neg Sum Mean MatMul Gemm CumSum CumProd ReduceSum ReduceProd ReduceMean ReduceL1 "
    "ReduceL2 ReduceSumSquare"
)

ARITHMETIC = frozenset(_ARITHMETIC.split())
"""Operators whose results float32 may not represent exactly if their operands are large integers."""


MOVES = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile"),
    *("Transpose", "Unsqueeze"),
}
"""Operators whose results consist of elements of their first operand, or of all operands."""

TABLES = {"Gather": 1, "GatherElements": 1}
"""Operators with indices, and the position of the operand that has them."""

EXACT = (1 << 24) - 1
"""The largest integer up to which float32 represents all."""


def bounds_of(program: Program, name: str) -> tuple[int, int]:
    """The smallest and largest number that an integer input may contain: as an index it must be within every constant
    table, otherwise float32 must represent it exactly."""
    names, low, high = {name}, -EXACT, EXACT
    for node in program.graph.node:
        at = TABLES.get(node.op_type)
        if at is not None and len(node.input) > at and node.input[at] in names:
            table = program.constants.get(node.input[0])
            axis = attributes(node).get("axis", 0)
            rows = table.shape[axis] if table is not None and -table.ndim <= axis < table.ndim else EXACT + 1
            low, high = 0, min(high, rows - 1)
        elif node.op_type in MOVES and names.intersection(node.input):
            names.update(node.output)
    return low, high


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of a node's operator, '' for ONNX's own."""
    return "" if node.domain == "ai.onnx" else str(node.domain)


def full_name(node: onnx.NodeProto) -> str:
    """The operator's name, with its domain if that is not ONNX's own."""
    domain = domain_of(node)
    return f"{domain}.{node.op_type}" if domain else str(node.op_type)


def label(node: onnx.NodeProto) -> str:
    """A description of a node for messages."""
    return f"{node.op_type} {shown(node.name or next(iter(node.output), ''))}"


def dtype_of(array: Array) -> int:
    """ONNX's dtype of an array."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def dtype_name(dtype: int) -> str:
    """The name of a dtype for messages."""
    known = dtype in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(dtype)).lower() if known else f"data type {dtype}"


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Values of a node's attributes by name, without graphs; texts as str."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            continue
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        found[attribute.name] = value
    return found


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator in the opset of the file; None if ONNX does not know it. Raises RefusedError for
    a node that does not conform to it."""
    domain = domain_of(node)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, dict(opsets)
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise RefusedError(str(error).partition("\n")[0]) from error
    return schema


def defaults(schema: onnx.defs.OpSchema) -> dict[str, Any]:
    """Default values of an operator's attributes; None for those without a default."""
    found: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        value = onnx.helper.get_attribute_value(default) if default.type else None
        found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def is_variadic(schema: onnx.defs.OpSchema) -> bool:
    """Whether the last input repeats."""
    options = [p.option for p in schema.inputs]
    return bool(options) and options[-1] == onnx.defs.OpSchema.FormalParameterOption.Variadic


def result_dtypes(
    schema: Any, node: onnx.NodeProto, types: Sequence[onnx.TypeProto], opsets: Mapping[str, int]
) -> list[int]:
    """The dtype of each result, as ONNX infers it from the types of the inputs; float32 if it does not."""
    if schema is None:
        return [FLOAT] * len(node.output)
    given = {name: each for name, each in zip(node.input, types, strict=True) if name}
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    found = infer_node_outputs(schema, node, given, opset_imports=versions)
    return [found[name].tensor_type.elem_type or FLOAT if name in found else FLOAT for name in node.output]


def alone(node: onnx.NodeProto, opsets: Mapping[str, int], types: Sequence[onnx.TypeProto]) -> onnx.ModelProto:
    """A model of one node. Its inputs, of these types, are called x0, x1 and so on, its results y0, y1."""
    names = [f"x{i}" if name else "" for i, name in enumerate(node.input)]
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, attribute=node.attribute)
    copy.output.extend(f"y{i}" for i in range(len(node.output)))
    graph = onnx.GraphProto(node=[copy], name=node.op_type)
    graph.input.extend(onnx.ValueInfoProto(name=n, type=t) for n, t in dict(zip(names, types, strict=True)).items())
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in copy.output)
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=versions, graph=graph)


def definitions(schema: Any) -> list[int]:
    """The opsets with whose operators ONNX defines an operator as a function; none of one that it does not know."""
    if schema is None:
        return []
    return [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]


def set_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Gives a node the attributes that have a default, which onnx's inliner does not know."""
    given = {attribute.name for attribute in node.attribute}
    defaults = [each.default_value for name, each in schema.attributes.items() if name not in given]
    node.attribute.extend(default for default in defaults if default.type)
