"""A channel keeps its bias whatever its weights are: where they are zero or tiny, and where the bias is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import epilogue_graphs, op_graphs
from testbed.pt2e import by_torchao
from tests.frontend.test_quantizers import x86_quantizer
from tests.quantizing import data

CHANNELS = ((0.0, 2.0), (0.0, -4.6), (1e-9, 0.3), (0.01, 1e6))
"""What each channel's weights are multiplied with, and its bias."""


def biased(layer: Any) -> Any:
    with torch.no_grad():
        channels = layer.weight.swapaxes(0, 1) if isinstance(layer, nn.ConvTranspose2d) else layer.weight
        for channel, (factor, bias) in enumerate(CHANNELS):
            channels[channel] *= factor
            layer.bias[channel] = bias
    return layer.eval()


HEADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: biased(nn.Linear(6, 5)), (3, 6)),
    "convolution": (lambda: biased(nn.Conv2d(3, 5, 3)), (2, 3, 6, 7)),
    "depthwise": (lambda: biased(nn.Conv2d(4, 4, 3, groups=4)), (1, 4, 6, 7)),
    "transposed": (lambda: biased(nn.ConvTranspose2d(3, 5, 2, stride=2)), (1, 3, 4, 5)),
    "pixel_shuffle": (lambda: nn.Sequential(biased(nn.Conv2d(3, 4, 3)), nn.PixelShuffle(2)).eval(), (1, 3, 6, 7)),
}


CASES: list[tuple[Callable[[], Any] | None, str]] = [(None, head) for head in HEADS]
CASES += [(x86_quantizer, head) for head in HEADS if head != "transposed"]  # which X86Inductor leaves in float


@pytest.mark.parametrize(("quantizer", "head"), CASES)
def test_a_float_head_keeps_the_bias_of_every_channel(
    quantizer: Callable[[], Any] | None, head: str, vulkan: Device
) -> None:
    torch.manual_seed(0)
    make, shape = HEADS[head]
    module, x = make(), data(*shape)
    if quantizer is None:
        program = q8.quantize(module, (x,), [x], progress=False)
    else:
        program = by_torchao(module, [(x,)], quantizer())
    model = q8.compile(program)
    assert model.report().exact
    found = q8.Session(model, "reference")(x)
    simulated = program.module(check_guards=False)(x).detach().numpy()
    np.testing.assert_allclose(found, simulated, rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-6, atol=0.1)
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(x), found)


@pytest.mark.parametrize(
    ("scale", "bias", "reason"),
    [
        (1e-35, 1e6, "its bias 1e+06 is too large for its scale 2.4e-37"),
        (1e-37, 0.0, "the scale of its input times its weight's, 2.4e-39, is no normal float32 number"),
    ],
)
def test_scales_beyond_float32_leave_the_layer_in_float(scale: float, bias: float, reason: str) -> None:
    linear = OPS["linear"]
    graph, inputs = epilogue_graphs.unfused_epilogue(linear, linear.cases[0], op_graphs.SETTINGS[0], "scale")
    graph.constants["w.scale"][0] = scale
    graph.constants["c2"][0] = bias
    expected = reference.run(graph, inputs)
    graph = run_passes(graph)
    assert f"linear stays in float32: {reason}" in graph.notes[0]
    found = reference.run(graph, inputs)
    np.testing.assert_allclose(found["real"], expected["real"], rtol=1e-5)
