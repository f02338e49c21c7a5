"""Weights are rounded by their inputs: less of the error reaches the outputs, and none on average."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.rounded import rounded
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, QParams
from q8ta_wgpu.quantization.weight_rounding import Inputs, covariance_of
from tests.quantizing import Plain, data


def module() -> nn.Module:
    """Layers of every kind that is told apart, each reading what does not come from another."""
    torch.manual_seed(0)
    return Plain(
        lambda s, x: (s.a(x), s.b(x), s.c(x), s.d(x.flatten(2))),
        a=nn.Conv2d(6, 6, 3, dilation=2, groups=6, bias=False),
        b=nn.ConvTranspose2d(6, 4, 2, 2, groups=2),
        c=nn.Linear(20, 7),
        d=nn.Conv1d(6, 8, 5, stride=2, padding=1, groups=2),
    ).eval()


def smooth(seed: int) -> Tensor:
    """Pixels that vary with their neighbours, and have a mean."""
    return F.interpolate(data(16, 6, 5, 5, seed=seed).abs() + 1, scale_factor=4, mode="bilinear")


def with_float_activations(program: torch.export.ExportedProgram) -> Any:
    """The program with nothing rounded but weights."""
    found: Any = program.module()
    for node in found.graph.nodes:
        if "dequantize_per_tensor" in str(node.target):
            node.replace_all_uses_with(node.args[0].args[0])
    found.recompile()
    return found


def errors(fit: bool) -> tuple[list[float], list[float]]:
    """Of each layer, on what calibration did not meet: by how much its channels move on average, and vary around it."""
    whole, x = module(), smooth(1)
    weights = {name: value.clone() for name, value in whole.state_dict().items()}
    program = q8.quantize(whole, (x,), [x, smooth(2)], q8.Quantizer(fit_weights=fit), progress=False)
    assert all(torch.equal(value, weights[name]) for name, value in whole.state_dict().items())
    moved, varied = [], []
    with torch.no_grad():
        x = smooth(3)
        # A linear's outputs are its last dimension.
        axes = ((0, 2, 3), (0, 2, 3), (0, 1, 2), (0, 2))
        for found, exact, other in zip(with_float_activations(program)(x), whole(x), axes, strict=True):
            moved.append(float((found - exact).mean(other).abs().sum()))
            varied.append(float((found - exact).var(other).sum()))
    return moved, varied


def test_weights_take_over_the_errors_of_others() -> None:
    (moved, varied), (moved_before, varied_before) = errors(True), errors(False)
    assert all(now < before / 3 for now, before in zip(moved, moved_before, strict=True)), (moved, moved_before)
    told = [ratio for i, ratio in enumerate(a / b for a, b in zip(varied, varied_before, strict=True)) if i != 1]
    assert max(told) < 0.8, told


def test_inputs_that_do_not_vary() -> None:
    """Calibration that repeats a row tells no input from another, and is no error."""
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 4).eval(), torch.linspace(0.3, 1.7, 64).expand(512, 64).contiguous()
    model = q8.compile(q8.quantize(layer, (x,), [x], progress=False))
    found = torch.from_numpy(q8.Session(model, "reference")(x))
    assert (found - layer(x)).abs().max() < 0.02


def test_rows_of_all_tokens_are_met() -> None:
    """And pixels of every phase: steps of as many rows as an input has, or an even number, meet one kind alone."""
    torch.manual_seed(0)
    tokens, pixels = torch.zeros(512, 16, 16), torch.zeros(64, 16, 16, 16)
    tokens[:, range(16), range(16)] = data(512, 16)
    for place in range(16):  # of every four by four pixels
        pixels[:, place, place // 4 :: 4, place % 4 :: 4] = data(64, 4, 4, seed=place)
    of_linear = Inputs((3, 16), [], 1, told=True)
    of_conv = Inputs((3, 16, 1, 1), [(1, (0, 0), 1)] * 2, 1, told=True)
    for met, x in ((of_linear, tokens), (of_conv, pixels)):
        met.meet(x.numpy())
        covariance = covariance_of([met])
        assert covariance is not None
        variances = covariance.diagonal(axis1=1, axis2=2)
        assert float(variances.min() / variances.mean()) > 0.2, variances


@pytest.mark.parametrize("largest", [1e-5, 1.0, 1e6])
@pytest.mark.parametrize(("zero", "dtype"), [(0, INT8X4), (-5, INT8X4), (127, INT8X4), (0, INT16X4)])
def test_steps_have_the_bits_of_torchs_fake_quantize(largest: float, zero: int, dtype: str) -> None:
    """Halves between steps, what is clipped and zeros, too."""
    q = QParams(float(torch.tensor(0.037)), zero, dtype)
    steps = (data(500) / q.scale).round() * q.scale / 2
    x = largest * torch.cat([data(5000), steps, torch.tensor([0.0, -0.0, -1e-9])])
    wanted = torch.fake_quantize_per_tensor_affine(x, q.scale, zero, *q.range)
    assert torch.equal(rounded(x, q).view(torch.int32), wanted.view(torch.int32))
