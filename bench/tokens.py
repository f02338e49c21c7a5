"""How often the demo's decoder chooses float's token, by how it is quantized. It reads files that it was not trained
on, in texts of as many tokens as its cache holds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.options import Options
from demo import text
from demo.decoder import CONTEXT, Decoder, trained
from examples import generate
from testbed.yardstick import symmetric, yardstick

CHUNK = 64
"""Tokens that a session reads at once."""

EVERY = 4
"""One of so many texts is read."""

QUANTIZERS = {
    'precision="auto"': q8.Quantizer(),
    'activations="dynamic", precision="int8"': q8.Quantizer(activations="dynamic", precision="int8"),
    'activations="dynamic"': q8.Quantizer(activations="dynamic"),
    'precision="int16"': q8.Quantizer(precision="int16"),
    'weights="int4", group=32': q8.Quantizer(weights="int4"),
    'weights="int4", group=32, activations="dynamic"': q8.Quantizer(weights="int4", activations="dynamic"),
}

EXACT = 150.0
"""dB that only rounding of float64 leaves."""

Scores = Callable[[Tensor], Tensor]
"""Int64 (CONTEXT,) tokens → float32 (CONTEXT, TOKENS), at each place the scores of the token that follows."""


def held_out(tokenizer: text.Tokenizer) -> list[Tensor]:
    """The texts, side by side in the files, each of CONTEXT tokens."""
    files = (tokenizer.encode(text.read(name)) for name in text.HELD_OUT)
    return [
        torch.tensor(tokens[at : at + CONTEXT])
        for tokens in files
        for at in range(0, len(tokens) - CONTEXT + 1, CONTEXT)
    ]


def by_module(module: Callable[[Tensor], Tensor]) -> Scores:
    """The scores of a module that takes (1, CONTEXT) tokens."""
    return lambda tokens: module(tokens[None])[0]


def by_session(session: q8.Session) -> Scores:
    """The scores of a quantized step that reads CHUNK tokens."""
    places = np.arange(CONTEXT)

    def scores(tokens: Tensor) -> Tensor:
        session.reset()
        starts = range(0, CONTEXT, CHUNK)
        found = [session(tokens[at : at + CHUNK].numpy(), places[at : at + CHUNK])[0] for at in starts]
        return torch.from_numpy(np.concatenate(found))

    return scores


def rounded_weights(decoder: Decoder) -> Decoder:
    """A decoder whose matrices are rounded to int8, all else in float."""
    found = copy.deepcopy(decoder)
    for module in found.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight = nn.Parameter(symmetric(module.weight.detach(), [1]))
    return found


Text = tuple[Tensor, Tensor]
"""The tokens that are read, and their exact scores."""


@torch.no_grad()
def with_scores(texts: Sequence[Tensor], exact: Scores) -> list[Text]:
    """Texts with their exact scores."""
    return [(tokens, exact(tokens)) for tokens in texts]


@torch.no_grad()
def compared(scores: Scores, texts: Sequence[Text]) -> tuple[float, float, float]:
    """The share of tokens whose likeliest next token is the exact one, by what factor perplexity grows, and the ratio
    of signal to noise in dB."""
    same, loss, signal, noise = 0, 0.0, 0.0, 1e-30
    for tokens, wanted in texts:
        found = scores(tokens)
        same += int((found.argmax(1) == wanted.argmax(1)).sum())
        losses = (float(F.cross_entropy(side[:-1], tokens[1:])) for side in (found, wanted))
        loss += next(losses) - next(losses)
        signal += float(wanted.square().sum())
        noise += float((found - wanted).square().sum())
    return same / len(texts) / CONTEXT, math.exp(loss / len(texts)), 10 * math.log10(signal / noise)


def rows(decoder: Decoder, tokenizer: text.Tokenizer, options: Options) -> Iterator[tuple[str, Scores]]:
    """The table's rows: what is quantized, and the scores that it gives."""
    calibration = torch.tensor([tokenizer.encode(text.read(text.CALIBRATION[0]))[:CONTEXT]])
    yield "int8 weights, all else in float", by_module(rounded_weights(decoder))
    yield "int8 weights and inputs of linears, all else in float", by_module(yardstick(decoder, [calibration]))
    for name, quantizer in QUANTIZERS.items():
        model = generate.build(quantizer, progress=False)[0].reshape((CHUNK,), (CHUNK,))
        with q8.Session(model, options.device) as session:
            yield f"`{name}`", by_session(session)


def part_tokens(options: Options) -> None:
    """Prints the rows, and writes docs/tokens.json."""
    decoder, tokenizer = trained()
    texts = with_scores(held_out(tokenizer)[::EVERY], by_module(decoder))
    print(f"{len(texts) * CONTEXT} tokens")
    found: list[dict[str, Any]] = []
    for name, scores in rows(decoder, tokenizer, options):
        same, grown, ratio = compared(scores, texts)
        error = math.sqrt(same * (1 - same) / len(texts) / CONTEXT)
        shares = (round(100 * value, 2) for value in (same, error, grown - 1))
        row = dict(zip(("same", "error", "perplexity"), shares, strict=True))
        found.append({"quantized": name, **row, "snr_db": round(ratio) if ratio < EXACT else None})
        print(found[-1], flush=True)
    now = origin("python -m bench tokens", options.device.name, ("torch",))
    write(Path("docs/tokens.json"), {**now, "tokens": len(texts) * CONTEXT, "rows": found}, "rows")
