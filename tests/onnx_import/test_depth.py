"""Files with thousands of operators in a row."""

from __future__ import annotations

import time

import numpy as np

import q8ta_wgpu as q8
from testbed.onnx.networks import Net


def chain(length: int) -> tuple[bytes, float]:
    """A file with a chain of functions, a mask and a softmax, and the sum that its elements keep."""
    net = Net((1, 8))
    x = "x"
    for i in range(length):
        x = net.add("Relu" if i % 2 else "Neg", x)
    x = net.add("Add", x, net.constant(np.array([[0, -np.inf] * 4], np.float32)))
    return net.model(net.add("Softmax", x, axis=-1)).SerializeToString(), 1.0


def test_a_chain_of_thousands_is_read_in_linear_time() -> None:
    """Reading recursed over the chain at 330 operators, and each operator walked to the end of the chain."""
    seconds = []
    for length in (1000, 5000):
        data, total = chain(length)
        before = time.process_time()
        model = q8.from_onnx(data)
        seconds.append(time.process_time() - before)
        y = q8.Session(model, device="reference")(np.ones((1, 8), np.float32))
        assert float(y.sum()) == total
    assert seconds[1] < 10 * seconds[0]  # five times the operators; quadratic time would be 25 times as long


def test_a_chain_of_moves_and_factors_is_quantized() -> None:
    """Masks, streams and storage follow moves, sums and factors to their source."""
    net = Net((1, 4, 8))
    x = net.linear("x", 8, 8)
    for i in range(700):
        x = net.add("Transpose", x, perm=[0, 2, 1]) if i % 2 else net.add("Mul", x, net.constant(np.float32(1.001)))
    mask = net.constant(np.array([0, -np.inf] * 4, np.float32))
    y = net.add("Softmax", net.add("Add", x, mask), axis=-1)
    rng = np.random.default_rng(0)
    items = [rng.standard_normal((1, 4, 8)).astype(np.float32) for _ in range(2)]
    model = q8.quantize(net.model(y).SerializeToString(), calibration=items, progress=False)
    found = q8.Session(model, device="reference")(items[0])
    np.testing.assert_allclose(found.sum(-1), 1, atol=0.05)
    assert not found[..., 1::2].any()
