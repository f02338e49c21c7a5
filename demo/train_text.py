"""Train the demo's decoder: `python -m demo.train_text` writes demo/decoder.safetensors.

On the standard library's source (`demo.text`), less than twice through, in less than half an hour on one core, so that
int8 changes little (`demo.steady`). Weights are stored in int8. On one kind of processor, with one version of Python
and one number of threads, they repeat byte for byte.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from demo import steady, text
from demo.decoder import CONTEXT, TOKENS, WEIGHTS, Decoder, trained

BATCH = 8
STEPS = 1000


def batches(tokens: Tensor, steps: int) -> Iterator[Tensor]:
    """Windows of CONTEXT tokens and the one that follows them, anywhere in the text."""
    for _ in range(steps):
        starts = torch.randint(len(tokens) - CONTEXT - 1, (BATCH,)).tolist()
        yield torch.stack([tokens[start : start + CONTEXT + 1] for start in starts]).long()


def loss_of(scores: Tensor, windows: Tensor) -> Tensor:
    """Mean cross entropy of each token after those before it, in nats, by a decoder's scores."""
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def whole_loss(decoder: Decoder, windows: Tensor, reads: steady.Reads, late: bool) -> Tensor:
    """With what makes a decoder robust; most of that only in the later half, when it has learnt."""
    scores = decoder(windows[:, :-1])
    loss = loss_of(scores, windows) + reads.far()
    return loss + steady.close(scores) + reads.noise(decoder, windows[:, :-1], scores) if late else loss


def fit(decoder: Decoder, tokens: Tensor, steps: int) -> None:
    """Muon for the matrices of layers, AdamW for the rest; rates rise over the first twentieth, then fall to 0."""
    matrices = [p for name, p in decoder.named_parameters() if p.dim() == 2 and "embedding" not in name]
    rest = [p for name, p in decoder.named_parameters() if p.dim() == 1 or "embedding" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    warmup = max(1, steps // 20)

    def rate(step: int) -> float:
        return min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    start = time.perf_counter()
    with steady.watched(decoder) as reads:
        for step, windows in enumerate(batches(tokens, steps)):
            if step == int(0.6 * steps):
                steady.round_weights(decoder)
            loss = whole_loss(decoder, windows, reads, late=step >= steps // 2)
            decoder.zero_grad()
            torch.autograd.backward(loss)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            if not (step + 1) % 20 or step + 1 == steps:
                seconds = time.perf_counter() - start
                print(f"step {step + 1} of {steps}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    steady.keep_rounded(decoder)


@torch.inference_mode()
def perplexity(decoder: Decoder, tokens: Tensor) -> float:
    """Of windows of CONTEXT tokens, side by side."""
    windows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT).long()
    return math.exp(float(loss_of(decoder(windows[:, :-1]), windows)))


def stored(decoder: Decoder) -> dict[str, Tensor]:
    """A decoder's weights as its file has them: matrices in int8 with a step for each row, the rest in float32."""
    found: dict[str, Tensor] = {}
    for name, value in decoder.state_dict().items():
        if value.dim() == 2:
            found[f"{name}.step"] = step = steady.steps_of(value)
            value = torch.round(value / step).to(torch.int8)
        found[name] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.train_text", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1, help="processors that torch uses")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    options = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    texts = [text.read(name) for name in text.training()]
    merges = text.learn_merges(texts, TOKENS)
    tokenizer = text.Tokenizer(merges)
    tokens = torch.tensor([token for source in texts for token in tokenizer.encode(source)], dtype=torch.int16)
    print(f"{len(texts)} files, {sum(map(len, texts))} characters, {len(tokens)} tokens", flush=True)

    decoder = Decoder()
    torch.nn.init.normal_(decoder.embedding.weight, std=0.02)  # of scores, too
    fit(decoder, tokens, options.steps)
    save_file({**stored(decoder), "merges": torch.from_numpy(np.array(merges, np.int16))}, options.output)

    decoder, tokenizer = trained(options.output)
    for name in text.HELD_OUT:
        print(f"{name}: perplexity {perplexity(decoder, torch.tensor(tokenizer.encode(text.read(name)))):.2f}")


if __name__ == "__main__":
    main()
