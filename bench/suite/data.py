"""Data from installed packages: scikit-learn's handwritten digits, scikit-image's photographs, Python's own text."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import string
import sys
import typing
from importlib.util import find_spec
from pathlib import Path
from pydoc_data import topics

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from demo import photos

Array = NDArray[np.float32]
Set = tuple[Array, NDArray[np.int64]]

TRAINED = 1197
"""Number of training digits. The other 600, by other writers, are held out."""

LENGTH = 64
CHARACTERS = " " + string.ascii_lowercase + string.digits + "_.,:;'\"`()[]{}<>=+-*/\\|@#%&!?~$^"


@functools.cache
def _all_digits() -> Set:
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        sys.exit('the digits are in scikit-learn: pip install "q8ta-wgpu[accuracy]"')
    table = np.loadtxt(Path(spec.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    return (table[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)


def digits(held_out: bool) -> Set:
    """Images (n, 1, 8, 8) in 0..1, and their digits (n,)."""
    images, labels = _all_digits()
    part = slice(TRAINED, None) if held_out else slice(TRAINED)
    return images[part], labels[part]


def held_out_digits(count: int) -> Set:
    """The held out digits, then repeated with noise of a sixteenth, the smallest step of a pixel, so that no single
    ambiguous image decides."""
    images, labels = digits(True)
    times = -(-count // len(images))
    noise = np.random.default_rng(0).normal(0, 1 / 16, (times, *images.shape)).astype(np.float32)
    noise[0] = 0
    return np.clip(images + noise, 0, 1).reshape(-1, *images.shape[1:])[:count], np.tile(labels, times)[:count]


@functools.cache
def _luma(name: str) -> NDArray[np.uint8]:
    return np.asarray(photos.luma(photos.load(name)))


def scenes(held_out: bool, count: int, seed: int) -> Set:
    """Pictures (n, 1, 32, 32) of three digits on a photograph, and the class of every pixel, 10 for the photograph."""
    rng = np.random.default_rng(seed)
    images, labels = digits(held_out)
    names = photos.HELD_OUT if held_out else photos.TRAINING
    x = np.empty((count, 1, 32, 32), np.float32)
    y = np.full((count, 32, 32), 10, np.int64)
    for i in range(count):
        photo = _luma(names[rng.integers(len(names))])
        top, left = (int(rng.integers(size - 32)) for size in photo.shape)
        x[i, 0] = photo[top : top + 32, left : left + 32] / 512
        for corner in rng.permutation(4)[:3]:
            which = rng.integers(len(images))
            digit = np.kron(images[which, 0], np.ones((2, 2), np.float32))
            at = np.s_[16 * (corner // 2) : 16 * (corner // 2) + 16, 16 * (corner % 2) : 16 * (corner % 2) + 16]
            x[i, 0][at] = np.maximum(x[i, 0][at], digit)
            y[i][at][digit > 0.4] = labels[which]
    return x, y


def photographs(held_out: bool, count: int, side: int, seed: int) -> tuple[Array, Array]:
    """Crops (n, 1, side, side), reduced by three, and the original crops (n, 1, 3·side, 3·side), in 0..1."""
    rng = np.random.default_rng(seed)
    names = photos.HELD_OUT if held_out else photos.TRAINING
    x, y = np.empty((count, 1, side, side), np.float32), np.empty((count, 1, 3 * side, 3 * side), np.float32)
    for i in range(count):
        name = names[i % len(names)] if held_out else names[rng.integers(len(names))]
        photo = photos.luma(photos.load(name)) if held_out else _image(name)
        left, top = (int(rng.integers(extent - 3 * side + 1)) for extent in photo.size)
        whole = photo.crop((left, top, left + 3 * side, top + 3 * side))
        x[i], y[i] = photos.to_input(photos.shrink(whole, 3))[0], photos.to_input(whole)[0]
    return x, y


@functools.cache
def _image(name: str) -> Image.Image:
    return photos.luma(photos.load(name))


@functools.cache
def _texts() -> tuple[str, ...]:
    """English, Python, and Python's syntax trees."""
    english = " ".join(text for _, text in sorted(topics.topics.items()))
    python = inspect.getsource(argparse) + inspect.getsource(typing)
    found = english, python, ast.dump(ast.parse(inspect.getsource(argparse)))
    return tuple(" ".join(text.lower().split()) for text in found)


def lines(held_out: bool, count: int, seed: int) -> Set:
    """Passages of text (n, characters, LENGTH), one-hot, and their kind (n,), 0 to 2. The last fifth of every text is
    held out."""
    rng = np.random.default_rng(seed)
    x, y = np.zeros((count, len(CHARACTERS), LENGTH), np.float32), rng.integers(3, size=count)
    for i, label in enumerate(y):
        text = _texts()[label]
        border = len(text) * 4 // 5
        start = int(rng.integers(border, len(text) - LENGTH) if held_out else rng.integers(border - LENGTH))
        for place, character in enumerate(text[start : start + LENGTH]):
            x[i, max(CHARACTERS.find(character), 0), place] = 1
    return x, y.astype(np.int64)


def next_characters(held_out: bool, count: int, seed: int) -> Set:
    """Passages of text (n, LENGTH - 1, characters), one-hot, and the next character at each position."""
    x = lines(held_out, count, seed)[0].transpose(0, 2, 1)
    return x[:, :-1], x[:, 1:].argmax(-1)
