"""What the tests of quantized files compare with: the same on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from testbed.onnx.networks import by_onnx_runtime

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (3, 64)).astype(np.uint8)
IMAGE = RANDOM.integers(0, 256, (1, 8, 6, 7)).astype(np.uint8)
MATRIX = RANDOM.integers(-128, 128, (64, 5)).astype(np.int8)
KERNEL = RANDOM.integers(-128, 128, (4, 8, 3, 3)).astype(np.int8)
ZERO, COARSE = np.uint8(131), np.float32(40)
ENDS: tuple[Any, ...] = (COARSE, np.uint8(120))
SUMS = (BYTES.astype(int) - 131) @ MATRIX.astype(int)
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "MatMulInteger": ("", (BYTES, MATRIX, ZERO), {}),
    "ConvInteger": ("", (IMAGE, KERNEL, ZERO), {"pads": [1, 1, 1, 1]}),
    "QLinearMatMul": ("", (BYTES, np.float32(0.5), ZERO, MATRIX, np.float32(0.25), np.int8(0), *ENDS), {}),
    "QLinearConv": (
        "",
        (IMAGE, np.float32(0.5), ZERO, KERNEL, np.float32(0.25), np.int8(0), *ENDS),
        {"strides": [2, 1]},
    ),
    "QGemm": (
        "com.microsoft",
        (BYTES, np.float32(0.5), ZERO, MATRIX, np.float32(0.25), np.int8(0), np.arange(5, dtype=np.int32), *ENDS),
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_all_bytes_are_exact(name: str) -> None:
    """ONNX Runtime itself gives other numbers on a processor without VNNI: the sums of most rows."""
    domain, operands, attributes = CASES[name]
    x, *constants = operands
    names = [f"c{i}" for i in range(len(constants))]
    kind = TensorProto.INT32 if "Integer" in name else TensorProto.UINT8
    ports = [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)]
    ends = [helper.make_tensor_value_info("y", kind, None)]
    node = helper.make_node(name, ["x", *names], ["y"], domain=domain, **attributes)
    tensors = [numpy_helper.from_array(np.asarray(c), n) for n, c in zip(names, constants, strict=True)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "net", ports, ends, tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    if domain:
        factor = np.float32(0.5) * np.float32(0.25) / COARSE
        expected = np.clip(np.rint((SUMS + np.arange(5)).astype(np.float32) * factor) + 120, 0, 255).astype(np.uint8)
    else:
        results: Any = ReferenceEvaluator(model).run(None, {"x": x})
        expected = results[0]
    np.testing.assert_array_equal(by_onnx_runtime(model.SerializeToString(), x)[0], expected)
