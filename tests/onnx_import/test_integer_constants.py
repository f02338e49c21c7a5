"""Constants of integers in float files that are quantized."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from testbed.onnx.networks import Net, by_onnx_runtime


def test_token_numbers_are_compared_with_constants() -> None:
    """The constant was quantized, which ended in an error of our own."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"rows": np.arange(16)[None], "w": rng.standard_normal((16, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("Equal", ["x", "rows"], ["same"]),
        helper.make_node("Cast", ["same"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["number", "w"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.INT64, (1, 16))]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))]
    graph = helper.make_graph(nodes, "net", ports, results, [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    items = [rng.integers(0, 16, (1, 16)) for _ in range(8)]
    found = q8.Session(q8.quantize(data, calibration=items, progress=False), device="reference")(items[0])
    expected = (items[0] == arrays["rows"]).astype(np.float32) @ arrays["w"]
    np.testing.assert_allclose(found, expected, atol=0.1)


def test_a_constant_without_elements_adds_nothing_to_a_concat() -> None:
    net = Net((1, 4))
    data = net.model(net.add("Concat", net.constant(np.zeros((1, 0), np.float32)), "x", axis=1)).SerializeToString()
    x = np.arange(4, dtype=np.float32)[None]
    np.testing.assert_array_equal(q8.Session(q8.from_onnx(data), device="reference")(x), by_onnx_runtime(data, x)[0])
