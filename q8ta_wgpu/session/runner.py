"""Runs a model on inputs of one size: calls one after the other, bindings and times, until it is closed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import INT8X4, Array
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.row_indices import RowIndices
from q8ta_wgpu.runtime.reused import Reused
from q8ta_wgpu.session import inputs
from q8ta_wgpu.session.opened import Opened
from q8ta_wgpu.session.state import SessionState
from q8ta_wgpu.session.streaming import Computed, Finished, Pending
from q8ta_wgpu.session.timing import Timing, measured, rates

if TYPE_CHECKING:
    from q8ta_wgpu.model.model import Model
    from q8ta_wgpu.runtime.binding import Binding
    from q8ta_wgpu.runtime.executor import Executor


class Runner:
    """A model on a device, or in the reference, for inputs of one size.

    It may be used from several threads; the device runs calls in order.

    Args:
        model: the model.
        device, layouts, tune: as for `Session`.
        sharing: what runs the same model on inputs of another size. This one shares its states and weights.

    Attributes:
        opened: the device and the program.
        executor: runs the program; None for the reference.
        state: the states that the model keeps from call to call.

    Raises DeviceError if no adapter matches, or the one that does cannot run the model.
    """

    def __init__(
        self, model: Model, device: Any, layouts: str, tune: bool | None, sharing: Runner | None = None
    ) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._closed = False
        self._results = Reused()
        self.opened = Opened(model.graph, device, layouts, tune, sharing.executor if sharing else None)
        self.executor: Executor | None = self.opened.executor
        ports = [port for port, _ in self.opened.program.states] if self.executor else ()
        self._row_indices = RowIndices.of(model.graph)
        self.state: SessionState = sharing.state if sharing else SessionState(model.graph, self.executor, ports)

    @contextlib.contextmanager
    def staying_open(self) -> Iterator[None]:
        """A context in which this is not closed. Raises InputError if it was."""
        with self._lock:
            self.check_open()
            yield

    def check_open(self) -> None:
        """Raises InputError if this was closed."""
        if self._closed:
            raise InputError("this session was closed; make a new Session(model)")

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pending:
        """Starts a call. Its result has the structure of the module's outputs."""
        return Finished(self._start(args, kwargs), self._model.structure.unflatten)

    def _start(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pending:
        arrays = inputs.arrays(self._model.graph, args, kwargs)
        self.check_open()
        with self.state.call(self._row_indices, arrays):
            with self.staying_open():
                if self.executor is not None:
                    return self.executor.submit(inputs.fills(self.opened.program.inputs, arrays), self._output)
            stored = {name: self._model.graph.stored(name, array) for name, array in arrays.items()}
            values = self.state.run(self._model.graph, stored)
        # Copies: a value may be a constant, or the caller's own array.
        return Computed([values[name].copy() for name in self._model.graph.results])

    def warm_up(self) -> None:
        """Runs the model once on zeros, as `Session.warm_up`."""
        graph = self._model.graph
        arrays = {name: np.zeros(t.shape, t.array_dtype) for name, t in self._model.inputs.items()}
        with self.staying_open():
            if self.executor is not None:
                run = self.executor.submit_beside(inputs.fills(self.opened.program.inputs, arrays), self._output)
        if self.executor is not None:
            run.result()
            return
        stored = {name: graph.stored(name, array) for name, array in arrays.items()}
        reference.run(graph, {**stored, **reference.initial_states(graph)})

    def _output(self, number: int, words: Array) -> Array:
        """The array of an output's words."""
        port = self.opened.program.outputs[number]
        as_bytes = self._model.structure.gives_bytes(number, port.dtype == INT8X4)
        return inputs.from_words(port, words, as_bytes, self._results.empty)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Any] | None) -> Binding:
        """Binds the model to resources of the device, as `Session.bind`."""
        from q8ta_wgpu.runtime.binding import Binding

        resources = inputs.named(self._model.graph, args, kwargs)
        with self.staying_open():
            if self.executor is None:
                raise InputError("the reference has no device: buffers and textures need a session on an adapter")
            return Binding(self.executor, list(resources.values()), outputs, self._model.graph.uint8)

    def time(self, args: Sequence[Any], kwargs: Mapping[str, Any], repeats: int, warmup: int) -> Timing:
        """Measures the GPU time of every dispatch, as `Session.time`."""
        arrays = inputs.arrays(self._model.graph, args, kwargs)
        with self.staying_open():
            if self.executor is None or not self.executor.device.timestamps:
                raise DeviceError(
                    f"{self.opened.name} has no timestamp queries, so dispatches cannot be timed: take an adapter that "
                    "has them, or request a device of your own with required_features=['timestamp-query']"
                )
            times = measured(self.executor, inputs.words(self.opened.program.inputs, arrays), repeats, warmup)
        return Timing(self.opened.name, self.opened.program, *times, *rates(self.executor.device))

    def close(self) -> None:
        """Frees device memory. Closing twice is harmless."""
        with self._lock:
            if self.executor is not None and not self._closed:
                self.executor.close()
            self._results.close()
            self._closed = True
