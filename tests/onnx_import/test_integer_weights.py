"""Float files whose weights are stored as integers: they say so, and can be quantized."""

from __future__ import annotations

import numpy as np
import pytest

import q8ta_wgpu as q8
from testbed.onnx.networks import Net, by_onnx_runtime


def stored(by_cast: bool) -> bytes:
    """A linear whose weight is int8, made float by Cast and Mul or by DequantizeLinear."""
    net = Net((4, 64))
    weight = net.constant(np.random.default_rng(0).integers(-127, 128, (64, 32)).astype(np.int8))
    scale = net.constant(np.float32(0.01))
    if by_cast:
        weight = net.add("Mul", net.add("Cast", weight, to=1), scale)
    else:
        weight = net.add("DequantizeLinear", weight, scale)
    return bytes(net.model(net.add("Relu", net.add("MatMul", "x", weight))).SerializeToString())


@pytest.mark.parametrize("by_cast", [True, False])
def test_a_file_that_computes_in_float_with_integer_weights_says_so(by_cast: bool) -> None:
    data = stored(by_cast)
    with pytest.warns(UserWarning, match=r"^0 % of the multiply-adds run in int8: .* as integers.*q8.quantize\(file"):
        model = q8.from_onnx(data)
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (expected,) = by_onnx_runtime(data, x)
    np.testing.assert_allclose(q8.Session(model, device="reference")(x), expected, atol=1e-4)
    quantized = q8.quantize(data, calibration=[x, -x], progress=False)
    assert quantized.report().macs[0] == quantized.report().macs[1]
    found = q8.Session(quantized, device="reference")(x)
    assert 10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()) > 30
