"""The demo's decoder: a small network of Llama's kind that continues Python source, and its cache."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from demo.text import Tokenizer

WEIGHTS = Path(__file__).with_name("decoder.safetensors")
TOKENS = 1024
WIDTH, LAYERS, INNER = 128, 4, 384
HEADS, SHARED, HEAD = 4, 2, 32
"""Heads of queries, of keys and values (each serves two of queries), and the width of either."""
CONTEXT = 512
"""Tokens that the cache holds."""


def rotations() -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, float32 (CONTEXT, HEAD) each, the halves of a head side by side."""
    speeds = 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.arange(CONTEXT)[:, None] * speeds.repeat(2)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys (1, heads, n, HEAD), turned by their positions' angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Attention of grouped queries with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.keys = nn.Linear(WIDTH, SHARED * HEAD, bias=False)
        self.values = nn.Linear(WIDTH, SHARED * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def projected(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Float32 (b, n, WIDTH) → queries (b, HEADS, n, HEAD), keys and values (b, SHARED, n, HEAD)."""
        heads = (
            linear(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for linear in (self.queries, self.keys, self.values)
        )
        queries, keys, values = heads
        return rotated(queries, cos, sin), rotated(keys, cos, sin), values

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """What each query finds → (b, n, WIDTH). `mask` is true where a query sees a key."""
        found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        result: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and a gated MLP, each beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(WIDTH, eps=1e-5)
        self.attention = Attention()
        self.before_mlp = nn.RMSNorm(WIDTH, eps=1e-5)
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def mlp(self, x: Tensor) -> Tensor:
        """Float32 (b, n, WIDTH) → the same."""
        x = self.before_mlp(x)
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Decoder(nn.Module):
    """The network over a whole sequence: int64 (b, n) token numbers → float32 (b, n, TOKENS), each place's scores of
    the token that follows it. n is at most CONTEXT."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.cos, self.sin = rotations()

    def layers(self) -> list[Block]:
        """All blocks in order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def scores(self, x: Tensor) -> Tensor:
        """Float32 (b, n, WIDTH) → (b, n, TOKENS), by the embedding's own weights."""
        return F.linear(self.norm(x), self.embedding.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        n = tokens.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
        x = self.embedding(tokens)
        for block in self.layers():
            queries, keys, values = block.attention.projected(block.before_attention(x), self.cos[:n], self.sin[:n])
            x = x + block.attention.attended(queries, keys, values, mask)
            x = x + block.mlp(x)
        return self.scores(x)


class Step(nn.Module):
    """A decoder that keeps the keys and values of what it has read in buffers of fixed size.

    Input: int64 (n,) token numbers and int64 (n,) their positions below CONTEXT. Output: float32 (1, n, TOKENS). What
    lies in the cache behind a position is not seen from there, so a chunk may be filled up with any tokens: later ones
    are written over them.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        for layer in range(LAYERS):
            self.register_buffer(f"keys_{layer}", torch.zeros(1, SHARED, CONTEXT, HEAD), persistent=False)
            self.register_buffer(f"values_{layer}", torch.zeros(1, SHARED, CONTEXT, HEAD), persistent=False)
        self.register_buffer("places", torch.arange(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See the class."""
        mask = self.get_buffer("places") <= positions[:, None]
        cos, sin = F.embedding(positions, self.decoder.cos), F.embedding(positions, self.decoder.sin)
        x = self.decoder.embedding(tokens)[None]
        for layer, block in enumerate(self.decoder.layers()):
            cached_keys, cached_values = self.get_buffer(f"keys_{layer}"), self.get_buffer(f"values_{layer}")
            queries, keys, values = block.attention.projected(block.before_attention(x), cos, sin)
            cached_keys.index_copy_(2, positions, keys)
            cached_values.index_copy_(2, positions, values)
            x = x + block.attention.attended(queries, cached_keys, cached_values, mask)
            x = x + block.mlp(x)
        return self.decoder.scores(x)


def trained(weights: Path = WEIGHTS) -> tuple[Decoder, Tokenizer]:
    """The decoder with the repository's weights, in evaluation mode, and its tokenizer.

    Raises FileNotFoundError when the weights are missing; `python -m demo.train_text` writes them.
    """
    stored = load_file(weights)
    tokenizer = Tokenizer(stored.pop("merges").tolist())
    steps = {name.removesuffix(".step"): stored.pop(name) for name in [*stored] if name.endswith(".step")}
    decoder = Decoder()
    decoder.load_state_dict({name: value * steps.get(name, 1.0) for name, value in stored.items()})
    return decoder.eval(), tokenizer
