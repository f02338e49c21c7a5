"""Imports operators that compute nothing at run time (Constant, Shape, Identity), or only change the dtype (Cast)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.ir.graph import INT32
from q8ta_wgpu.onnx_import import onnx_nodes
from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder, Rule
from q8ta_wgpu.onnx_import.onnx_nodes import FLOAT, INTEGERS, RESULTS
from q8ta_wgpu.onnx_import.read import array_of

_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""The dtypes of a Constant's values by attribute."""


def _constant(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    given = [name for name in (*_NUMBERS, "value", "value_string", "sparse_value") if args.get(name) is not None]
    if len(given) != 1 or given[0] not in ("value", *_NUMBERS):
        raise RefusedError(f"a Constant has one attribute, a dense tensor or numbers: found {', '.join(given)}")
    value = args[given[0]]
    return b.raw_constant(array_of(value, ()) if given[0] == "value" else np.asarray(value, _NUMBERS[given[0]]))


def _shape(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """Shape or Size: a constant."""
    x = args["inputs"][0]
    shape = b.shape_of(x)
    if not b.is_constant(x):
        b.sized = b.sized or b.source
    selected = shape[args.get("start") or 0 : len(shape) if args.get("end") is None else args["end"]]
    return b.raw_constant(np.asarray(selected if args["operator"] == "Shape" else np.prod(shape), np.int64))


def _same(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """Identity, and Dropout outside of training."""
    x, _, training = (*args["inputs"], None, None)[:3]
    trains = np.asarray(False) if training is None else b.array(training)
    if trains is None or trains.any():
        raise RefusedError("it is a dropout in training mode: export the network for inference")
    return str(x)


def _cast(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """A conversion between float32, integers and bools, which are all float32 numbers in the graph."""
    x, source = args["inputs"][0], args["dtypes"][0]
    wanted = args["dtypes"][1] if args["operator"] == "CastLike" else int(args["to"])
    array = b.array(x)
    if array is not None and wanted in (FLOAT, *RESULTS, *onnx_nodes.FLOATS):
        with np.errstate(all="ignore"):
            return b.raw_constant(array.astype(onnx.helper.tensor_dtype_to_np_dtype(wanted)))
    for dtype in (source, wanted):
        if dtype != FLOAT and dtype not in RESULTS:
            raise RefusedError(
                f"it converts {onnx_nodes.dtype_name(source)} to {onnx_nodes.dtype_name(wanted)}: numbers are float32, "
                "integers and bools here"
            )
    if source == wanted:
        return str(x)
    x = b.numbers(x)
    if wanted == FLOAT and b.type(x).dtype == INT32:
        x = b.emit("to_float32", (x,))
    if wanted == TensorProto.BOOL:
        return b.truth(b.emit("ne_scalar", (x,), {"number": 0.0}))
    if source == FLOAT and wanted in INTEGERS:
        x = b.emit("trunc", (x,))
    return b.wrapped(x, wanted) if wanted in STORED else x


RULES: Mapping[str, Rule] = {
    "Constant": _constant,
    **dict.fromkeys(("Shape", "Size"), _shape),
    **dict.fromkeys(("Identity", "Dropout"), _same),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
}
