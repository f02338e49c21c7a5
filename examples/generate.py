"""Text as it comes: a decoder that knows a little Python continues what it is given, its cache on the device.

python -m examples.generate ["def main("] [--tokens 120] [--temperature 0.8 --seed 1]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import needs

needs("torch")
import torch

import q8ta_wgpu as q8
from demo import text
from demo.decoder import CONTEXT, Step, trained

CHUNK = 16
"""Tokens of a prompt that are read at once. CONTEXT is a multiple of it."""


def build(quantizer: q8.Quantizer | None = None, progress: bool = True) -> tuple[q8.Model, text.Tokenizer]:
    """The decoder in int8, for CHUNK tokens, and its tokenizer. It is calibrated by one file, read as one text."""
    decoder, tokenizer = trained()
    tokens = torch.tensor(tokenizer.encode(text.read(text.CALIBRATION[0]))[:CONTEXT])
    places = torch.arange(CONTEXT)
    chunks = [(tokens[at : at + CHUNK], places[at : at + CHUNK]) for at in range(0, CONTEXT, CHUNK)]
    return q8.compile(q8.quantize(Step(decoder).eval(), chunks[0], chunks, quantizer, progress)), tokenizer


class Writer:
    """Two sessions of one model: one reads CHUNK tokens at a time, the other one token, from where the first ends.

    Args:
        model: as `build` gives it.
        device: as Session takes it.
    """

    def __init__(self, model: q8.Model, device: Any = None) -> None:
        self._chunks = q8.Session(model, device)
        self._step = q8.Session(model.reshape((1,), (1,)), device)
        self.name = self._step.name
        self._known: list[int] = []

    def read(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Begins anew with a text, of which the last CONTEXT - 1 tokens count. Returns (TOKENS,) scores of the next."""
        self._known = list(tokens)[1 - CONTEXT :]
        filled = [*self._known, *[0] * (-len(self._known) % CHUNK)]
        self._chunks.reset()
        for at in range(0, len(filled), CHUNK):
            scores = self._chunks(np.array(filled[at : at + CHUNK]), np.arange(at, at + CHUNK))
        self._step.state.update(self._chunks.state)
        found: NDArray[np.float32] = scores[0, (len(self._known) - 1) % CHUNK]
        return found

    def next(self, token: int) -> NDArray[np.float32]:
        """Adds a token; (TOKENS,) scores of the one after it. A full cache is begun anew with its second half."""
        if len(self._known) == CONTEXT:
            return self.read([*self._known[CONTEXT // 2 :], token])
        scores: NDArray[np.float32] = self._step(np.array([token]), np.array([len(self._known)]))[0, 0]
        self._known.append(token)
        return scores

    def write(self, tokens: Sequence[int], temperature: float = 0.0, seed: int = 0) -> Iterator[int]:
        """The tokens that follow a text, without end: the likeliest ones, or drawn at a temperature above 0."""
        generator, scores = np.random.default_rng(seed), self.read(tokens)
        while True:
            token = chosen(scores, temperature, generator)
            yield token
            scores = self.next(token)


def chosen(scores: NDArray[np.float32], temperature: float, generator: np.random.Generator) -> int:
    """The token of the highest score, the first of equals, or one drawn by softmax(scores / temperature)."""
    if temperature <= 0:
        return int(scores.argmax())
    powers = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return int(generator.choice(len(scores), p=powers / powers.sum()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.generate", description=__doc__)
    parser.add_argument("prompt", nargs="?", default="def main(")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("auto", "int8", "int16"), default="auto", help="as Quantizer takes it")
    parser.add_argument("--device", help="as Session takes it")
    options = parser.parse_args(arguments)

    if not options.prompt:
        sys.exit("the prompt is empty: give some text to continue")
    if min(options.tokens, options.seed) < 0:
        parser.error(f"tokens and seed are at least 0, found {options.tokens} and {options.seed}")
    try:
        _write(options)
    except q8.Q8taError as error:
        sys.exit(str(error))


def _write(options: argparse.Namespace) -> None:
    model, tokenizer = build(q8.Quantizer(precision=options.precision))
    writer, prompt = Writer(model, options.device), tokenizer.encode(options.prompt)
    print(options.prompt, end="", flush=True)
    times = []
    for token, _ in zip(writer.write(prompt, options.temperature, options.seed), range(options.tokens), strict=False):
        times.append(time.perf_counter())
        print(tokenizer.strings[token], end="", flush=True)
    rate = (len(times) - 1) / max(times[-1] - times[0], 1e-9) if times else 0.0
    print(f"\n\n{len(times)} tokens on {writer.name}: {rate:.1f} tokens a second")


if __name__ == "__main__":
    main()
