"""Complex numbers as pairs of real ones, against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.export.decompose import decomposed
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import INT8, Plain, check, data

X = data(2, 3, 6, 7)
TURNS = torch.polar(torch.ones(3, 6), torch.arange(18.0).reshape(3, 6))


def spectrum(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)


def mixed(x: Tensor) -> Tensor:
    """A learned filter of frequencies, as GFNet's."""
    weight = torch.view_as_complex(data(6, 4, 2))
    frequencies = torch.fft.rfft2(x, norm="ortho")
    result: Tensor = torch.fft.irfft2(frequencies * weight, s=(6, 7), norm="ortho")
    return result


def turned(x: Tensor) -> Tensor:
    """Queries turned by their position, as LLaMA's."""
    pairs = torch.view_as_complex(x[..., :6].contiguous().reshape(2, 3, 6, 3, 2))
    return torch.view_as_real(pairs * TURNS.mT).flatten(3)


def arithmetic(x: Tensor) -> Tensor:
    z = torch.complex(x, x.flip(1))
    z = (z + 1.5 - z.conj() * x) / (z * z.conj() + 2.0) - x
    z = z * (1 + 2j) + 3j
    return (x - z).roll(1, 2).sum(1).abs()


def operator_of_frequencies(x: Tensor) -> Tensor:
    """A product with a matrix of its own for each of the lowest frequencies, as a Fourier neural operator's."""
    weight = torch.view_as_complex(data(3, 4, 3, 3, 2))
    frequencies = torch.fft.rfft2(x)
    made = torch.zeros(2, 4, 6, 4, dtype=torch.cfloat)
    made[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", frequencies[:, :, :3, :3], weight)
    result: Tensor = torch.fft.irfft2(made, s=(6, 7))
    return result


def products(x: Tensor) -> tuple[Tensor, ...]:
    z, matrix = torch.fft.rfft(x), torch.view_as_complex(data(4, 5, 2))
    found = z @ matrix, z @ z.mT, torch.bmm(z[0], z[1].mT)
    return tuple(map(torch.view_as_real, found))


def divided(x: Tensor) -> Tensor:
    z = torch.fft.rfft(x) + (9 + 3j)
    result: Tensor = (1 / z + 2j / z + x[..., :4] / z + z / 3j + (3j - z)).abs()
    return result


CASES: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "a spectrogram": (lambda x: spectrum(x).abs() ** 2, data(2, 40)),
    "its parts": (lambda x: torch.view_as_real(spectrum(x)), data(40)),
    "there and back": (
        lambda x: torch.istft(spectrum(x), 16, 4, window=torch.hann_window(16)),
        data(1, 40),
    ),
    "both dimensions": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, X),
    "of real numbers alone": (lambda x: torch.fft.fft2(x).imag, X),
    "and back": (lambda x: torch.fft.ifft2(torch.fft.fft2(x), norm="forward").real, X),
    "odd and even": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x), 7) + torch.fft.irfft(torch.fft.rfft(x, 6), 6).mean(),
        X,
    ),
    "padded": (lambda x: F.pad(torch.fft.rfft(x), (1, 2), value=0.5).abs(), X),
    "angles": (lambda x: torch.fft.rfft(x, dim=1).angle(), X),
    "a filter": (mixed, X),
    "positions": (turned, X),
    "arithmetic": (arithmetic, X),
    "an operator of frequencies": (operator_of_frequencies, X),
    "products of matrices": (products, X),
    "divided": (divided, X),
    "polar": (lambda x: torch.polar(x.abs(), x).real, X),
}


@pytest.mark.parametrize("name", CASES)
def test_pairs_compute_what_complex_numbers_do(name: str) -> None:
    function, x = CASES[name]
    module = Plain(lambda _, x: function(x)).eval()
    program = decomposed(torch.export.export(module, (x,)))
    varying = {node for node in program.graph.nodes if node.op == "call_function"}
    assert not any(node.meta["val"].is_complex() for node in varying if isinstance(node.meta["val"], Tensor))
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_spectrogram_in_int8(vulkan: Device) -> None:
    class Front(nn.Module):
        """Buffers may be complex, too."""

        turns: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turns", TURNS[0])

        def forward(self, x: Tensor) -> Tensor:
            size: Tensor = (torch.fft.rfft(x, 10) * self.turns).abs()
            return size

    x = data(3, 4, 10)
    model = check(Front(), (x,), vulkan)
    found, exact = q8.Session(model, "reference")(x.numpy()), Front()(x).numpy()
    assert float(abs(found - exact).max()) < 0.04 * float(exact.max())


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (torch.fft.rfft, r"_fft_r2c.*a result must be torch.view_as_real of them"),
        (lambda x: (2j - torch.fft.rfft(x) ** 2).abs(), r"pow.Tensor_Scalar at .*: it is not supported for complex"),
    ],
)
def test_complex_numbers_are_refused_by_name(function: Callable[[Tensor], Tensor], text: str) -> None:
    with pytest.raises(q8.UnsupportedError, match=text):
        q8.quantize(Plain(lambda _, x: function(x)).eval(), (X,), calibration=[X], quantizer=INT8, progress=False)
