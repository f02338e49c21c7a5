"""Times a decoder of Llama-3.2-1B's shape with random weights and a cache of 1,024 tokens, here and in PyTorch: one
token, and 512 tokens at once (prefill)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.models import read
from bench.networks import cuda_ms
from bench.options import Options
from q8ta_wgpu.session.timing import Timing

LAYERS, WIDTH, HEADS, SHARED, INNER, TOKENS, CONTEXT = 16, 2048, 32, 8, 8192, 128_256, 1024
HEAD = WIDTH // HEADS

FIGURES = Path("docs/decoder.json")


class Layer(nn.Module):
    """Attention of grouped queries and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.queries, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.keys, self.values = (nn.Linear(WIDTH, SHARED * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)


class Decoder(nn.Module):
    """int64 (1, n) token ids and int64 (n,) positions → float32 logits (1, n, TOKENS). Keys and values are cached in
    buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        speeds = 500_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(CONTEXT)[:, None] * speeds.repeat(2)
        for name, value in (("cos", angles.cos()), ("sin", angles.sin()), ("places", torch.arange(CONTEXT))):
            self.register_buffer(name, value, persistent=False)
        for layer in range(LAYERS):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{layer}", torch.zeros(1, SHARED, CONTEXT, HEAD), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See the class."""
        mask = self.get_buffer("places") <= positions[:, None]
        cos, sin = (F.embedding(positions, self.get_buffer(name)) for name in ("cos", "sin"))

        def heads(y: Tensor) -> Tensor:
            return y.view(*y.shape[:2], -1, HEAD).transpose(1, 2)

        def rotated(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat((-second, first), -1) * sin

        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            y = layer.norms[0](x)
            keys, values = self.get_buffer(f"keys{i}"), self.get_buffer(f"values{i}")
            keys.index_copy_(2, positions, rotated(heads(layer.keys(y))))
            values.index_copy_(2, positions, heads(layer.values(y)))
            queries = rotated(heads(layer.queries(y)))
            found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
            x = x + layer.out(found.transpose(1, 2).flatten(2))
            y = layer.norms[1](x)
            x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
        result: Tensor = self.head(self.norm(x))
        return result


Item = tuple[Tensor, Tensor]
"""Token ids and their positions."""


def _item(first: int, count: int) -> Item:
    """`count` random tokens at positions from `first` on."""
    return torch.randint(TOKENS, (1, count)), torch.arange(first, first + count)


def module() -> Decoder:
    """The decoder with random weights."""
    torch.manual_seed(0)
    made = Decoder().eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.02)
    return made


STEMS = {"decoder": 8, "decoder4": 4}
"""Names of saved models, and the bits of their weights."""


def quantized(bits: int) -> q8.Model:
    """The decoder for 1 to CONTEXT tokens a call. Weights of 4 bits have a scale for each 128 inputs.

    Takes some minutes and 16 GB of memory."""
    more: dict[str, Any] = {"weights": "int4", "group": 128} if bits == 4 else {}
    quantizer = q8.Quantizer(precision="int8", fit_weights=False, **more)
    length = torch.export.Dim("n", min=1, max=CONTEXT)
    items = [_item(first, 16) for first in (0, 7, 400, CONTEXT - 16)]
    shapes = [{1: length}, {0: length}]
    return q8.compile(q8.quantize(module(), items[0], items, quantizer=quantizer, dynamic_shapes=shapes))


@torch.no_grad()
def part_decoder(options: Options) -> None:
    """Prints milliseconds of a token and of a prefill, and microseconds by kernel, of models that `python -m bench save
    --names decoder decoder4` wrote; writes docs/decoder.json."""
    timed = {"a token": _item(CONTEXT - 1, 1), "512 tokens": _item(0, 512)}
    saved = {stem: bits for stem, bits in STEMS.items() if any(options.models.glob(f"{stem}.q8ta*"))}
    print(f"left out, since they are not saved: {', '.join(STEMS.keys() - saved) or 'none'}")
    rows = [
        {"": f"weights of {bits} bits", **_times(options, read(options.models, stem), timed)}
        for stem, bits in saved.items()
    ]
    if torch.cuda.is_available():
        half = module().half().cuda()
        compiled = torch.compile(half, mode="reduce-overhead", dynamic=False)
        found = {
            label: round(cuda_ms(torch, functools.partial(compiled, *(x.cuda() for x in item))), 3)
            for label, item in timed.items()
        }
        rows.append({"": "PyTorch float16, compiled, with CUDA graphs", **found})
        print(rows[-1], flush=True)
    now = origin("python -m bench decoder", options.card, ("torch", "wgpu", "wgpudawn"))
    write(FIGURES, {**now, "unit": "milliseconds", "rows": rows}, "rows")


def _times(options: Options, model: q8.Model, timed: Mapping[str, Item]) -> dict[str, float]:
    with q8.Session(model, options.adapter) as session:
        print(session.name)
        found = {}
        for label, item in timed.items():
            session(*item)
            timing = session.time(*item, repeats=50, warmup=50)
            found[label] = round(timing.run_ms, 3)
            print(f"  {timing.run_ms:.3f} ms {label}", flush=True)
            _print_kernels(timing)
        return found


def _print_kernels(timing: Timing) -> None:
    microseconds, calls = dict[str, float](), Counter[str]()
    for dispatch, median in zip(timing.program.dispatches, timing.medians, strict=True):
        microseconds[dispatch.kernel] = microseconds.get(dispatch.kernel, 0.0) + float(median)
        calls[dispatch.kernel] += 1
    for kernel in sorted(microseconds, key=microseconds.__getitem__, reverse=True)[:12]:
        print(f"    {kernel:<28}{calls[kernel]:>5}{microseconds[kernel]:>9.0f} us one by one")
