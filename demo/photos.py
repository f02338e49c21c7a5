"""The photographs inside scikit-image's wheel, how they are split, and the measure of super-resolution.

Everything here needs numpy and Pillow only; scikit-image is looked up, not imported. Files are checked by
hash, so another version of that package cannot silently move a photo from one side of the split to the other.
"""

from __future__ import annotations

import hashlib
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SHA256 = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "coins.png": "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
    "grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
    "hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "ihc.png": "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
    "moon.png": "78739619d11f7eb9c165bb5d2efd4772cee557812ec847532dbb1d92ef71f577",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    "motorcycle_right.png": "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797",
    "page.png": "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
    "retina.jpg": "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
}

HELD_OUT = ("astronaut.png", "coffee.png", "chelsea.png")
"""Seen by neither training nor calibration; the first is the demo's own photo."""

TRAINING = (
    "brick.png",
    "camera.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
)

CALIBRATION = ("camera.png", "coins.png", "motorcycle_left.png", "rocket.jpg")
"""Training photos from which activation ranges are read: bright and dark, smooth and busy."""

BORDER = 3
"""Pixels cut from every side before PSNR is taken: bicubic and network pad differently there."""


def path(name: str) -> Path:
    """Where scikit-image keeps the photo. Raises ModuleNotFoundError when scikit-image is not installed."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the demo's photographs come with scikit-image, which is not installed: pip install scikit-image"
        )
    return Path(package.origin).with_name("data") / name


def load(name: str) -> Image.Image:
    """One photo of the split. Raises ValueError when its bytes are not those of the split."""
    file = path(name)
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SHA256[name]:
        raise ValueError(
            f"{file}: sha256 is {found}, the demo's split expects {SHA256[name]}: install scikit-image 0.26"
        )
    return Image.open(file)


def luma(image: Image.Image) -> Image.Image:
    """Y of ITU-R BT.601, full range, 8 bits."""
    return image.convert("L")


def crop_to_multiple(image: Image.Image, factor: int) -> Image.Image:
    """The largest top left part whose width and height are multiples of factor."""
    return image.crop((0, 0, image.width // factor * factor, image.height // factor * factor))


def shrink(image: Image.Image, factor: int) -> Image.Image:
    """Bicubic with anti-aliasing: Pillow widens the kernel by the factor. Sizes must be multiples of factor."""
    return image.resize((image.width // factor, image.height // factor), Image.Resampling.BICUBIC)


def enlarge(image: Image.Image, factor: int) -> Image.Image:
    """Bicubic, the baseline to beat."""
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.BICUBIC)


def to_input(image: Image.Image) -> NDArray[np.float32]:
    """Luma image → float32 (1, 1, h, w) in [0, 1]."""
    return np.asarray(image, dtype=np.float32)[None, None] / np.float32(255)


def to_image(output: NDArray[np.float32]) -> Image.Image:
    """Float32 (1, 1, h, w) → luma image, clamped and rounded to 8 bits."""
    return Image.fromarray(np.rint(np.clip(output[0, 0], 0, 1) * np.float32(255)).astype(np.uint8))


def psnr(image: Image.Image, truth: Image.Image) -> float:
    """Peak signal-to-noise ratio of two 8-bit luma images in dB; infinite for equal images.

    BORDER pixels on each side do not count, or fewer where the images are too small for that.
    """
    error = np.asarray(image, dtype=np.float64) - np.asarray(truth, dtype=np.float64)
    border = min(BORDER, (min(error.shape) - 1) // 2)
    mean_square = float(np.mean(error[border : error.shape[0] - border, border : error.shape[1] - border] ** 2))
    return 10 * math.log10(255**2 / mean_square) if mean_square else math.inf
