"""What ONNX files of packages are given: inputs of their kind, by `real_inputs.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import q8ta_wgpu as q8
from bench import real_inputs
from bench.onnx_quantizer import opened
from bench.packaged_files import FILES, File
from bench.packages import fetched
from q8ta_wgpu.ir.graph import Array


def items_of(file: File, model: q8.Model, count: int) -> list[dict[str, Array]]:
    """Inputs. Those of a file with states follow each other; the states are zeros."""
    found: list[dict[str, Array]] = [{} for _ in range(count)]
    rng, first = np.random.default_rng(0), True
    for name, port in model.inputs.items():
        if port.array_dtype == "bool":
            drawn = [np.ones(port.shape)] * count
        elif name in file.states:
            drawn = [np.zeros(port.shape)] * count
        elif first and file.draws != "noise":
            drawn, first = _drawn(file, rng, port.shape, count), False
        elif port.array_dtype == "float32":
            drawn = [real_inputs.noise(rng, port.shape) for _ in range(count)]
        else:
            low, high = port.bounds or (0, 255)
            drawn = [np.asarray(rng.integers(max(low, 0), min(high, 200) + 1, port.shape), float) for _ in range(count)]
        for item, values in zip(found, drawn, strict=True):
            item[name] = values.astype(port.array_dtype)
    return found


def _drawn(file: File, rng: np.random.Generator, shape: Sequence[int], count: int) -> list[Array]:
    """What a file's first input is, `count` times."""
    if file.draws == "wake words":
        return [_embeddings(rng, shape) for _ in range(count)]
    if not file.states:
        low, high = file.span
        return [low + (high - low) * real_inputs.DRAWS[file.draws](rng, shape) for _ in range(count)]
    if file.draws == "spectra":
        return list(real_inputs.rows_of_bands(rng, (count * shape[-2], shape[-1])).reshape(count, *shape))
    size = shape if file.draws == "speech" else (2 * (shape[-1] - 1),)
    windows = real_inputs.sound(rng, (count * int(np.prod(size)),)).reshape(count, *size)
    return list(windows if file.draws == "speech" else np.abs(np.fft.rfft(windows)).reshape(count, *shape))


def _embeddings(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """What a detector of wake words reads: embeddings of the last seconds of speech, by files of its package."""
    by_path = {file.path: opened(fetched(file)) for file in FILES if "openwakeword" in file.package}
    wave = 32767 * real_inputs.sound(rng, (1, 160 * (8 * shape[1] + 68) + 480))
    mel = by_path["melspectrogram.onnx"].run(None, {"input": wave.astype(np.float32)})[0].reshape(-1, 32) / 10 + 2
    windows = np.stack([mel[8 * i : 8 * i + 76] for i in range(shape[1])])[..., None]
    found = by_path["embedding_model.onnx"].run(None, {"input_1": windows.astype(np.float32)})[0]
    return np.asarray(found).reshape(shape)
