"""Inputs as the networks of ONNX files meet them: speech, photographs, lines of text, bytes of files.

Speech is spoken by eSpeak NG (the package espeakng-loader), with pauses and noise. Photographs are scikit-image's. Text
is drawn by Pillow. Each function takes a generator of random numbers and the shape of an input.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array

RATE = 16000
"""Samples of sound a second."""

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the old bridge.",
    "Alexa, please turn off the lights in the kitchen and play some music.",
    "Hey Jarvis, what is the weather going to be like tomorrow morning?",
    "Hey Mycroft, set a timer for twenty five minutes.",
    "I do not think that we have met before. My name is Anna.",
    "Could you repeat that? The line is very bad today.",
    "Nine, seven, three, two, zero, one, eight.",
    "She sells sea shells, and he shut the heavy wooden door behind her.",
    "Well, this is the end of the story.",
    "Yes.",
)
_VOICES = ("en-us", "en-gb", "de", "es", "fr", "it")
_PITCH, _SPEED = 3, 1
"""Numbers of parameters of eSpeak NG."""

Draw = Callable[[np.random.Generator, Sequence[int]], Array]


@functools.cache
def _espeak() -> Any:
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    if library.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 0) < 0:
        raise RuntimeError("eSpeak NG does not start")
    return library


def _spoken(text: str, voice: str, speed: int, pitch: int) -> Array:
    """A sentence, float64 in [-1, 1] at RATE."""
    import scipy.signal

    library, pieces = _espeak(), list[Array]()

    def take(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    kind: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = kind(take)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(voice.encode())
    library.espeak_SetParameter(_SPEED, speed, 0)
    library.espeak_SetParameter(_PITCH, pitch, 0)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
    library.espeak_Synchronize()
    resample: Any = scipy.signal.resample_poly
    return np.asarray(resample(np.concatenate(pieces) / 32768, 320, 441))


@functools.cache
def conversation(seed: int, seconds: float) -> Array:
    """Sentences of several voices with pauses between them, and noise, float64 at RATE."""
    rng, found, count = np.random.default_rng(seed), list[Array](), int(seconds * RATE)
    while sum(map(len, found)) < count:
        text, voice = (str(rng.choice(each)) for each in (_SENTENCES, _VOICES))
        spoken = _spoken(text, voice, int(rng.integers(130, 200)), int(rng.integers(20, 80)))
        found += [np.zeros(int(rng.uniform(0.2, 1.2) * RATE)), spoken * rng.uniform(0.2, 0.9)]
    whole = np.concatenate(found)[:count]
    return whole + 10 ** rng.uniform(-3, -2) * rng.standard_normal(count)


def sound(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """A part of a conversation in the longest dimension."""
    count = max(shape)
    spoken = conversation(int(rng.integers(4)), max(20.0, 1.5 * count / RATE))
    start = int(rng.integers(len(spoken) - count + 1))
    return np.broadcast_to(spoken[start : start + count].reshape([count if n == count else 1 for n in shape]), shape)


def bands_first(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Logarithmic spectra of a conversation: (..., bands, frames)."""
    return _spectra(rng, shape[-1], shape[-2], shape, False)


def rows_of_bands(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Logarithmic spectra of a conversation: (..., frames, bands)."""
    return _spectra(rng, shape[-2], shape[-1], shape, True)


def _spectra(rng: np.random.Generator, frames: int, bands: int, shape: Sequence[int], rows: bool) -> Array:
    """Powers in bands of equal width on a scale between linear and logarithmic, normalized over the frames."""
    wave = sound(rng, (frames * 160 + 400,))
    at = np.arange(frames)[:, None] * 160 + np.arange(400)
    power = np.abs(np.fft.rfft(wave[at] * np.hanning(400), 1024)) ** 2
    edges = 512 * (np.expm1(np.linspace(0, 2, bands + 2)) / np.expm1(2))
    near = np.abs(np.arange(513)[:, None] - edges[None, 1:-1]) <= np.maximum(np.diff(edges)[None, 1:], 0.75)
    logs = np.log(power @ near / near.sum(0) + 1e-6)
    found = (logs - logs.mean()) / logs.std()
    return np.broadcast_to(found if rows else found.T, shape)


def magnitude(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Magnitudes of one frame's spectrum: (1, 1, bins)."""
    wave = sound(rng, (2 * (shape[-1] - 1),))
    return np.abs(np.fft.rfft(wave)).reshape(shape)


@functools.cache
def _photograph(index: int) -> Array:
    """A photograph in [0, 1], (height, width, 3)."""
    import skimage.data

    names = ("astronaut", "coffee", "cat", "rocket", "immunohistochemistry", "retina", "hubble_deep_field")
    return np.asarray(getattr(skimage.data, names[index % len(names)])()) / 255


def _resized(image: Array, height: int, width: int) -> Array:
    import skimage.transform

    resize: Any = skimage.transform.resize
    return np.asarray(resize(image, (height, width)))


def _laid_out(image: Array, shape: Sequence[int]) -> Array:
    """An image (height, width, 3) as an input: channels first or last, three or one (grey)."""
    channels = shape[-1] if shape[-1] in (1, 3) else shape[1]
    image = image if channels == 3 else image.mean(-1, keepdims=True)
    return np.broadcast_to(image if shape[-1] == channels else image.transpose(2, 0, 1), shape)


def _height_width(shape: Sequence[int]) -> tuple[int, int]:
    return (shape[1], shape[2]) if shape[-1] in (1, 3) else (shape[2], shape[3])


def photograph(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """A part of a photograph, in [0, 1]. Every third one is mostly of a face."""
    image = _photograph(int(rng.choice([0, 0, 1, 2, 3, 4, 5, 6])))
    side = min(image.shape[:2])
    size = int(rng.integers(side // 2, side + 1))
    top, left = (int(rng.integers(n - size + 1)) for n in image.shape[:2])
    return _laid_out(_resized(image[top : top + size, left : left + size], *_height_width(shape)), shape)


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_WORDS = (
    "Hotel",
    "EXIT",
    "No 42",
    "Milk 3.99",
    "Berlin",
    "2026",
    "open",
    "Total: 17",
    "Room 8",
    "Paris",
    "12:45",
    "Taxi",
)


def _written(text: str, height: int, width: int, ink: Array, paper: Array) -> Array:
    """A line of text that fills an image (height, width, 3) in [0, 1]."""
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(int(height * 0.7))
    colors = [tuple(int(255 * part) for part in each) for each in (paper, ink)]
    image = Image.new("RGB", (width, height), colors[0])
    ImageDraw.Draw(image).text((height // 6, height // 12), text, fill=colors[1], font=font)
    return np.asarray(image) / 255


def _colors(rng: np.random.Generator) -> tuple[Array, Array]:
    dark, light = rng.uniform(0, 0.3, 3), rng.uniform(0.7, 1, 3)
    return (dark, light) if rng.random() < 0.8 else (light, dark)


def line(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """A line of text that a camera took, in [0, 1]."""
    height, width = _height_width(shape)
    image = _written(str(rng.choice(_WORDS)), height, width, *_colors(rng))
    return np.clip(_laid_out(image + 0.02 * rng.standard_normal(image.shape), shape), 0, 1)


def turned_line(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """A line of text, every other one upside down."""
    found = line(rng, shape)
    return found[..., ::-1, ::-1] if rng.random() < 0.5 else found


def captcha(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Letters and digits with lines and noise over them, in [0, 1]."""
    height, width = _height_width(shape)
    image = _written("".join(rng.choice(list(_LETTERS), 4)), height, width, *_colors(rng)).copy()
    for _ in range(3):
        (first, last), color = rng.integers(0, height, 2), rng.uniform(0, 1, 3)
        image[np.linspace(first, last, width).astype(int).clip(0, height - 1), np.arange(width)] = color
    return np.clip(_laid_out(image + 0.05 * rng.standard_normal(image.shape), shape), 0, 1)


def signs(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """A photograph with some lines of text on it, or a photograph of printed text, in [0, 1]."""
    import skimage.data

    height, width = _height_width(shape)
    if rng.random() < 0.25:
        text: Any = skimage.data.text if rng.random() < 0.5 else skimage.data.page
        grey = _resized(np.asarray(text()) / 255, height, width)
        return _laid_out(np.repeat(grey[..., None], 3, -1), shape)
    image = photograph(rng, (1, height, width, 3))[0].copy()
    for _ in range(int(rng.integers(1, 4))):
        high, wide = int(rng.integers(height // 8, height // 4)), width // 2
        top, left = int(rng.integers(height - high)), int(rng.integers(width - wide))
        image[top : top + high, left : left + wide] = _written(str(rng.choice(_WORDS)), high, wide, *_colors(rng))
    return _laid_out(image, shape)


def turned_page(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """`signs`, turned by none, one, two or three quarters."""
    return np.rot90(signs(rng, shape), int(rng.integers(4)), axes=(2, 3))


def file_bytes(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """The first and the last bytes of a file of Python's own library and packages; 256 where it has none."""
    files = _files()
    data = np.frombuffer(files[int(rng.integers(len(files)))].read_bytes().strip(), np.uint8)
    found, half = np.full(shape, 256), shape[-1] // 2
    first, last = data[:half], data[-half:]
    found[..., : len(first)] = first
    found[..., shape[-1] - len(last) :] = last
    return found


@functools.cache
def _files() -> list[Path]:
    """Some files of each ending."""
    by_ending: dict[str, list[Path]] = {}
    for root in (Path(np.__file__).parent, Path(functools.__file__).parent / "email", Path("docs"), Path("kernels")):
        for path in sorted(each for each in root.rglob("*.*") if each.is_file() and each.stat().st_size > 64):
            by_ending.setdefault(path.suffix, []).append(path)
    return [path for each in by_ending.values() for path in each[:4]]


def noise(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Normal numbers, for inputs of which there is nothing real here."""
    return rng.standard_normal(shape) * 0.5


DRAWS: Mapping[str, Draw] = {
    "noise": noise,
    "speech": sound,
    "spectra": rows_of_bands,
    "spectra, bands first": bands_first,
    "magnitudes": magnitude,
    "photographs": photograph,
    "lines of text": line,
    "turned lines": turned_line,
    "captchas": captcha,
    "signs": signs,
    "turned pages": turned_page,
    "bytes of files": file_bytes,
}
