"""Networks that int8 alone leaves below the yardstick, each for a reason of its own, with inputs by a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from tests.quantizing import Plain, conv, data

FREQUENCIES = torch.exp(-torch.arange(8.0))
WITHIN, ENOUGH = 1.5, 60.0
"""dB below the yardstick that other inputs than those of the calibration may have, and from which more is no matter."""


def _heads(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def _timestep(m: Any, time: Tensor) -> Tensor:
    angles = time[:, None] * FREQUENCIES
    found: Tensor = m.head(torch.cat([angles.sin(), angles.cos()], 1))
    return found


def sink(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).reshape(1, 197, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
    bias = torch.zeros(197, 197)
    bias[:, 0] = math.log(0.8 * 197 / 0.2)
    y: Tensor = m.head(F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))
    return y


def _columns(m: Any, x: Tensor) -> Tensor:
    found: Tensor = m.head(F.layer_norm(x, (12,))) + 1e-3 * m.whole(x)
    return found


def _small_part(m: Any, x: Tensor) -> Tensor:
    part = 0.02 * m.part(x)
    found: Tensor = m.own(part) + 1e-4 * m.head(torch.cat([part, x], 1))
    return found


def _masked_spectrum(m: Any, x: Tensor) -> Tensor:
    window = torch.hann_window(32)
    spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
    mask = torch.sigmoid(m.head(spectrum.abs().mT)).mT
    sound: Tensor = torch.istft(spectrum * mask, 32, 8, window=window, length=x.shape[-1])
    return sound


def _messages(m: Any, x: Tensor) -> Tensor:
    sources, targets = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 7], [1, 2, 3, 4, 5, 0, 3, 5, 1, 6]])
    found = (x + 1e-3 * m.head(x))[sources]
    weights = (found[:, 0] - x[targets, 1]).exp()
    shares = weights / torch.zeros(8).index_add(0, targets, weights)[targets]
    return torch.zeros_like(x).index_add(0, targets, shares[:, None] * found)


def _factorization(m: Any, x: Tensor) -> Tensor:
    """The products of all pairs of rows, and a network of them."""
    rows = m.table(x)
    pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(-1, keepdim=True)
    return torch.sigmoid(0.05 * pairs + m.head(rows.flatten(1)))


def _shares(m: Any, x: Tensor) -> Tensor:
    """Of two powers each, of which both may be nearly nothing."""
    first, second = (6 * x).exp().chunk(2, -1)
    found: Tensor = m.head(first / (first + second))
    return found


def _powers(seed: int) -> Tensor:
    """From e^-9 to e^9; the first ones, which are simulated, from e^5."""
    return data(4, 32, seed=seed).clamp(-1.5 if seed > 1 else 0.9, 1.5)


def norms(m: Any, x: Tensor) -> Any:
    return sum(head(F.layer_norm(x * x.mean(-1, True).cos(), (12,))) for head in m.heads)


def _soft_argmax(m: Any, x: Tensor) -> Tensor:
    weights = (8 * F.conv2d(x, m.heat.weight.abs())).flatten(2).softmax(-1)
    return (weights * torch.linspace(-1, 1, weights.shape[-1])).sum(-1)


def _peaks(seed: int) -> Tensor:
    """Within ±1; the last of all has a corner of ones, where scores are larger than any before."""
    x = data(4, 3, 12, 12, seed=seed).clamp(-1, 1)
    x[:, :, :4, :4] = 1.0 if seed == 9 else x[:, :, :4, :4]
    return x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "a timestep": (lambda: Plain(_timestep, head=_heads(16, 4)), lambda s: 1000 * data(16, seed=s).abs()),
    "a table's columns": (
        lambda: Plain(_columns, head=_heads(12, 3), whole=nn.Linear(12, 3)),
        lambda s: 290 + data(32, 12, seed=s),
    ),
    "attention behind a sink": (
        lambda: Plain(sink, qkv=nn.Linear(32, 96), head=nn.Linear(32, 32)),
        lambda s: data(1, 197, 32, seed=s),
    ),
    "a small part of a cat, read by itself": (
        lambda: Plain(_small_part, part=conv(3, 4), own=conv(4, 4), head=conv(7, 4)),
        lambda s: data(1, 3, 12, 12, seed=s),
    ),
    "peaks that calibration did not have": (
        lambda: Plain(_soft_argmax, heat=conv(3, 4)),
        _peaks,
    ),
    "tokens mixed by Fourier transforms": (
        lambda: Plain(
            lambda m, x: m.head(F.layer_norm(torch.fft.fft2(m.first(x)).real, (16,))),
            first=nn.Linear(16, 16),
            head=nn.Linear(16, 4),
        ),
        lambda s: data(2, 12, 16, seed=s) + 2.0,
    ),
    "a spectrum that a mask changes": (
        lambda: Plain(_masked_spectrum, head=_heads(17, 17)),
        lambda s: data(1, 256, seed=s),
    ),
    "messages that are added up": (
        lambda: Plain(_messages, head=nn.Linear(32, 32)),
        lambda s: data(8, 32, seed=s),
    ),
    "rows of a table": (
        lambda: Plain(
            lambda m, x: m.head(F.rms_norm(m.table(x), (32,))), table=nn.Embedding(64, 32), head=nn.Linear(32, 16)
        ),
        lambda s: torch.randint(0, 64, (2, 32), generator=torch.Generator().manual_seed(s)),
    ),
    "pairs of rows of a table": (
        lambda: Plain(_factorization, table=nn.Embedding(64, 16), head=_heads(96, 1)),
        lambda s: torch.randint(0, 64, (8, 6), generator=torch.Generator().manual_seed(s)),
    ),
    "shares of next to nothing": (
        lambda: Plain(_shares, head=nn.Linear(16, 16)),
        _powers,
    ),
    "buckets": (
        lambda: Plain(
            lambda m, x: m.head(m.table(torch.bucketize(x, torch.linspace(-2, 2, 32)))),
            table=nn.Embedding(33, 16),
            head=_heads(16, 4),
        ),
        lambda s: data(1, 64, seed=s),
    ),
}


def quantized(module: nn.Module, batches: list[Tensor], choice: str = "auto") -> torch.export.ExportedProgram:
    quantizer = q8.Quantizer(precision=choice)
    return q8.quantize(module, (batches[0],), batches, quantizer, progress=False)
