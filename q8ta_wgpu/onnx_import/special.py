"""Imports operators that compute nothing at run time (Constant, Shape, Identity), or only change the dtype (Cast)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.ir.graph import INT32
from q8ta_wgpu.onnx_import import onnx_nodes
from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder
from q8ta_wgpu.onnx_import.onnx_nodes import FLOAT, INTEGERS, RESULTS
from q8ta_wgpu.onnx_import.read import array_of

Values = Sequence["str | None"]
Special = Callable[[OnnxBuilder, onnx.NodeProto, Values, Sequence[int], Mapping[str, Any]], "list[tuple[str, int]]"]


def _constant(
    b: OnnxBuilder, node: onnx.NodeProto, operands: Values, dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    if len(node.attribute) != 1:
        raise RefusedError(f"a Constant has one attribute, its value: found {len(node.attribute)}")
    name, value = next(iter(attrs.items()))
    if name == "value":
        array = array_of(value, ())
    elif name in ("value_float", "value_floats"):
        array = np.asarray(value, np.float32)
    elif name in ("value_int", "value_ints"):
        array = np.asarray(value, np.int64)
    else:
        raise RefusedError(f"its {name} is not supported: it must be a dense tensor of numbers")
    return [(b.raw_constant(array), onnx_nodes.dtype_of(array))]


def _shape(
    b: OnnxBuilder, node: onnx.NodeProto, operands: Values, dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Shape or Size: a constant."""
    assert operands[0] is not None
    shape = b.shape_of(operands[0])
    if not b.is_constant(operands[0]):
        b.sized = b.sized or b.source
    selected = shape[attrs.get("start", 0) : attrs.get("end", len(shape))]
    array = np.asarray(selected if node.op_type == "Shape" else np.prod(shape), np.int64)
    return [(b.raw_constant(array), TensorProto.INT64)]


def _same(
    b: OnnxBuilder, node: onnx.NodeProto, operands: Values, dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Identity, and Dropout outside of training."""
    training = b.array(operands[2]) if len(operands) > 2 and operands[2] is not None else np.asarray(False)
    if training is None or training.any():
        raise RefusedError("it is a dropout in training mode: export the network for inference")
    assert operands[0] is not None
    return [(operands[0], dtypes[0])]


def _cast(
    b: OnnxBuilder, node: onnx.NodeProto, operands: Values, dtypes: Sequence[int], attrs: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """A conversion between float32, integers and bools, which are all float32 numbers in the graph."""
    x, source = operands[0], dtypes[0]
    assert x is not None
    wanted = dtypes[1] if node.op_type == "CastLike" else int(attrs["to"])
    array = b.array(x)
    if array is not None and wanted in (FLOAT, *RESULTS, *onnx_nodes.FLOATS):
        with np.errstate(all="ignore"):
            converted = array.astype(onnx.helper.tensor_dtype_to_np_dtype(wanted))
        return [(b.raw_constant(converted), wanted)]
    for dtype in (source, wanted):
        if dtype != FLOAT and dtype not in RESULTS:
            raise RefusedError(
                f"it converts {onnx_nodes.dtype_name(source)} to {onnx_nodes.dtype_name(wanted)}: numbers are float32, "
                "integers and bools here"
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
    return [(b.wrapped(x, wanted) if wanted in STORED else x, wanted)]


SPECIAL: Mapping[str, Special] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _shape,
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "CastLike": _cast,
}
