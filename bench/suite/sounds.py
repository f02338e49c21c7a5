"""Synthetic sounds, since no package includes recordings: voices in noise, and spoken words as spectra."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from bench.suite.data import Array, Set

RATE = 8000
SAMPLES, WINDOW = 2048, 128
FRAMES = SAMPLES // (WINDOW // 2) - 1

PHONES = ((2, 8), (2, 14), (4, 7), (4, 12), (6, 10), (7, 16), (1, 6), (13, 18))
"""The two loudest bands of each of eight phones."""

WORDS = ((0, 1, 2), (0, 2, 1), (2, 0, 1), (3, 4), (4, 3), (5, 6, 5), (6, 5, 6), (7, 0, 3), (7, 3, 0), (1, 7))
"""Ten words, as sequences of phones."""


def _speakers(held_out: bool, rng: Generator, count: int) -> Array:
    """Factors of the speakers' pitches. Held out ones are between the others."""
    steps = np.arange(0.8, 1.25, 0.05)[held_out::2]
    return rng.choice(steps, (count, 1)).astype(np.float32)


def voices(held_out: bool, count: int, seed: int) -> tuple[Array, Array]:
    """Sounds (n, 1, SAMPLES) between -1 and 1, and which frames (n, FRAMES) contain a voice. A voice is harmonics of a
    gliding pitch, filtered by formants. All frames contain noise of different colors and a hum."""
    rng = np.random.default_rng((seed, held_out))
    time = np.arange(SAMPLES) / RATE
    pitch = (
        _speakers(held_out, rng, count)
        * rng.uniform(100, 220, (count, 1))
        * (1 + rng.normal(0, 0.3, (count, 1)) * time)
    )
    turns = np.cumsum(pitch, -1) / RATE
    voice = np.zeros((count, SAMPLES))
    for harmonic in range(1, 16):
        heights = [
            np.exp(-(((harmonic * pitch - center) / 200) ** 2))
            for center in rng.uniform((300, 900), (900, 2500), (count, 2)).T[..., None]
        ]
        voice += sum(heights) * np.sin(2 * np.pi * harmonic * turns)
    start, length = rng.uniform(0, 0.7, (count, 1)), rng.uniform(0.2, 0.6, (count, 1))
    place = np.arange(SAMPLES) / SAMPLES
    speaks = (place >= start) & (place < start + length)
    white = rng.normal(size=(count, SAMPLES))
    color = rng.uniform(0, 1, (count, 1))
    noise = (1 - color) * white + color * np.cumsum(white, -1) / 20
    hum = np.sin(2 * np.pi * (50 * time + rng.uniform(size=(count, 1)))) * rng.uniform(0, 2, (count, 1))
    ratio = 10 ** rng.uniform(-1.3, -0.3, (count, 1))
    sound = voice * speaks + ratio * (noise + hum)
    sound *= 10 ** rng.uniform(-1.2, 0, (count, 1)) / np.abs(sound).max(-1, keepdims=True)
    middle = np.arange(FRAMES) * (WINDOW // 2) + WINDOW // 2
    return sound[:, None].astype(np.float32), speaks[:, middle].astype(np.float32)


def words(held_out: bool, count: int, seed: int) -> Set:
    """Log power spectra (n, 32 frames, 20 bands) of spoken words in noise, and the index of each word."""
    rng = np.random.default_rng((seed, held_out))
    which = rng.integers(len(WORDS), size=count)
    speakers, bands = _speakers(held_out, rng, count), np.arange(20)
    x = np.empty((count, 32, 20), np.float32)
    for i, word in enumerate(which):
        ends = np.sort(rng.uniform(4, 28, len(WORDS[word]) + 1))
        power = np.zeros((32, 20))
        for phone, start, end in zip(WORDS[word], ends, ends[1:] + 3, strict=False):
            frame = np.arange(32)
            loud = np.exp(-(((frame - (start + end) / 2) / (0.3 * (end - start))) ** 2))
            centers = np.array(PHONES[phone]) * speakers[i] + rng.normal(0, 0.4, 2)
            power += loud[:, None] * sum(np.exp(-(((bands - center) / 1.2) ** 2)) for center in centers)
        noise = rng.exponential(size=(32, 20)) * 10 ** rng.uniform(-3, -0.7)
        x[i] = np.log(1e-4 + (power * rng.exponential(size=(32, 20)) + noise) * 10 ** rng.uniform(-1, 1))
    return x, which.astype(np.int64)
