"""Networks with attention that are known to lose accuracy in 8 bits: decoders, sinks, masks, experts. Weights are
random."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.suite.data import CHARACTERS

WIDTH, HEADS = 64, 4

EMBEDDED = 0.02
"""Standard deviation of decoders' embeddings."""

Norm = Callable[[int], nn.Module]


class RootMeanSquare(nn.Module):
    """An RMS norm written by hand, as in transformers' decoders. Gemma stores weights minus 1."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = offset
        self.weight = nn.Parameter(torch.randn(width) * 0.1 + 1 - offset)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) → the same."""
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y * (self.offset + self.weight)


def rotated(x: Tensor) -> Tensor:
    """Rotary embedding of x (n, heads, tokens, width) by position."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class DecoderLayer(nn.Module):
    """Attention to earlier tokens with half as many heads for keys and values, and a gated perceptron.

    Args:
        norm: makes a norm for a width.
        heads_normed: whether queries and keys are normalized (Qwen3).
        cap: soft upper bound of scores (Gemma2, which also normalizes the results of branches); 0 for none.
    """

    def __init__(self, norm: Norm, heads_normed: bool, cap: float) -> None:
        super().__init__()
        self.width, self.cap = WIDTH // HEADS, cap
        linear = partial(nn.Linear, bias=False)
        self.q, self.k, self.v = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH // 2), linear(WIDTH, WIDTH // 2)
        self.out = linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = (
            linear(WIDTH, 2 * WIDTH),
            linear(WIDTH, 2 * WIDTH),
            linear(2 * WIDTH, WIDTH),
        )
        self.before = nn.ModuleList(norm(WIDTH) for _ in range(2))
        self.behind = nn.ModuleList(norm(WIDTH) if cap else nn.Identity() for _ in range(2))
        self.of_heads = nn.ModuleList(norm(self.width) if heads_normed else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) → the same."""
        x = x + self.behind[0](self.out(self.attended(self.before[0](x))))
        y = self.before[1](x)
        gate = F.gelu(self.gate(y), approximate="tanh") if self.cap else F.silu(self.gate(y))
        z: Tensor = x + self.behind[1](self.down(gate * self.up(y)))
        return z

    def attended(self, x: Tensor) -> Tensor:
        """The contexts of all heads, concatenated."""
        n, tokens, _ = x.shape
        q, k, v = (each(x).reshape(n, tokens, -1, self.width).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = rotated(self.of_heads[0](q)), rotated(self.of_heads[1](k))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        y: Tensor
        if self.cap:
            scores = q @ k.transpose(-1, -2) * self.width**-0.5
            scores = (torch.tanh(scores / self.cap) * self.cap).masked_fill(later, -torch.inf)
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=~later)
        return y.transpose(1, 2).flatten(2)


class Decoder(nn.Module):
    """A decoder from embeddings to scores of the next token."""

    def __init__(
        self, norm: Norm, heads_normed: bool = False, cap: float = 0.0, depth: int = 2, outputs: int = 128
    ) -> None:
        super().__init__()
        self.cap = cap
        self.layers = nn.Sequential(*(DecoderLayer(norm, heads_normed, cap) for _ in range(depth)))
        self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, outputs, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):  # as transformers initializes them, and embeddings
                nn.init.normal_(module.weight, std=EMBEDDED)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) → (n, tokens, outputs)."""
        scores: Tensor = self.head(self.norm(self.layers(x)))
        return torch.tanh(scores / 30) * 30 if self.cap else scores


def qwen3() -> nn.Module:
    return Decoder(RootMeanSquare, heads_normed=True)


def gemma2() -> nn.Module:
    return Decoder(partial(RootMeanSquare, offset=1.0), cap=50.0)


def llama() -> nn.Module:
    """A decoder with torch's norm, by which the sums between its layers are recognized as a residual stream."""
    return Decoder(partial(nn.RMSNorm, eps=1e-6))


def rms_by_hand() -> nn.Module:
    """A decoder of five layers, with norms written as pow, mean and rsqrt."""
    return Decoder(RootMeanSquare, depth=5)


def characters() -> nn.Module:
    """A decoder that predicts the next character of a text; norms are written by hand."""
    decoder = Decoder(RootMeanSquare, depth=3, outputs=len(CHARACTERS))
    return nn.Sequential(nn.Linear(len(CHARACTERS), WIDTH, bias=False), decoder)


class Sink(nn.Module):
    """Attention with a sink: a token to which all others attend, as in trained networks (Xiao et al., Efficient
    Streaming Language Models with Attention Sinks, 2023)."""

    def __init__(self, tokens: int, share: float) -> None:
        super().__init__()
        self.heads = 2
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wanted = math.log(share / (1 - share) * (tokens - 1))
        width = WIDTH // self.heads
        query, key = torch.zeros(3 * WIDTH), torch.zeros(1, self.heads, 1, width)
        query[:WIDTH:width] = math.sqrt(wanted) * width**0.25
        key[..., 0] = math.sqrt(wanted) * width**0.25
        self.qkv.bias = nn.Parameter(self.qkv.bias.detach() + query)
        self.key = nn.Parameter(key)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens - 1, width) → (n, tokens, width)."""
        x = torch.cat([self.first.expand(len(x), 1, WIDTH), x], 1)
        n, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        k = torch.cat([k[:, :, :1] + self.key, k[:, :, 1:]], 2)
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


def sink577() -> nn.Module:
    return Sink(577, 0.5)


def sink197() -> nn.Module:
    return Sink(197, 0.8)


class MaskedPooling(nn.Module):
    """The sum of features weighted by a masked softmax of scores, or the index of the best score."""

    def __init__(self, best: bool = False) -> None:
        super().__init__()
        self.best = best
        self.features, self.score, self.head = nn.Linear(32, 32), nn.Linear(32, 1), nn.Linear(32, 10)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(n, positions, 32), (n, positions) → (n, 10), or the index (n,)."""
        y = torch.tanh(self.features(x))
        scores: Tensor = self.score(y).squeeze(-1).masked_fill(~mask, -1e9)
        if self.best:
            return scores.argmax(-1)
        z: Tensor = self.head((scores.softmax(-1).unsqueeze(-1) * y).sum(1))
        return z


class PaddedEncoder(nn.Module):
    """torch's encoder; a mask says which tokens are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """(n, tokens, width), (n, tokens) → (n, 10)."""
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(-1).float()
        y: Tensor = self.head((x * real).sum(1) / real.sum(1))
        return y


class Experts(nn.Module):
    """A mixture of experts: a gate selects two of four perceptrons for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) → the same."""
        weights = self.gate(x).softmax(-1)
        best, which = weights.topk(2, -1)
        chosen = torch.zeros_like(weights).scatter(-1, which, best / best.sum(-1, keepdim=True))
        y = x
        for i, expert in enumerate(self.experts):
            y = y + chosen[..., i : i + 1] * expert(x)
        return y


class KeywordTransformer(nn.Module):
    """Frames of a spectrum as tokens, norms last (Berg et al., Keyword Transformer, 2021)."""

    def __init__(self, bands: int = 20, frames: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(bands, WIDTH)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.places = nn.Parameter(torch.randn(1, frames + 1, WIDTH) * 0.02)
        layers = (nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, F.gelu, batch_first=True) for _ in range(3))
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, frames, bands) → (n, classes)."""
        tokens = torch.cat([self.first.expand(len(x), 1, WIDTH), self.embed(x)], 1) + self.places
        scores: Tensor = self.head(self.layers(tokens)[:, 0])
        return scores
