"""MatMulNBits: linears whose weights have 4 bits in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.device import Device
from tests.onnx_import.test_float import by_onnx_runtime, decibels
from tests.onnx_import.test_quantized import made

OUTPUTS = 24


def linear(depth: int, block: int, level: int, zeros: bool, **attributes: Any) -> bytes:
    random, blocks = np.random.default_rng(depth), -(-depth // block)
    constants: dict[str, Any] = {
        "w": random.integers(0, 256, (OUTPUTS, blocks, block // 2)).astype(np.uint8),
        "scale": (random.random((OUTPUTS, blocks)) * 0.02 + 0.002).astype(np.float32),
        "zero": random.integers(0, 256, (OUTPUTS, (blocks + 1) // 2)).astype(np.uint8),
        "order": np.arange(depth, dtype=np.int32),
        "bias": random.standard_normal(OUTPUTS).astype(np.float32),
    }
    names = ["x", "w", "scale", "zero" if zeros else "", "order" if attributes.pop("order", False) else "", "bias"]
    sizes = {"K": depth, "N": OUTPUTS, "bits": 4, "block_size": block, "accuracy_level": level, **attributes}
    used = {name: array for name, array in constants.items() if name in names}
    return made(
        [helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **sizes)], {"x": (1, 5, depth)}, used
    )


def rows(depth: int) -> Array:
    return np.random.default_rng(1).standard_normal((1, 5, depth)).astype(np.float32)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("depth", "block"), [(128, 32), (200, 64), (256, 128), (512, 256)])
def test_weights_of_4_bits_stay_so_where_activations_may_be_rounded(depth: int, block: int, zeros: bool) -> None:
    data = linear(depth, block, 4, zeros)
    model = q8.from_onnx(data)
    (weight,) = (model.graph.constants[n.inputs[1]] for n in model.graph.nodes if n.op == "q8ta_linear")
    assert weight.nbytes < 0.6 * OUTPUTS * -(-depth // block) * block
    (expected,) = by_onnx_runtime(linear(depth, block, 0, zeros), rows(depth))  # activations as they are
    assert decibels(q8.Session(model, device="reference")(rows(depth)), expected) > 35


@pytest.mark.parametrize(("block", "level"), [(32, 0), (64, 1), (16, 4)])
def test_elsewhere_they_are_float32(block: int, level: int) -> None:
    data = linear(128, block, level, zeros=True)
    model = q8.from_onnx(data)
    assert [node.op for node in model.graph.nodes] == ["linear"]
    whole = linear(128, block, 0, zeros=True)
    np.testing.assert_allclose(
        q8.Session(model, device="reference")(rows(128)), by_onnx_runtime(whole, rows(128))[0], rtol=0, atol=1e-5
    )


def test_every_device_gives_the_bytes_of_the_reference(device: Device) -> None:
    model = q8.from_onnx(linear(128, 32, 4, zeros=False))
    found, expected = (q8.Session(model, device=d)(rows(128)) for d in (device, "reference"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"order": True}, "g_idx is not supported"),
        ({"bits": 8}, "weights of 4 bits in blocks"),
        ({"K": 1 << 40}, "are not those of"),
        ({"N": 25}, "are not those of"),
    ],
)
def test_others_are_refused_by_name(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(q8.UnsupportedError, match=problem):
        q8.from_onnx(linear(128, 32, 4, zeros=True, **given))
