"""Quantizer(activations="dynamic"): linears read int8 rows, each with a scale that the device chooses, exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError, UnsupportedError
from q8ta_wgpu.runtime.device import Device
from testbed.pt2e import by_torchao
from tests.frontend.test_weights_of_4_bits import Block
from tests.quantizing import Plain, check, data, ops


def _dynamic(weights: str = "int8", precision: str = "int8") -> q8.Quantizer:
    return q8.Quantizer(activations="dynamic", weights=weights, precision=precision)


def _decibels(module: nn.Module, x: Tensor, quantizer: q8.Quantizer) -> tuple[float, q8.Model]:
    """Signal to noise of the outputs, beside float, and the model."""
    model = q8.compile(q8.quantize(module, (x,), [x], quantizer=quantizer, progress=False))
    with torch.no_grad():
        wanted = module(x).numpy()
    found = q8.Session(model, "reference")(x.numpy())
    return float(10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum())), model


def test_a_transformers_block_is_the_reference_and_a_step_from_torch(vulkan: Device) -> None:
    """Four linears with a residual, an activation, slices and a float result behind them; nothing is in float32."""
    torch.manual_seed(0)
    model = check(Block(), (data(2, 9, 64),), vulkan, _dynamic())
    assert ops(model).count("row_scale") == 4
    assert not model.report().float32


def test_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = data(1, 5, 64)
    _, model = _decibels(Block().eval(), x, _dynamic(weights="int4", precision="auto"))
    model.save(tmp_path / "rows.q8ta")
    loaded = q8.load(tmp_path / "rows.q8ta")
    found, expected = (q8.Session(m, "reference")(x.numpy()) for m in (loaded, model))
    np.testing.assert_array_equal(found, expected)


def test_tokens_of_different_sizes_keep_their_signal() -> None:
    """One scale for all of them leaves the small ones nothing."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    x = data(1, 12, 64) * torch.logspace(-2, 1, 12)[None, :, None]
    with torch.no_grad():
        wanted = module(x).numpy()

    def of_tokens(quantizer: q8.Quantizer) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        _, model = _decibels(module, x, quantizer)
        found = q8.Session(model, "reference")(x.numpy()).astype(np.float64)
        return np.asarray(10 * np.log10((wanted**2).sum(-1) / ((found - wanted) ** 2).sum(-1)))

    static, dynamic = of_tokens(q8.Quantizer(precision="int8")), of_tokens(_dynamic())
    assert static.min() < 25
    assert dynamic.min() > 35


def test_linears_of_one_value_share_its_rows(vulkan: Device) -> None:
    """Three readers, of a view of it as well: one scale a row, chosen once."""
    module = Plain(
        lambda m, x: m.a(x) + m.b(x) + m.c(x.reshape(2, 6, 24)).reshape(2, 6, 1, 8),
        a=nn.Linear(24, 8),
        b=nn.Linear(24, 8, bias=False),
        c=nn.Linear(24, 8),
    )
    model = check(module, (data(2, 6, 1, 24),), vulkan, _dynamic())
    assert ops(model).count("row_scale") == 2


def test_compare_shows_what_rows_lose() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), data(3, 24)
    exported = q8.quantize(module, (x,), [x], quantizer=_dynamic(), progress=False)
    comparison = q8.compare(module, exported, (x,))
    assert [layer.snr > 30 for layer in comparison.layers] == [True] * len(comparison.layers)
    assert len(comparison.layers) > 1


def test_convolutions_and_what_is_skipped_stay_as_they_are() -> None:
    module = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.Linear(8, 4)).eval()
    x = data(2, 4, 8)
    quantizer = q8.Quantizer(activations="dynamic", precision="int8", skip=["4"])
    model = q8.compile(q8.quantize(module, (x,), [x], quantizer=quantizer, progress=False))
    assert [op for op in ops(model) if "rows" in op or op == "row_scale"] == ["row_scale", "quantize_rows"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="activations must be 'static' or 'dynamic', found 'int8'"):
        q8.Quantizer(activations="int8")
    with pytest.raises(InputError, match="scales of rows are not trained"):
        q8.Quantizer(qat=True, activations="dynamic")


def _by_x86(module: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """A program of torchao's dynamic quantization, a scale and a zero point for each tensor."""
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=True))
    return by_torchao(module, [(x,)], quantizer)


def test_torchaos_dynamic_programs_have_a_scale_for_each_row(device: Device) -> None:
    """Finer than the one they ask for; nearer to float than theirs."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 8)).eval()
    x = data(5, 40) * torch.tensor([0.1, 1, 3, 0.3, 0])[:, None]
    program = _by_x86(module, x)
    model = q8.compile(program)
    assert ops(model) == ["row_scale", "quantize_rows", "q8ta_linear", "tanh", *ops(model)[:3]]
    expected = q8.Session(model, "reference")(x.numpy())
    with torch.no_grad():
        wanted, theirs = module(x).numpy(), program.module()(x).numpy()
    assert np.abs(expected - wanted).max() < np.abs(theirs - wanted).max()
    with q8.Session(model, device) as session:
        np.testing.assert_allclose(session(x.numpy()), expected, rtol=1e-3, atol=2e-2)  # what tanh gives is rounded


@pytest.mark.parametrize("chosen", ["choose_qparams_per_token", "choose_qparams_per_token_asymmetric"])
def test_scales_chosen_for_each_token_are_those_of_rows(chosen: str) -> None:
    """As ExecuTorch's 8da8w programs have them."""
    quantized = torch.ops.quantized_decomposed
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (8, 16), generator=generator, dtype=torch.int8)

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        ends = (-128, 127, torch.int8)
        scale, zero = getattr(quantized, chosen)(x, torch.int8)
        rounded = quantized.quantize_per_token(x, scale, zero, *ends)
        x = quantized.dequantize_per_token(rounded, scale, zero, *ends, torch.float32)
        given = (m.weight, m.scale, m.zero, 0, -127, 127, torch.int8)
        return nn.functional.linear(x, quantized.dequantize_per_channel(*given))

    module, x = Plain(forward), data(5, 16)
    for name, value in (("weight", weight), ("scale", torch.full((8,), 0.01)), ("zero", torch.zeros(8).int())):
        module.register_buffer(name, value)
    model = q8.compile(torch.export.export(module, (x,)))
    assert ops(model) == ["row_scale", "quantize_rows", "q8ta_linear"]
    real = (x @ (weight.float() * 0.01).T).numpy()
    assert np.abs(q8.Session(model, "reference")(x.numpy()) - real).max() < 0.015 * np.abs(real).max()


def test_other_scales_known_at_run_time_alone_are_refused() -> None:
    quantized = torch.ops.quantized_decomposed

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        scale, zero = quantized.choose_qparams.tensor(x, -(2**15), 2**15 - 1, 1e-6, torch.int16)
        rounded = quantized.quantize_per_tensor.tensor(x, scale, zero, -(2**15), 2**15 - 1, torch.int16)
        result: Tensor = quantized.dequantize_per_tensor.tensor(rounded, scale, zero, -(2**15), 2**15 - 1, torch.int16)
        return result

    program = torch.export.export(Plain(forward), (data(2, 8),))
    with pytest.raises(UnsupportedError, match=r"rounded to 7 or 8 bits, found torch.int16 of -32768..32767"):
        q8.compile(program)
