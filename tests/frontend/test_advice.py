"""What a comparison says of the cause of a noise, and what it advises against it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.quantization.comparison import Comparison, Layer
from tests.quantizing import Plain, conv, data


class Outlier(nn.Module):
    """One channel is a thousand times as large as the others."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 32) → the same."""
        return x * torch.tensor([1000.0] + [1.0] * 31)


def causes(module: nn.Module, calibration: Tensor, x: Tensor, **how: Any) -> tuple[dict[str, Layer], tuple[str, ...]]:
    """The rows by their names, and the advice."""
    program = q8.quantize(module.eval(), (x,), [calibration], q8.Quantizer(precision="int8", **how), progress=False)
    found = q8.compare(module, program, (x,))
    return {layer.name: layer for layer in found.layers}, found.advice


@pytest.mark.parametrize(
    ("snr", "yardstick", "said"), [(29.5, 30.0, 0), (25.0, 30.0, 1), (12.0, 12.0, 1), (29.5, None, 1)]
)
def test_more_bits_are_advised_where_the_outputs_gain_by_them(snr: float, yardstick: float | None, said: int) -> None:
    """Not where they are near the yardstick. A yardstick below 20 dB is no aim: floats are better."""
    lossy = Layer("mul", "gate", "", 40.0, 40.0, 8.0, 0.0, 0)
    layers = (lossy, Layer("linear", "head", "", snr, snr, 0.0, 0.0, 1, output=True))
    assert len(Comparison(layers, predicted=snr, yardstick=yardstick).advice) == said


def test_clipping_is_told_from_coarse_steps() -> None:
    torch.manual_seed(0)
    x = data(2, 3, 8, 8)
    rows, advice = causes(nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 3)), 0.2 * x, x)
    assert any(row.clipped > 0.05 for row in rows.values())
    assert any("Calibrate with inputs" in line for line in advice)


def test_a_rare_outlier_is_clipping() -> None:
    """One element of 1,024 lies far beyond the calibration. What follows inherits the noise."""
    torch.manual_seed(0)
    x = data(16, 64)
    outlier = x.clone()
    outlier[0, 0] = 60.0
    rows, advice = causes(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), x, outlier)
    assert 0 < rows["input_1"].clipped < 0.01
    assert rows["input_1"].cause == "clipping"
    assert rows["input_1"].lost > 20
    assert rows["1.relu"].snr < 10
    assert rows["1.relu"].cause == "before"
    assert advice == (
        "input_1: clipped. Calibrate with inputs that reach so far. If the calibration had such inputs, "
        'Quantizer(precision="int16") has a range for them',
    )


def test_an_outlier_within_the_range_makes_steps_coarse() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), Outlier(), nn.ReLU(), nn.Linear(32, 8))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["2.relu"].clipped == 0
    assert rows["2.relu"].cause == "rounding"
    assert rows["2.relu"].lost > 10
    assert advice == (
        '2.relu: 8 bits are too few. Quantizer(precision="int16") stores in 16 bits whatever can be. '
        "Quantizer(skip=['2', ...]) leaves modules in float; name those that read the value, too"
    )


@pytest.mark.parametrize(
    ("weights", "cause", "advice"),
    [
        ("int4", "weights", ["1.relu: its rounded weights make most of the noise. Quantizer(skip=['0', ...])"]),
        ("int8", "before", []),
    ],
)
def test_weights_of_4_bits_are_a_cause(weights: str, cause: str, advice: list[str]) -> None:
    """The module that is named is that of the weights."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))
    rows, found = causes(module, data(16, 64), data(16, 64), weights=weights, fit_weights=False)
    assert rows["1.relu"].cause == cause
    assert [line[: len(said)] for line, said in zip(found, advice, strict=True)] == advice


def test_what_no_module_has_is_not_to_be_skipped() -> None:
    """A function of the whole network has no path."""
    torch.manual_seed(0)
    module = Plain(lambda _, x: nn.functional.gelu(x * torch.tensor([1000.0] + [1.0] * 63)))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["gelu"].lost > 20  # of all values together little is lost
    assert "skip=" not in advice
    assert 'Quantizer(precision="int16") stores in 16 bits whatever can be' in advice
    assert "To skip gelu, which no module has, call it in a module of its own" in advice


def test_what_has_16_bits_is_not_said_to_have_8() -> None:
    """Nor is it advised to store it in 16. One channel is a million times as large as the others."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), Outlier(), Outlier(), nn.ReLU(), nn.Linear(32, 8)).eval()
    x = data(16, 64)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(precision="int16"), progress=False)
    found = q8.compare(module, program, (x,))
    (relu,) = (layer for layer in found.layers if layer.name == "3.relu")
    assert (relu.stored, relu.cause) == ("int16", "rounding")
    (advice,) = (line for line in found.advice if line.startswith("3.relu"))
    assert advice.startswith("3.relu: 16 bits are too few. Quantizer(skip=['3', ...])")
    assert "int16" not in advice


def test_no_layer_is_named_that_has_little_noise_beside_clipping() -> None:
    """Beside one clipped input that takes nearly all of the signal."""
    clipped = Layer("x", "", "", 2.0, 2.0, 38.0, 0.001, 0, cause="clipping")
    lossy = Layer("mul", "gate", "", 37.0, 37.0, 3.5, 0.0, 1)
    output = Layer("linear", "head", "", 5.0, 5.0, 0.0, 0.0, 2, output=True, cause="before")
    assert [line.partition(":")[0] for line in Comparison((clipped, lossy, output), 40.0, 40.0).advice] == ["x"]


def test_a_difference_inherits_its_noise() -> None:
    """Of values that are nearly equal."""
    module = Plain(lambda _, x: torch.sigmoid(x) - torch.sigmoid(x * 1.01))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["sub"].cause == "before"
    assert advice.startswith("sub: noise of what it reads grows here")


def test_what_is_exact_is_not_said_to_be_clipped() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4)).eval(), data(2, 8).round().clamp(-2, 2)
    compared = q8.compare(module, q8.quantize(module, (x,), [x], progress=False), (torch.zeros(2, 8),))
    assert {layer.cause for layer in compared.layers if layer.snr == 120} <= {"rounding"}
