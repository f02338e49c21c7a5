"""A model on a device for inputs of one size: plans it, loads its program, and runs calls until it is closed."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import INT8, INT8X4, RANGES, Array, Graph
from q8ta_wgpu.ir.int8 import Product, WeightedSum
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.row_indices import RowIndices
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import Linked
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.progress import Update, bar
from q8ta_wgpu.runtime import expected
from q8ta_wgpu.runtime.reused import Reused
from q8ta_wgpu.session import inputs, programs
from q8ta_wgpu.session.programs import Built
from q8ta_wgpu.session.state import SessionState
from q8ta_wgpu.session.streaming import Computed, Finished, Pending
from q8ta_wgpu.session.timing import Timing, measured

if TYPE_CHECKING:
    from q8ta_wgpu.model.model import Model
    from q8ta_wgpu.runtime.binding import Binding
    from q8ta_wgpu.runtime.device import Device
    from q8ta_wgpu.runtime.executor import Executor
    from q8ta_wgpu.tuning.tuning_report import Tuning

_PRODUCTS = frozenset(
    f"{width}_{op.name}"
    for op in OPS.values()
    if isinstance(op.int8, WeightedSum | Product)
    for width in ("q8ta", "q16ta")
)
"""Operators that matrix units can compute."""

_AT_ONCE = 0.01
"""Seconds in which a device is at hand that an earlier session opened."""


@dataclass(frozen=True)
class Opening:
    """Seconds that opening a session took.

    Attributes:
        device: opening the adapter and measuring it, unless an earlier session did so. Where its target is expected,
            the two others' planning and packing are done meanwhile.
        scheduling: choosing layouts and kernels, linking WGSL, packing weights, and checking the adapter's arithmetic,
            while pipelines compile.
        loading: making buffers, uploading weights, waiting for pipelines, binding.
    """

    device: float = 0.0
    scheduling: float = 0.0
    loading: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the steps."""
        return self.device + self.scheduling + self.loading

    def __str__(self) -> str:
        return (
            f"device {1e3 * self.device:.0f} ms, scheduling {1e3 * self.scheduling:.0f} ms, "
            f"pipelines and buffers {1e3 * self.loading:.0f} ms"
        )


class Runner:
    """A model on a device, or in the reference, for inputs of one size.

    It may be used from several threads; the device runs calls in order.

    Args:
        model, device, layouts, tune: as for `Session`.
        sharing: what runs the same model on inputs of another size. This one shares its states and weights.

    Attributes:
        device: the opened device; None for the reference.
        executor: runs the program; None for the reference.
        tuning: the result of tuning; None if nothing was tuned.
        took: seconds, by step.
        state: the states that the model keeps from call to call.

    Raises DeviceError if no adapter matches, or the one that does cannot run the model.
    """

    device: Device | None = None
    executor: Executor | None = None
    tuning: Tuning | None = None
    took = Opening()

    def __init__(self, model: Model, device: Any, layouts: str, tune: bool, sharing: Runner | None = None) -> None:
        self._model, self._layouts, self._tune = model, layouts, tune
        self._lock = threading.Lock()
        self._closed = False
        self._results = Reused()
        if not is_reference(device):
            with bar("opening") as update:
                while self.executor is None:
                    shared = sharing.executor if sharing else None
                    self.executor = self._load(device, shared, update)
        ports = [port for port, _ in self.program.states] if self.executor else ()
        self._row_indices = RowIndices.of(model.graph)
        self.state: SessionState = sharing.state if sharing else SessionState(model.graph, self.executor, ports)

    def resized(self, shapes: Sequence[Shape]) -> Runner:
        """Runs the model on the same device, on inputs of other sizes."""
        return Runner(self._model.reshape(*shapes), self.device or "reference", self._layouts, self._tune, self)

    def _load(self, wanted: Any, sharing: Executor | None, update: Update) -> Executor | None:
        """Opens the device and loads the model's program. None where a matrix unit turns out to compute wrong products,
        here or in another thread: the device's target has it no more, so that the next plan does without."""
        started = time.perf_counter()
        update(0, 0, "the adapter")
        device, _ahead = self._opened(wanted)  # what is planned ahead lives until it is taken
        from q8ta_wgpu.runtime.executor import Executor

        self.device = device
        target, opened = device.target, time.perf_counter()
        if self._tune:  # not after minutes of timing kernels
            self._check(device)
        update(0, 0, "layouts and kernels")
        with device.compiling() as compiling:
            self._built = self._build(device, target, update, compiling.start)
            self.program = self._built.program
            trials = device.unit_trials(self._built.tiles, compiling)
            self._check(device)
            scheduled = time.perf_counter()
            update(0, 0, "pipelines")
            try:
                executor = Executor(self.program, device, sharing, compiling)
            except DeviceError:
                device.judge(trials, compiling)
                if device.target is target:  # it is no kernel for a unit that failed
                    raise
                return None
            device.judge(trials, compiling)
        self.took = Opening(opened - started, scheduled - opened, time.perf_counter() - scheduled)
        if device.target is target:
            return executor
        executor.close()
        return None

    def _opened(self, wanted: Any) -> tuple[Device, Built | None]:
        """The device, and the program for the target that it is expected to have, which is planned while it opens."""
        graph, ahead = self._model.graph, None
        if wanted is not None and not isinstance(wanted, str | int):
            return device_for(graph, wanted), None
        products = has_products(graph)
        with ThreadPoolExecutor(1, "opening") as pool:
            opening = pool.submit(device_for, graph, wanted)
            wait((opening,), _AT_ONCE)
            if opening.done():
                return opening.result(), None
            target = None if self._tune else expected.target(wanted, products)
            if target:
                # Whatever fails for a guess: what fails for the device's own target is raised when that is planned.
                with contextlib.suppress(Exception):
                    ahead = programs.shared(graph, target, self._layouts)
            device = opening.result()
        expected.remember(wanted, products, device.target)
        return device, ahead if target == device.target else None

    def _check(self, device: Device) -> None:
        """Raises DeviceError if the device computes other bytes than the reference, or ends loops early."""
        if any(t.dtype in (INT8, *RANGES) for t in self._model.graph.types.values()) and device.contract:
            raise DeviceError(
                f"{device.name} cannot run int8 models: {device.contract}. Use another backend or "
                "device='reference'; a newer driver may help"
            )
        device.check_loops()

    def _build(self, device: Device, target: Target, update: Update, linked: Linked) -> Built:
        """The model's program, planned by measured times if the session is tuned, else by the rules."""
        graph, layouts = self._model.graph, self._layouts
        notes = tuple(f"matrix unit {unit} is not used: {text}" for unit, text in device.unit_faults.items())
        if not self._tune:
            return programs.shared(graph, target, layouts, linked, notes)
        from q8ta_wgpu.tuning import tuner

        forms = [lower(graph, replace(target, copies_windows=False, prologues=fused)) for fused in (True, False)]
        self.tuning = tuner.tune(forms, device, layouts, update)
        return programs.built(graph, target, (self.tuning.graph, self.tuning.plan), linked, notes)

    @functools.cached_property
    def program(self) -> Program:
        """The program on the device; for the reference, the program for a device with WebGPU's baseline limits."""
        return programs.shared(self._model.graph, BASELINE, self._layouts).program

    @property
    def name(self) -> str:
        """'adapter (backend, engine)', or 'reference'."""
        return self.device.name if self.device else "reference"

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
                    return self.executor.submit(inputs.fills(self.program.inputs, arrays), self._output)
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
                run = self.executor.submit_beside(inputs.fills(self.program.inputs, arrays), self._output)
        if self.executor is not None:
            run.result()
            return
        stored = {name: graph.stored(name, array) for name, array in arrays.items()}
        reference.run(graph, {**stored, **reference.initial_states(graph)})

    def _output(self, number: int, words: Array) -> Array:
        """The array of an output's words."""
        port = self.program.outputs[number]
        as_bytes = self._model.structure.gives_bytes(number, port.dtype == INT8X4)
        return inputs.from_words(port, words, as_bytes, self._results.empty)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Any] | None) -> Binding:
        """Binds the model to resources of the device, as `Session.bind`."""
        from q8ta_wgpu.runtime.binding import Binding

        resources = inputs.named(self._model.graph, args, kwargs)
        with self.staying_open():
            if self.executor is None:
                raise InputError("the reference has no device: buffers and textures need a session on an adapter")
            graph = self._model.graph
            bytes_ = {name for name in graph.inputs if graph.values[name].given == "uint8"}
            return Binding(self.executor, list(resources.values()), outputs, bytes_)

    def time(self, args: Sequence[Any], kwargs: Mapping[str, Any], repeats: int, warmup: int) -> Timing:
        """Measures the GPU time of every dispatch, as `Session.time`."""
        arrays = inputs.arrays(self._model.graph, args, kwargs)
        with self.staying_open():
            if self.executor is None or not self.executor.device.timestamps:
                raise DeviceError(
                    f"{self.name} has no timestamp queries, so dispatches cannot be timed: take an adapter that "
                    "has them, or request a device of your own with required_features=['timestamp-query']"
                )
            return measured(self.executor, inputs.words(self.program.inputs, arrays), repeats, warmup)

    def close(self) -> None:
        """Frees device memory. Closing twice is harmless."""
        with self._lock:
            if self.executor is not None and not self._closed:
                self.executor.close()
            self._results.close()
            self._closed = True


def is_reference(device: object) -> bool:
    """Whether a user's `device` argument means the interpreter in numpy."""
    return isinstance(device, str) and device == "reference"


def device_for(graph: Graph, device: Any) -> Device:
    """The device on which a session runs a graph, by the user's `device` argument. Raises DeviceError if no adapter
    matches."""
    from q8ta_wgpu.runtime.adapters import open_device

    return open_device(device, has_products(graph))


def has_products(graph: Graph) -> bool:
    """Whether a graph has int8 or int16 products, which matrix units can compute."""
    return any(node.op in _PRODUCTS for node in graph.nodes)
