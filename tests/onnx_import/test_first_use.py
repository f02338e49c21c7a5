"""What a person meets first: sizes of one name, all that is open at once, a dict of inputs, old quantizers' files."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from testbed.onnx.networks import Net
from tests.onnx_import.test_float import by_onnx_runtime
from tests.onnx_import.test_sizes import image, opened


def unnamed() -> bytes:
    net = Net((1, 3, 8, 8))
    return opened(net.model(net.add("Relu", "x")), "1", "3", "?", "?")


def test_sizes_of_one_name_may_differ_by_place() -> None:
    model = q8.from_onnx(unnamed(), {"x.2": 48, "x.3": 192})
    assert model.inputs["x"].shape == (1, 3, 48, 192)
    assert q8.from_onnx(unnamed(), {"?": 32, "x.3": 64}).inputs["x"].shape == (1, 3, 32, 64)
    ranged = q8.Session(q8.from_onnx(unnamed(), {"x.2": 4, "x.3": (1, 9)}), device="reference")
    assert ranged(np.ones((1, 3, 4, 5), np.float32)).shape == (1, 3, 4, 5)


def test_all_open_sizes_are_reported_at_once() -> None:
    message = r"'\?' is dimension 2 of input 'x' and dimension 3 of input 'x'.*called by its place, 'x.2'"
    with pytest.raises(q8.UnsupportedError, match=message):
        q8.from_onnx(unnamed())
    with pytest.raises(
        q8.UnsupportedError, match=r"'H' is dim.*; 'W' is dim.*sizes=\{'H': 1, 'W': 1\} or --size 'H=1'"
    ):
        q8.from_onnx(image())


def test_a_size_out_of_a_stepped_range_is_named_as_such() -> None:
    """The message counted steps."""
    model = q8.from_onnx(image(), sizes={"H": (8, 32, 8), "W": 8})
    with pytest.raises(q8.InputError, match="dimension 2 of input x goes from 8 to 32 in steps of 8, found 12"):
        q8.Session(model, device="reference")(np.ones((1, 3, 12, 8), np.float32))


def test_a_session_takes_a_dict() -> None:
    session = q8.Session(q8.from_onnx(unnamed(), {"?": 4}), device="reference")
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(session({"x": x}), np.maximum(x, 0))
    with pytest.raises(q8.InputError, match="no input 'z'"):
        session({"z": x})


def test_a_wrong_calibration_item_does_not_speak_of_a_model() -> None:
    with pytest.raises(q8.InputError, match=r"must have shape \(1, 3, 4, 4\), found shape \(1, 3, 5, 5\); sizes="):
        q8.quantize(unnamed(), calibration=[np.ones((1, 3, 5, 5), np.float32)], sizes={"?": 4})


def test_factors_of_a_layer_norm_broadcast() -> None:
    """Also with dimensions of one element before those that are normalized."""
    net, numbers = Net((2, 3, 6)), np.linspace(0.5, 1.5, 6, dtype=np.float32)
    factors = net.constant(numbers[None]), net.constant(numbers[None, None])
    data = net.model(net.add("LayerNormalization", "x", *factors, axis=-1)).SerializeToString()
    x = np.linspace(-1, 1, 36, dtype=np.float32).reshape(2, 3, 6) ** 3
    found = q8.Session(q8.from_onnx(data), "reference")(x)
    np.testing.assert_allclose(found, by_onnx_runtime(data, x)[0], rtol=1e-5, atol=1e-5)


def test_clip_takes_a_computed_bound() -> None:
    net = Net((1, 6))
    high = net.add("Mul", net.add("ReduceMax", "x", keepdims=0), net.constant(np.float32(0.5)))
    data = net.model(net.add("Clip", "x", net.constant(np.float32(-0.25)), high)).SerializeToString()
    x = np.linspace(-1, 1, 6, dtype=np.float32)[None]
    (expected,) = by_onnx_runtime(data, x)
    np.testing.assert_allclose(q8.Session(q8.from_onnx(data), device="reference")(x), expected, atol=1e-6)


def test_a_conv_integer_may_have_an_int32_bias() -> None:
    """As ONNX Runtime's quantizer wrote them before 1.6."""
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "bias": rng.integers(-3000, 3000, (1, 4, 1, 1)).astype(np.int32),
        "w_scale": np.float32(0.01),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("ConvInteger", ["q", "w", "zero"], ["sum"]),
        helper.make_node("Add", ["sum", "bias"], ["biased"]),
        helper.make_node("Cast", ["biased"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "w_scale"], ["step"]),
        helper.make_node("Mul", ["real", "step"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 6, 6))]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "net", ports, results, arrays)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6).SerializeToString()
    x = rng.standard_normal((1, 3, 6, 6)).astype(np.float32)
    (expected,) = by_onnx_runtime(data, x)
    found = q8.Session(q8.from_onnx(data), device="reference")(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
