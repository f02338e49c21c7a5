"""Static files leave biases, GELU, norms and residuals in float32 between int8 values: here they are integers."""

from __future__ import annotations

import numpy as np
import onnx

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.device import Device
from testbed.onnx.networks import Net, by_onnx_runtime, quantize


def block() -> onnx.ModelProto:
    """Linears with biases added behind, GELU by Erf, a norm by parts, a residual, as exporters write them."""
    net = Net((1, 12, 32))

    def number(value: float) -> str:
        return net.constant(np.float32(value))

    x = net.add("LayerNormalization", net.linear("x", 32, 32), net.weight(32, scale=0.5), net.weight(32, scale=0.1))
    y = net.linear(x, 32, 64)
    erf = net.add("Add", net.add("Erf", net.add("Div", y, number(2**0.5))), number(1))
    y = net.linear(net.add("Mul", net.add("Mul", y, erf), number(0.5)), 64, 32)
    y = net.add("Add", x, y)
    centered = net.add("Sub", y, net.add("ReduceMean", y, axes=[-1]))
    variance = net.add("ReduceMean", net.add("Pow", centered, number(2)), axes=[-1])
    normed = net.add("Div", centered, net.add("Sqrt", net.add("Add", variance, number(1e-5))))
    return net.model(net.linear(net.add("Mul", normed, net.weight(32, scale=0.5)), 32, 8))


def items(count: int) -> list[Array]:
    return [np.random.default_rng(seed).standard_normal((1, 12, 32)).astype(np.float32) for seed in range(count)]


def static(net: onnx.ModelProto) -> bytes:
    """A file in which the products alone are quantized, as for transformers."""
    shape = [d.dim_value for d in net.graph.input[0].type.tensor_type.shape.dim]
    calibration = [np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in range(4)]
    return quantize(net.SerializeToString(), "QDQ", calibration, ("QInt8", "QInt8", True), ["MatMul"])


def test_no_float_island_is_left_between_int8_values(device: Device) -> None:
    data = static(block())
    model = q8.from_onnx(data)
    report = model.report()
    assert not report.islands
    assert report.float32 == {"add": 1}  # the bias behind the last product, whose sum the file does not quantize
    (x,) = items(1)
    found = q8.Session(model, device="reference")(x)
    np.testing.assert_array_equal(q8.Session(model, device)(x), found)
    (expected,) = by_onnx_runtime(data, x)
    assert 10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()) > 25


def test_what_has_no_known_range_stays_in_float_and_is_not_called_exact() -> None:
    """A quotient may be of any size."""
    net = Net((1, 8, 16))
    size = net.add("Add", net.add("Abs", net.linear("x", 16, 16)), net.constant(np.float32(0.5)))
    y = net.add("Div", net.linear("x", 16, 16), size)
    y = net.add("Add", net.add("Exp", y), net.add("Sin", y))
    report = q8.from_onnx(static(net.model(net.linear(y, 16, 8)))).report()
    assert report.islands
    assert not report.exact


def test_an_integer_that_is_computed_in_between_stays_whole() -> None:
    """Rounding before a floor would move it."""
    net = Net((1, 4, 8))
    y = net.add("Floor", net.add("Mul", net.linear("x", 8, 8), net.constant(np.float32(3))))
    data = static(net.model(net.linear(y, 8, 8)))
    graph = q8.from_onnx(data).graph
    read = [node.inputs[0] for node in graph.nodes if node.op == "floor"]
    assert all(graph.types[name].q is None for name in read)
