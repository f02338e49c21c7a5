"""Open devices: pipelines, bind groups, targets, and measured rates."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, MatrixUnit, Target
from q8ta_wgpu.runtime import engines, handles, probe, rates
from q8ta_wgpu.runtime.engine import COMPUTE, STORAGE, wgpu_errors
from q8ta_wgpu.runtime.recording import Recorder

_LIMITS = {
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "invocations": "max-compute-invocations-per-workgroup",
    "workgroup_memory": "max-compute-workgroup-storage-size",
    "workgroups": "max-compute-workgroups-per-dimension",
}
"""A target's limits by WebGPU's names. Every program needs those of BASELINE."""

RECENT_PIPELINES = 128
"""Pipelines that a device keeps beside those in use: some networks' worth. Tuning compiles thousands, and one of an
unrolled matrix product takes 5 MiB on lavapipe."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled compute pipeline and the layout of its bind groups."""

    pipeline: Any
    layout: Any


class Device:
    """An open device with its pipelines and measured rates. Sessions and threads may share it.

    Raises DeviceError where the device offers less than WebGPU's baseline (some OpenGL drivers do), or fails when its
    dot products are measured.

    Attributes:
        wgpu: the device, of either package.
        engine: its engine.
        name: `name (backend, engine)` of its adapter.
        lock: held while something is made, recorded and submitted.
        waiting: held while a run is awaited: a lock where the engine needs one (`Engine.locks`).
        software: whether it runs on the host's CPU.
        timestamps: whether it has timestamp queries.
        target: the target of programs for it.
        unit_faults: matrix units that are not used, with the reason: they compute other bytes, or their kernels do not
            compile.
    """

    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        engine = engines.engine_of(wgpu_device.adapter)
        assert engine is not None, wgpu_device
        self.engine = engine
        self.name = engine.describe(wgpu_device.adapter)
        for name, limit in _LIMITS.items():
            if (found := wgpu_device.limits[limit]) < (needed := getattr(BASELINE, name)):
                raise DeviceError(f"{self.name} offers {limit} {found}, every program needs {needed}")
        self.lock, self.waiting = engine.locks(wgpu_device)
        self.software = wgpu_device.adapter.info["adapter_type"] == "CPU"
        self.timestamps = "timestamp-query" in wgpu_device.features
        self._held: weakref.WeakValueDictionary[str, Pipeline] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, Pipeline] = OrderedDict()
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._measured: dict[str, Any] = {}
        self.unit_faults: dict[MatrixUnit, str] = {}
        self.target = self._target()

    def pipeline(self, text: str, buffers: int) -> Pipeline:
        """The pipeline of a linked shader whose first `buffers` bindings are storage, the last of them written.

        It is compiled once, as long as it is in use or among the RECENT_PIPELINES last ones. Raises DeviceError with
        the driver's words if it does not compile.
        """
        with self.pipelines([(text, buffers)]) as found:
            return next(found)

    @contextlib.contextmanager
    def pipelines(self, wanted: Sequence[tuple[str, int]]) -> Generator[Iterator[Pipeline]]:
        """`pipeline` of many shaders, in order. Missing ones compile in as many threads as the engine allows, from when
        the context is entered. Take the results in one thread.

        Other threads use the device meanwhile: the lock is held during a compilation only where the engine requires it.
        """
        compilers = self.engine.compilers(self.wgpu)
        with self.lock:
            known = {text: self._held.get(text) for text, _ in wanted}
            missing = {text: buffers for text, buffers in wanted if known[text] is None}
            for buffers in missing.values():
                self._layout(buffers)  # made here, where nobody else makes one
        threads = min(compilers, len(missing))
        with contextlib.ExitStack() as pools:
            compiled: dict[str, Future[Pipeline]] = {}
            if threads > 1:
                pool = ThreadPoolExecutor(threads, "compiling")
                pools.callback(pool.shutdown, cancel_futures=True)
                compiled = {text: pool.submit(self._compile, text, buffers) for text, buffers in missing.items()}

            def taken() -> Iterator[Pipeline]:
                for text, buffers in wanted:
                    with self.lock if compilers == 1 else contextlib.nullcontext():
                        made = known[text] or (compiled[text].result() if compiled else self._compile(text, buffers))
                    known[text] = kept = self._keep(text, made)
                    yield kept

            yield taken()

    def _keep(self, text: str, made: Pipeline) -> Pipeline:
        """Keeps a pipeline while it is in use or recent. Returns the one already there if another thread was faster."""
        with self.lock:
            kept = self._held.setdefault(text, made)
            self._recent[text] = kept
            self._recent.move_to_end(text)
            if len(self._recent) > RECENT_PIPELINES:
                self._recent.popitem(last=False)
        return kept

    def _compile(self, text: str, buffers: int) -> Pipeline:
        label = text.split("\n", 1)[0].removeprefix("// ")
        with wgpu_errors(f"{self.name} could not compile kernel {label}"):
            bind_layout, pipeline_layout = self._layout(buffers)
            module = self.engine.create_module(self.wgpu, label, text)
            compiled = self.wgpu.create_compute_pipeline(
                label=label, layout=pipeline_layout, compute={"module": module, "entry_point": "main"}
            )
        return Pipeline(compiled, bind_layout)

    def bind_group(self, pipeline: Pipeline, resources: Sequence[dict[str, Any]]) -> Any:
        """A bind group of buffer bindings: `{"buffer": buffer}`, or with an offset and a size."""
        entries = [{"binding": i, "resource": resource} for i, resource in enumerate(resources)]
        return self.wgpu.create_bind_group(layout=pipeline.layout, entries=entries)

    def read(self, buffer: Any, size: int) -> bytes:
        """The first `size` bytes of a buffer, after all submitted work.

        It uses the recorder, not wgpu-py's `read_buffer`, which wakes a thread of its own that polls the device without
        our lock.
        """
        recorder = self.recorder(self.wgpu, (), [(buffer, size, 0)], spins=not self.software)
        staging = recorder.staging(size)
        try:
            data = recorder.read(staging, recorder.submit(recorder.record(staging)))
            found = bytes(data)
            recorder.unmap(staging)
        finally:
            staging.buffer.destroy()
        return found

    @property
    def info(self) -> dict[str, Any]:
        """The adapter's information from the engine, and under 'engine' the engine and its version."""
        return {**self.wgpu.adapter.info, "engine": self.engine.version}

    @property
    def alive(self) -> bool:
        """Whether the device still works. A lost one never comes back."""
        try:
            with self.lock, wgpu_errors(f"{self.name} was lost"):
                self.wgpu.create_buffer(size=16, usage=STORAGE).destroy()
        except DeviceError:
            return False
        return True

    @property
    def contract(self) -> str:
        """How the device breaks the arithmetic contract of the int8 operators; empty where it keeps it."""
        return str(self._once("contract", probe.contract))

    @property
    def loop_turns(self) -> int:
        """How many of the `target.loop_turns` turns that kernels rely on the loops of a thread take."""
        return int(self._once("loop_turns", lambda device: probe.loop_turns(device, device.target.loop_turns)))

    def check_loops(self) -> None:
        """Raises DeviceError where the device ends loops earlier than kernels allow for."""
        if self.loop_turns < (needed := self.target.loop_turns):
            raise DeviceError(
                f"{self.name} ends the loops of a thread after {self.loop_turns} turns, where kernels rely on "
                f"{needed}. Use another backend or device='reference'"
            )

    @property
    def dot_rates(self) -> rates.DotRates:
        """Measured speed of dot4I8Packed and of its emulation."""
        found: rates.DotRates = self._once("dot_rates", rates.dot_rates)
        return found

    @property
    def unit_rate(self) -> float:
        """Measured rate of the fastest matrix unit of the target: 10^9 operations (2 a multiply-accumulate) a second; 0
        without one."""
        units = self.target.matrix_units
        return float(self._once("unit_rate", lambda _: max((rates.unit_rate(self, u) for u in units), default=0.0)))

    @property
    def copy_rate(self) -> float:
        """Measured copy bandwidth: 10^9 bytes read and written a second, in buffers larger than most caches."""
        return float(self._once("copy_rate", rates.copy_rate))

    def _once(self, name: str, measure: Callable[[Device], Any]) -> Any:
        """The result of `measure`, which one thread runs once."""
        with self.lock:
            if name not in self._measured:
                with wgpu_errors(f"{self.name} could not be measured"):
                    self._measured[name] = measure(self)
            return self._measured[name]

    def _target(self) -> Target:
        """The device's limits and behaviour. Dot products are measured, except where both forms are known to be alike.

        A rate counts as higher only if it is by a quarter, the noise of such a measurement.
        """
        limits = self.wgpu.limits
        found = replace(
            SOFTWARE if self.software else BASELINE,
            name=self.name,
            **{name: limits[limit] for name, limit in _LIMITS.items()},
            binding_size=min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"]),
            uniform_alignment=max(limits["min-uniform-buffer-offset-alignment"], 16),
        )
        if self.software:
            # SwiftShader's compiler takes gigabytes and minutes for loops that are written out.
            return replace(found, unroll="llvmpipe" in self.name)
        packed, emulated = self.dot_rates.packed, self.dot_rates.emulated
        units = self._units(found)
        return replace(
            found, packed_dot=emulated < 1.25 * packed, fast_dot=packed > 1.25 * emulated, matrix_units=units
        )

    def _units(self, target: Target) -> tuple[MatrixUnit, ...]:
        """The adapter's matrix units that compute what the reference does. The others become `unit_faults`."""
        right = []
        for unit in self.engine.matrix_units(self.wgpu.adapter):
            if fault := probe.wrong_unit(self, target, unit):
                self.unit_faults[unit] = fault
            else:
                right.append(unit)
        return tuple(right)

    @property
    def recorder(self) -> type[Recorder]:
        """The recorder of programs for this device: by the engine's own functions where they are available."""
        works = self._once("recorder", lambda device: handles.works(device.engine.recorder, device.wgpu))
        return self.engine.recorder if works else Recorder

    def _layout(self, buffers: int) -> tuple[Any, Any]:
        if buffers not in self._layouts:
            kinds = ["read-only-storage"] * (buffers - 1) + ["storage", "uniform"]
            entries = [{"binding": i, "visibility": COMPUTE, "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
            layout = self.wgpu.create_bind_group_layout(entries=entries)
            self._layouts[buffers] = layout, self.wgpu.create_pipeline_layout(bind_group_layouts=[layout])
        return self._layouts[buffers]
