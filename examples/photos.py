"""What the examples work on: the photographs inside scikit-image's wheel, as networks take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage import data

Array = NDArray[np.float32]

MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
"""Of ImageNet's pictures, as torchvision's networks are trained."""


def photo(name: str) -> Image.Image:
    """A photograph of scikit-image's: 'astronaut', 'chelsea', 'coffee' ..."""
    return Image.fromarray(getattr(data, name)())


def normalized(image: Image.Image, size: int) -> Array:
    """The middle square of a picture, scaled: float32 (1, 3, size, size), zero mean."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").resize((size, size), box=(left, top, left + side, top + side))
    x = (np.asarray(square, np.float32).transpose(2, 0, 1) / 255 - MEAN) / STD
    return np.ascontiguousarray(x[None])


def views(size: int, count: int = 8) -> list[Array]:
    """Pictures to calibrate on: squares of three photographs, at places and scales drawn at random."""
    generator, made = np.random.default_rng(0), []
    for i in range(count):
        image = photo(("astronaut", "chelsea", "coffee")[i % 3])
        side = int(min(image.size) * generator.uniform(0.5, 1.0))
        left, top = (int(generator.integers(0, whole - side + 1)) for whole in image.size)
        made.append(normalized(image.crop((left, top, left + side, top + side)), size))
    return made
