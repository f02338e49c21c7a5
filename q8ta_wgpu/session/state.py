"""The states of a session: what a model keeps from one call to the next, read and set by the module's names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from q8ta_wgpu.errors import InputError, shown
from q8ta_wgpu.ir.arithmetic import dequantize, quantize
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT32, Array, Graph
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.row_indices import RowIndices
from q8ta_wgpu.program.program import Port
from q8ta_wgpu.session import inputs

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.executor import Executor


LARGEST = {INT32: (1 << 31) - 1}
"""The largest integer of a state that is stored as such. Bools and uint8 are float32 numbers on the device."""


class SessionState(MutableMapping[str, Array]):
    """What a session keeps from call to call: arrays by the names of the module's buffers, of their shapes and dtypes.

    Examples:
        >>> saved = dict(session.state)     # copies, which np.savez(path, **saved) writes
        >>> session.state.update(saved)     # this session, or another one of the same model, goes on from there

    Reading waits for the calls that were made before. A state that is stored in int8 or int16 is given as the real
    numbers that it stands for, which come back the same when they are set; others are rounded to the nearest, as in a
    call. Integers are exact up to 2^31. Names are fixed: a state can be set, not added or deleted.

    Raises:
        InputError: the model has no state of a name, or an array has another shape or dtype. Nothing is set then.
        DeviceError: the device fails, or the session was closed.
    """

    def __init__(self, graph: Graph, executor: Executor | None, ports: Sequence[Port] = ()) -> None:
        self._graph, self._executor, self._ports = graph, executor, ports
        self._names = [state.name for state in graph.states]
        self._reads = [state.read for state in graph.states]
        self._held = reference.initial_states(graph)
        self._lock = threading.Lock()
        self._followed = self._integers(self._held)

    @contextlib.contextmanager
    def call(self, indices: RowIndices, arrays: Mapping[str, Array]) -> Iterator[None]:
        """A call with these arrays, which is submitted, or computed, as long as the context lasts: calls of a model
        that keeps something follow each other. Raises InputError where it takes rows that a table or cache has not.

        What only counts is followed here, so that it need not be read from the device."""
        if not self._names:
            indices.check(arrays)
            yield
            return
        with self._lock:
            values = {**arrays, **self._known([name for name in indices.sources if name not in arrays])}
            indices.check(values)
            self._followed = {}  # until the call is on its way
            yield
            self._followed = indices.after(values)

    def _known(self, names: Sequence[str]) -> Mapping[str, Array]:
        """States by the names that they are read by. They are read from the device where they were not followed, and
        once a run was recorded in commands of the caller, who may submit them at any time."""
        if self._executor is None:
            return self._held
        followed = self._followed.keys() >= set(names) and not self._executor.recorded
        return self._followed if followed else self._read(names)

    def run(self, graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the graph, or of that for inputs of other sizes, by the reference, which then keeps the new
        states."""
        values = reference.run(graph, {**arrays, **self._held})
        self._held = {state.read: values[state.written].copy() for state in graph.states}
        return values

    def reset(self) -> None:
        """Makes every state what the model begins with."""
        with self._lock:
            self._write(reference.initial_states(self._graph))

    def __getitem__(self, name: str) -> Array:
        """A copy of one state."""
        state = self._graph.states[self._place(name)]
        stored, q = self._read([state.read])[state.read], self._graph.types[state.read].q
        real = stored if q is None else dequantize(stored, q)
        return real.astype(state.dtype)

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets one state."""
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        """Raises InputError."""
        raise InputError(f"the state {shown(name)} can be set, not deleted: session.reset() makes all as they began")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def update(self, *given: Any, **named: Any) -> None:
        """Sets several states at once, as a dict's `update` does."""
        found = {}
        for name, value in dict(*given, **named).items():
            state = self._graph.states[self._place(name)]
            t, array = self._graph.types[state.read], inputs.as_array(name, value, "state")
            floats = state.dtype == FLOAT32
            if array.shape != t.shape or (array.dtype.kind != "f" if floats else array.dtype != state.dtype):
                wanted = f"{state.dtype} {t.shape}"
                raise InputError(f"state {name!r} must be {wanted}, found {array.dtype} {array.shape}")
            most = LARGEST.get(t.dtype, 1 << 24)
            if not floats and (np.abs(array.astype(np.float64)) > most).any():
                raise InputError(f"state {name!r} holds integers beyond {most}, up to which they are exact")
            with np.errstate(over="ignore"):
                real = np.array(array, np.float32 if t.q else DTYPES[t.dtype], order="C")
            found[state.read] = real if t.q is None else quantize(real, t.q, *t.q.range)
        with self._lock:
            self._write(found)

    def _place(self, name: Any) -> int:
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            raise InputError(f"the model has no state {shown(name)}; its states are: {known}")
        return self._names.index(name)

    def _read(self, names: Sequence[str]) -> Mapping[str, Array]:
        """States by the names that they are read by, as they are stored."""
        if self._executor is None:
            return self._held
        places = [self._reads.index(name) for name in names]
        with self._executor.states() as states:
            words = states.read(places)
        ports = [self._ports[place] for place in places]
        return dict(zip(names, map(inputs.from_words, ports, words), strict=True))

    def _write(self, values: Mapping[str, Array]) -> None:
        if self._executor is None:
            self._held = {**self._held, **values}
            return
        ports = {place: port for place, port in enumerate(self._ports) if port.name in values}
        words = inputs.words(list(ports.values()), values)
        with self._executor.states() as states:
            states.write(dict(zip(ports, words, strict=True)))
        self._followed |= self._integers(values)

    def _integers(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {name: array for name, array in values.items() if self._graph.types[name].dtype == INT32}
