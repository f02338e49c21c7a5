"""Inputs of other libraries' dtypes, and results that other libraries read without a copy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import conv


@pytest.fixture(scope="module")
def model() -> q8.Model:
    torch.manual_seed(0)
    items = [torch.randn(1, 3, 64, 64) for _ in range(2)]
    return q8.compile(q8.quantize(nn.Sequential(conv(3, 8), nn.ReLU()).eval(), (items[0],), items, q8.Quantizer()))


@pytest.mark.parametrize("reference", [False, True])
def test_short_floats_are_inputs(model: q8.Model, vulkan: Device, reference: bool) -> None:
    """Torch tensors and arrays of float16 and bfloat16 are the float32 of the same value."""
    session = q8.Session(model, "reference" if reference else vulkan)
    x = torch.randn(1, 3, 64, 64)
    for dtype, numpy_dtype in ((torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)):
        short = x.to(dtype)
        expected = session(short.float())
        np.testing.assert_array_equal(session(short), expected)
        np.testing.assert_array_equal(session(short.float().numpy().astype(numpy_dtype)), expected)
        for found in session.run_many([short]):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reference", [False, True])
def test_results_share_their_memory(model: q8.Model, vulkan: Device, reference: bool) -> None:
    """By DLPack and by the buffer protocol; later calls leave what is shared as it is."""
    session = q8.Session(model, "reference" if reference else vulkan)
    xs = [torch.full((1, 3, 64, 64), value) for value in (0.5, -0.5, 0.25)]
    y = session(xs[0])
    tensor, view, address = from_dlpack(y), memoryview(y), y.ctypes.data
    assert tensor.data_ptr() == address and np.frombuffer(view, np.float32).ctypes.data == address
    kept = y.copy()
    del y
    others = [session(x) for x in xs[1:]]
    assert all(other.ctypes.data != address for other in others)
    np.testing.assert_array_equal(tensor.numpy(), kept)
    tensor.add_(1)
    assert memoryview(view).cast("B").cast("f")[0] == kept.ravel()[0] + 1
