"""What a file says of itself: its inputs, outputs and metadata, as ONNX Runtime describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from q8ta_wgpu.onnx_import.from_onnx import File
from q8ta_wgpu.onnx_import.read import parsed

_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float",
    TensorProto.DOUBLE: "double",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Names of dtypes that are not those of ONNX in lower case."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a file.

    Attributes:
        name: its name.
        type: its dtype, such as "tensor(float)".
        shape: sizes; a name, or None, of a dimension that is open.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """Texts that a file holds beside its network."""

    custom_metadata_map: Mapping[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


def described(source: File) -> tuple[list[NodeArg], list[NodeArg], ModelMetadata]:
    """Reads what a file says of itself: the inputs that are no constants, the outputs, and texts.

    Raises:
        InputError: `source` is neither a path nor bytes, or there is no such file.
        UnsupportedError: it is no ONNX file.
    """
    model, _ = parsed(source)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    metadata = ModelMetadata(
        {entry.key: entry.value for entry in model.metadata_props},
        model.doc_string,
        model.domain,
        graph.doc_string,
        graph.name,
        model.producer_name,
        model.model_version,
    )
    inputs = [_port(port) for port in graph.input if port.name not in constants]
    return inputs, [_port(port) for port in graph.output], metadata


def _port(port: onnx.ValueInfoProto) -> NodeArg:
    tensor = port.type.tensor_type
    known = tensor.elem_type in TensorProto.DataType.values()
    name = _TYPES.get(tensor.elem_type) or (TensorProto.DataType.Name(tensor.elem_type).lower() if known else "unknown")
    shape: list[int | str | None] = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    ]
    return NodeArg(port.name, f"tensor({name})", shape)
