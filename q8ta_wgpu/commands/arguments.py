"""Values of command-line arguments: a device, arrays for inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.model.model import Input, Model, load
from q8ta_wgpu.onnx_import.from_onnx import from_onnx


def number(text: str) -> int | None:
    """The integer that digits say; None for other text, and for more digits than anything here has."""
    return int(text) if text.isdecimal() and len(text) < 19 else None


def device(text: str | None) -> str | int | None:
    """A device as `Session` takes it: a number is an adapter's position."""
    return text if text is None or (position := number(text)) is None else position


def target_of(text: str | None) -> Target | None:
    """The target of the adapter that `--device` names; None without `--device`, and for the reference."""
    if text in (None, "reference"):
        return None
    from q8ta_wgpu.runtime.adapters import open_device

    return open_device(device(text)).target


def opened(file: str) -> Model:
    """The model of a .q8ta file, or of an .onnx file whose sizes are all known."""
    return from_onnx(file) if Path(file).suffix.lower() == ".onnx" else load(file)


def random_inputs(model: Model) -> dict[str, Array]:
    """Random arrays for every input, of the dtype to pass."""
    generator = np.random.default_rng(0)
    return {name: random_array(t, t.shape, generator) for name, t in model.inputs.items()}


def random_array(t: Input, shape: Shape, generator: np.random.Generator) -> Array:
    """A random array of a shape, of the dtype and within the bounds of an input."""
    drawn = generator.normal(0, 1, shape) if t.array_dtype == "float32" else generator.integers(0, 1 << 16, shape)
    drawn = drawn if t.bounds is None else generator.integers(t.bounds[0], t.bounds[1] + 1, shape)
    return drawn % 2 == 1 if t.array_dtype == "bool" else drawn.astype(t.array_dtype)


def inputs(model: Model, given: Sequence[str]) -> dict[str, Array]:
    """Arrays of `--input`: NAME=FILE, or FILE for the inputs in order. Raises InputError naming what is wrong."""
    names = model.graph.arguments
    arrays: dict[str, Array] = {}
    for text in given:
        name, separator, file = text.partition("=")
        if not separator or name not in names:
            if separator and not Path(text).exists():
                raise InputError(f"the model has no input {name!r}; it takes {described(model)}")
            free = [n for n in names if n not in arrays]
            if not free:
                raise InputError(f"{len(given)} inputs given, the model takes {described(model)}")
            name, file = free[0], text
        if name in arrays:
            raise InputError(f"input {name!r} was given twice")
        arrays[name] = _read(file)
    return arrays


def described(model: Model) -> str:
    """The inputs of a model in words."""
    return ", ".join(map(model.graph.described, model.graph.arguments)) or "no inputs"


def _read(file: str) -> Array:
    if Path(file).exists() and not Path(file).is_file():  # opening a pipe would block, and it cannot be mapped
        raise InputError(f"{file or 'an empty name'} is not a readable .npy file of numbers: it is no regular file")
    try:
        # Mapped: a header may claim more data than the file has; reading would allocate it first.
        with np.errstate(over="raise"):
            array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError, ArithmeticError) as error:
        # numpy takes any other file for a pickle, and its message says how to load that unsafely.
        reason = error.strerror if isinstance(error, OSError) else "write it with numpy.save(file, array)"
        raise InputError(f"{file or 'an empty name'} is not a readable .npy file of numbers: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{file} holds several arrays: give each input its own .npy file")
    return array
