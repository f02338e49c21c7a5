"""q8.compare finds the layer that hurts, and Quantizer(skip=[...]) leaves it in float."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from tests.quantizing import conv, data


class Outliers(nn.Module):
    """One channel is a thousand times as large as the others, so that one scale for all fits none."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, h, w) → the same."""
        return x * torch.tensor([1000.0, 1, 1, 1]).reshape(1, 4, 1, 1)


class Damped(nn.Module):
    """Undoes Outliers after a convolution of each channel by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, h, w) → the same."""
        y: Tensor = self.depthwise(x) * torch.tensor([0.001, 1, 1, 1]).reshape(1, 4, 1, 1)
        return y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 4), nn.Sequential(Outliers(), Damped()), nn.ReLU(), conv(4, 3), nn.SiLU()).eval()


def quantized(
    module: nn.Module, quantizer: q8.Quantizer | None = None, scale: float = 1.0
) -> torch.export.ExportedProgram:
    x = data(2, 3, 8, 8)
    return q8.quantize(module, (x,), [x * scale], quantizer, progress=False)


def test_the_layer_that_hurts_comes_first_and_can_be_skipped(tmp_path: Path) -> None:
    module, x = network(), data(2, 3, 8, 8, seed=5)
    found = q8.compare(module, quantized(module), (x.clone().requires_grad_(),))
    worst = found.layers[0]
    assert worst.lost > 10
    assert worst.module.startswith("1.")
    assert f"Quantizer(skip=[{worst.module!r}, ...])" in str(found)
    assert all(abs(layer.snr - layer.simulated) < 1 for layer in found.layers)
    program = quantized(module, q8.Quantizer(skip=["1"]))
    better = q8.compare(module, program, (x,))
    assert max(layer.lost for layer in better.layers) < 10
    assert {"mul", "conv2d"} <= set(q8.compile(program).report().float32)
    found.plot(tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 1000
    for wrong in ("none/layers.png", "layers.docx"):
        with pytest.raises(q8.InputError, match="cannot write"):
            found.plot(tmp_path / wrong)


def test_clipping_is_told_from_coarse_steps() -> None:
    module, x = network(), data(2, 3, 8, 8)
    found = q8.compare(module, quantized(module, scale=0.2), (x,))
    assert any(layer.clipped > 0.05 and "calibrate" in layer.advice for layer in found.layers)


def test_another_module_is_refused() -> None:
    module, x = network(), data(2, 3, 8, 8)
    with pytest.raises(q8.InputError, match="was not made from this module"):
        q8.compare(nn.Sequential(conv(3, 4), nn.ReLU()).eval(), quantized(module), (x,))


def test_skip_names_a_module() -> None:
    with pytest.raises(q8.InputError, match="skip names 'head'"):
        quantized(network(), q8.Quantizer(skip=["head"]))
    with pytest.raises(q8.InputError, match=r"skip=\['head'\]"):
        q8.Quantizer(skip="head")


def test_a_batch_of_any_size() -> None:
    """Programs with a dynamic batch are compared on the batch that is given, be it one."""
    module, x = Windows().eval(), data(1, 4, 4, 4)
    program = q8.quantize(module, (x,), [x], progress=False, dynamic_batch=True)
    for batch in (1, 3):
        found = q8.compare(module, program, (data(batch, 4, 4, 4),))
        assert {layer.name for layer in found.layers} >= {"x", "relu"}
        assert min(layer.snr for layer in found.layers) > 15


class Windows(nn.Module):
    """Windows of rows, whose number follows from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, 4, 4) → the same."""
        n = x.shape[0]
        y: Tensor = self.linear(x.reshape(n * 2, 4, 8)).relu().reshape(n, 4, 4, 4)
        return y


def test_a_stream_that_is_read_in_int8_as_well() -> None:
    """Residual sums are stored in int16, and rounded again for what reads them in int8."""

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            """(n, 6) → (n, 8)."""
            x = self.first(x)
            x = x + self.second(self.norm(x))
            x = x + self.second(self.norm(x))
            return torch.relu(x)

    torch.manual_seed(0)
    module, x = Stream().eval(), data(4, 6)
    program = q8.quantize(module, (x,), [x], progress=False)
    found = q8.compare(module, program, (x,))
    assert min(layer.snr for layer in found.layers) > 20
