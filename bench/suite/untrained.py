"""The networks with random weights, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import nn

from bench.suite import attention, hard
from bench.suite.data import Array

Inputs = tuple[Array | NDArray[np.bool_], ...]
Draw = Callable[[Generator, int], Inputs]


def normal(*shape: int, std: float = 1.0) -> Draw:
    return lambda rng, count: (rng.normal(0, std, (count, *shape)).astype(np.float32),)


def uniform(low: float, high: float, *shape: int) -> Draw:
    return lambda rng, count: (rng.uniform(low, high, (count, *shape)).astype(np.float32),)


def _images(channels: int, side: int) -> Draw:
    """Images of coarse and fine shapes, in 0..1."""

    def draw(rng: Generator, count: int) -> Inputs:
        x = torch.zeros(count, channels, side, side)
        for size in (3, 7, side):
            coarse = torch.from_numpy(rng.uniform(size=(count, channels, size, size)).astype(np.float32))
            x += nn.functional.interpolate(coarse, (side, side), mode="bilinear") / size**0.5
        return ((x / x.amax((1, 2, 3), keepdim=True)).numpy(),)

    return draw


def _sparse(rng: Generator, count: int) -> Inputs:
    """Images with few large values."""
    return (rng.normal(size=(count, 3, 24, 24)).astype(np.float32) ** 3,)


def _columns(rng: Generator, count: int) -> Inputs:
    return (rng.normal(hard.MEANS, hard.DEVIATIONS, (count, len(hard.MEANS))).astype(np.float32),)


def _kelvin(rng: Generator, count: int) -> Inputs:
    return (rng.normal(290, 1, (count, 16)).astype(np.float32),)


def _masked(width: int, padding: bool, rng: Generator, count: int) -> Inputs:
    """24 tokens, of which at least eight are not padding, and a mask of the padding, or of the others."""
    later = np.arange(24) >= rng.integers(8, 25, (count, 1))
    return rng.normal(size=(count, 24, width)).astype(np.float32), later if padding else ~later


def _sound(samples: int, rng: Generator, count: int) -> Inputs:
    """Tones and noise of varying loudness."""
    time = np.arange(samples) / samples
    tone = np.sin(2 * np.pi * rng.uniform(20, 300, (count, 1)) * time) * np.exp(1.5 * np.sin(2 * np.pi * 2 * time))
    noise = rng.normal(size=(count, samples)) * np.exp(rng.normal(size=(count, 1)) - 2)
    return ((0.1 * (tone + noise)).astype(np.float32)[:, None],)


EMBEDDINGS = normal(24, attention.WIDTH, std=attention.EMBEDDED)

FEW, MANY = 16, 400
"""Numbers of test inputs for networks with large outputs, and with small ones."""

UNTRAINED: Mapping[str, tuple[Callable[[], nn.Module], Draw, int]] = {
    # name: how to build it, (generator, count) → its inputs, how many it is judged on
    "qwen3": (attention.qwen3, EMBEDDINGS, FEW),
    "gemma2": (attention.gemma2, EMBEDDINGS, FEW),
    "llama": (attention.llama, EMBEDDINGS, FEW),
    "rms_by_hand": (attention.rms_by_hand, EMBEDDINGS, FEW),
    "sink577": (attention.sink577, normal(576, 64), FEW),
    "sink197": (attention.sink197, normal(196, 64), FEW),
    "masked_pooling": (attention.MaskedPooling, partial(_masked, 32, False), MANY),
    "masked_argmax": (partial(attention.MaskedPooling, best=True), partial(_masked, 32, False), MANY),
    "padded_encoder": (attention.PaddedEncoder, partial(_masked, 64, True), FEW),
    "experts": (attention.Experts, normal(24, 64), FEW),
    "timestep": (hard.Timestep, uniform(0, 1000), MANY),
    "radiance": (hard.Radiance, uniform(-1, 1, 3), MANY),
    "index": (partial(hard.Looked, False), uniform(0, 0.999, 8), MANY),
    "bucketize": (partial(hard.Looked, True), uniform(0, 1, 8), MANY),
    "spatial_transformer": (hard.SpatialTransformer, _images(1, 28), FEW),
    "warp": (hard.Warp, _images(2, 32), FEW),
    "soft_argmax": (hard.SoftArgmax, _images(3, 32), FEW),
    "batch_norm_first": (partial(hard.Tabular, True), _columns, MANY),
    "standardized": (partial(hard.Tabular, False), _columns, MANY),
    "kelvin": (hard.kelvin, _kelvin, MANY),
    "mean_square": (hard.MeanSquare, _sparse, FEW),
    "wavenet": (hard.WaveNet, partial(_sound, 256), FEW),
    "flow": (hard.Flow, normal(16), MANY),
    "siren": (hard.Siren, uniform(-1, 1, 2), MANY),
    "cyclegan": (hard.cyclegan, _images(3, 32), FEW),
}
