"""What `quantize` says of calibration data, and of values that int8 cannot tell apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.frontend.calibrate import faults
from tests.quantizing import around_conv, conv, data

X = data(1, 3, 5, 5)


def test_what_calibration_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        q8.quantize(around_conv(), (X,), calibration=(1 / i for i in range(1)), progress=False)  # type: ignore[misc]


def test_a_calibration_of_zeros_is_told() -> None:
    with pytest.warns(UserWarning, match="every calibration input is zero"):
        q8.quantize(around_conv(), (X,), calibration=[torch.zeros_like(X)] * 2, progress=False)


def test_an_observer_that_takes_nan() -> None:
    """Some fail on NaN, others give a scale that is none."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("seen", (x,)))
    observer = MinMaxObserver(dtype=torch.int8, qscheme=torch.per_tensor_affine)
    prepared = torch.fx.GraphModule({"seen": observer}, graph)
    faults.check_ranges(prepared)
    prepared(torch.full((2,), float("nan")))
    with pytest.raises(InputError, match=r"the value of x .* is NaN or infinite on the calibration"):
        faults.check_ranges(prepared)


def _scaled(factor: float) -> nn.Module:
    tiny = around_conv(lambda s, x: F.relu(s.second(s.conv(x) * factor)), second=conv(4, 4))
    with torch.no_grad():
        tiny.second.bias.zero_()  # type: ignore[operator, union-attr]
    return tiny


def test_small_values_have_small_steps() -> None:
    tiny = _scaled(1e-6)
    compared = q8.compare(tiny, q8.quantize(tiny, (X,), calibration=[X], progress=False), (X,))
    assert min(layer.snr for layer in compared.layers) > 25, str(compared)


def test_values_that_int8_makes_constant_are_told() -> None:
    """An untrained network whose layers' results vanish, or vary little around something large, gives zeros: it must
    not do so silently."""
    tiny = _scaled(1e-10)
    with pytest.warns(UserWarning, match=r"int8 makes the values of .*\(and \d more\) constant: .* a step is 9.3e-10"):
        q8.quantize(tiny, (X,), calibration=[X], progress=False)
    flat = around_conv(lambda s, x: s.second(s.conv(x) * 1e-3 + 50.0), second=conv(4, 4))
    with pytest.warns(UserWarning, match=r"constant: .* go from 50 to 50, where a step is 0.2.*skip=\["):
        q8.quantize(flat, (X,), calibration=[X], progress=False)
