"""Torch modules that ONNX Runtime quantized. `python -m bench onnx` takes the same ones in their own sizes."""

from __future__ import annotations

import pytest

import q8ta_wgpu as q8
from testbed.onnx.modules import FORMS, MODULES, agreement, inputs, quantized


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODULES)
def test_a_quantized_module_agrees_with_onnx_runtime(name: str, form: str) -> None:
    """Static files: each operator gives ONNX Runtime's integers, given its operands, and none is in float32 that the
    file quantizes. Dynamic ones differ where a hidden state or a row is rounded more finely."""
    data = quantized(name, form, small=True)
    (x,) = inputs(MODULES[name].small_shape, 1)
    found = agreement(data, q8.from_onnx(data), x.numpy())
    assert found.beyond == ()
    if form == "dynamic":
        assert found.decibels > 40
    else:
        assert found.steps <= 1
        assert found.equal > 0.999
        assert found.macs == 1 or name == "LSTM"  # static files leave recurrent layers in float32
