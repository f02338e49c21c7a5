"""Session: a model on a device, called like a function."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu import reference
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir import DTYPES, FLOAT32, INT8X4
from q8ta_wgpu.layout import Layout, pack, unpack
from q8ta_wgpu.runtime.program import Port, Program
from q8ta_wgpu.schedule import schedule

if TYPE_CHECKING:
    from q8ta_wgpu.model import Model
    from q8ta_wgpu.runtime.device import Device
    from q8ta_wgpu.runtime.executor import Executor
    from q8ta_wgpu.runtime.timing import Timing

Array = NDArray[Any]


class Session:
    """Runs a model: numpy (or torch) arrays in, numpy arrays out, in the structure of the module's own outputs.

    Args:
        model: what `compile` or `load` returned.
        device: None for the best adapter, 'reference' for the numpy interpreter, part of an adapter's name or
            backend ('llvmpipe', 'opengl'), a wgpu adapter, or your own wgpu device.

    Raises:
        DeviceError: no adapter fits, or the model needs more than it offers.

    Sessions may share a device; calls from several threads are serialized. NaN inputs quantize to the zero point (the
    real value 0), infinities saturate. Use as a context manager, or `close()`, to free device memory.
    """

    def __init__(self, model: Model, device: Any = None) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._closed = False
        self.device: Device | None = None
        self._executor: Executor | None = None
        if isinstance(device, str) and device == "reference":
            self.program: Program = schedule(model.graph)
            return
        from q8ta_wgpu.runtime.device import open_device
        from q8ta_wgpu.runtime.executor import Executor

        self.device = open_device(device)
        self.program = schedule(model.graph, self.device.target)
        self._executor = Executor(self.program, self.device)

    @property
    def name(self) -> str:
        """The adapter's name, or 'reference'."""
        return self.device.name if self.device else "reference"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. Inputs by position or name; float32 (or what numpy casts to it safely), of the exact shape.

        Raises InputError naming the input, what was expected and what was found.
        """
        arrays = self._arrays(args, kwargs)
        with self._lock:
            if self._closed:
                raise InputError("this session was closed; make a new Session(model)")
            if self._executor is None:
                values = reference.run(self.model.graph, arrays)
                outputs = [values[name] for name in self.model.graph.outputs]
            else:
                words = self._executor.run([_to_words(arrays[port.name], port) for port in self.program.inputs])
                outputs = [_from_words(w, port) for w, port in zip(words, self.program.outputs, strict=True)]
        return self.model.structure.unflatten(outputs)

    def time(self, *args: Any, repeats: int = 20, warmup: int = 5, **kwargs: Any) -> Timing:
        """GPU time of every dispatch: medians over `repeats` runs after `warmup` runs. Raises DeviceError without
        timestamp queries."""
        from q8ta_wgpu.errors import DeviceError
        from q8ta_wgpu.runtime.timing import Timing

        arrays = self._arrays(args, kwargs)
        if self._executor is None or self.device is None or not self.device.timestamps:
            raise DeviceError(f"{self.name} has no timestamp queries, so dispatches cannot be timed")
        words = [_to_words(arrays[port.name], port) for port in self.program.inputs]
        measured = self._executor.time(words, warmup + repeats)[warmup:]
        return Timing(self.name, self.program, measured)

    def close(self) -> None:
        """Frees device memory; further calls raise InputError. Closing twice is harmless."""
        with self._lock:
            if self._executor is not None and not self._closed:
                self._executor.close()
            self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Array]:
        names = self.model.graph.inputs
        if len(args) > len(names):
            raise InputError(f"the model takes {len(names)} inputs ({', '.join(names)}), found {len(args)}")
        given: dict[str, Any] = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
            if name in given:
                raise InputError(f"input {name!r} was given twice, by position and by name")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"the model takes {len(names)} inputs ({', '.join(names)}); missing: {', '.join(missing)}")
        return {name: self._check(name, given[name]) for name in names}

    def _check(self, name: str, value: Any) -> Array:
        t = self.model.graph.types[name]
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        wanted = np.dtype(DTYPES[t.dtype])
        if array.dtype != wanted and not (t.dtype == FLOAT32 and np.can_cast(array.dtype, np.float32, "same_kind")):
            raise InputError(f"input {name!r} must be {wanted}, found {array.dtype}")
        if array.dtype.kind in "ub" and t.dtype == FLOAT32:
            raise InputError(f"input {name!r} must be {wanted}, found {array.dtype}: convert it the way the model was trained")
        if array.shape != t.shape:
            raise InputError(
                f"input {name!r} must have shape {t.shape}, found {array.shape}; "
                "model.reshape(...) gives a model for another input size"
            )
        return np.ascontiguousarray(array, wanted)


def _to_words(array: Array, port: Port) -> Array:
    return pack(array, _layout(port)) if port.dtype == INT8X4 else array


def _from_words(words: Array, port: Port) -> Array:
    if port.dtype == INT8X4:
        return unpack(words, port.shape, _layout(port))
    return words.reshape(port.shape).copy()


def _layout(port: Port) -> Layout:
    return next(layout for layout in Layout if layout.short == port.layout)
