"""How a decoder is trained so that int8 hardly changes what it writes.

Three terms are added to the loss. Values that linears read may not reach far beyond their root mean square, since the
largest one makes the step. What rounding changes in the scores counts: a second run adds noise of a step's size, whose
gradient also reaches the largest value (Défossez et al., Differentiable Model Compression via Pseudo Quantization
Noise, 2021). And the likeliest token's score should lead the next one's, since ties are decided by noise.

At last weights are rounded to the steps that int8 has for them, and gradients pass as if they were not (Bengio et al.,
Estimating or Propagating Gradients Through Stochastic Neurons, 2013). Quantizing then changes no weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from demo.decoder import Decoder

LARGEST = 127
"""Steps of the largest weight of a row."""
REACH, LEAD = 4.0, 0.25
"""Root mean squares that a value may reach, and by how much a score should lead, without cost."""
FAR, CLOSE, NOISE = 0.1, 4.0, 1000.0
"""How much the three terms count: values that reach far, scores that are close, and changes by noise."""
WINDOWS = 2
"""Texts of a batch that are run with noise."""


def steps_of(weight: Tensor) -> Tensor:
    """The step of each row of a float32 weight (rows, inputs), as int8 has it: (rows, 1)."""
    return weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST


class _OnSteps(nn.Module):
    """A weight rounded to its steps, with the gradient of one that is not."""

    def forward(self, weight: Tensor) -> Tensor:
        """Float32 (rows, inputs) → the same."""
        step = steps_of(weight)
        return weight + (torch.round(weight / step) * step - weight).detach()


def _matrices(decoder: Decoder) -> list[nn.Module]:
    return [module for module in decoder.modules() if isinstance(module, nn.Linear | nn.Embedding)]


def round_weights(decoder: Decoder) -> None:
    """Lets a decoder compute with rounded weights, while the optimizers change those that are not rounded."""
    for module in _matrices(decoder):
        parametrize.register_parametrization(module, "weight", _OnSteps())


def keep_rounded(decoder: Decoder) -> None:
    """Makes the rounded weights those that the decoder has."""
    for module in _matrices(decoder):
        parametrize.remove_parametrizations(module, "weight")


class Reads:
    """What the linears of a decoder read, as `watched` gives it."""

    def __init__(self) -> None:
        self._noisy = False
        self._far: list[Tensor] = []

    def met(self, x: Tensor) -> Tensor:
        """Counts a value, or adds noise to it."""
        if self._noisy:
            return x + (x.amax() - x.amin()) / 255 * (torch.rand_like(x) - 0.5)
        size = x.detach().square().mean().sqrt()
        self._far.append(F.relu(x.abs() / size - REACH).square().mean())
        return x

    def far(self) -> Tensor:
        """The loss of values that reached far in the last run."""
        found = FAR * torch.stack(self._far).sum()
        self._far.clear()
        return found

    def noise(self, decoder: Decoder, tokens: Tensor, scores: Tensor) -> Tensor:
        """The loss of what noise changes in the scores of tokens: its variance, each token by its probability."""
        tokens, scores = tokens[:WINDOWS], scores[:WINDOWS]
        self._noisy = True
        change: Tensor = decoder(tokens) - scores
        self._noisy = False
        shares = scores.detach().softmax(-1)
        variance = (shares * (change - (shares * change).sum(-1, keepdim=True)).square()).sum(-1)
        found: Tensor = NOISE * variance.mean()
        return found


@contextmanager
def watched(decoder: Decoder) -> Iterator[Reads]:
    """Watches what the linears of a decoder read."""
    reads = Reads()
    norms = [module for module in decoder.modules() if isinstance(module, nn.RMSNorm)]
    others = [linear for block in decoder.layers() for linear in (block.attention.out, block.down)]
    hooks = [
        *(norm.register_forward_hook(lambda _, __, found: reads.met(found)) for norm in norms),
        *(linear.register_forward_pre_hook(lambda _, given: (reads.met(given[0]),)) for linear in others),
    ]
    try:
        yield reads
    finally:
        for hook in hooks:
            hook.remove()


def close(scores: Tensor) -> Tensor:
    """The loss of scores (..., TOKENS) whose largest hardly leads."""
    first, second = scores.topk(2).values.unbind(-1)
    return CLOSE * F.relu(LEAD - (first - second)).mean()
