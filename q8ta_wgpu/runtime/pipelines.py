"""An open device of an engine: locks, compiled pipelines, and reading buffers back."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.runtime import engines, handles
from q8ta_wgpu.runtime.constants import Constants
from q8ta_wgpu.runtime.engine import COMPUTE, STORAGE, wgpu_errors
from q8ta_wgpu.runtime.recording import Recorder

RECENT_PIPELINES = 128
"""Limit of recent pipelines that a device keeps, enough for some networks. Tuning compiles thousands, and an unrolled
matrix product takes 5 MiB on lavapipe."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled compute pipeline and the layout of its bind groups."""

    pipeline: Any
    layout: Any


class OpenDevice:
    """A device and a cache of its pipelines. Probes and rates need only this; `Device` adds their results.

    Attributes:
        wgpu: the device, of either package.
        engine: its engine.
        name: `name (backend, engine)` of its adapter.
        lock: held while objects are created, and commands recorded and submitted.
        waiting: held while a run is awaited; a real lock only if the engine needs one (`Engine.locks`).
        software: whether it runs on the host's CPU.
        timestamps: whether it has timestamp queries.
        binding_size: bytes of the largest buffer that can be bound to a kernel.
        constants: weights and tables of the loaded programs.
    """

    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        engine = engines.engine_of(wgpu_device.adapter)
        assert engine is not None, wgpu_device
        self.engine = engine
        self.name = engine.describe(wgpu_device.adapter)
        self.lock, self.waiting = engine.locks(wgpu_device)
        self.software = wgpu_device.adapter.info["adapter_type"] == "CPU"
        self.timestamps = "timestamp-query" in wgpu_device.features
        limits = wgpu_device.limits
        self.binding_size: int = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        self._held: weakref.WeakValueDictionary[str, Pipeline] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, Pipeline] = OrderedDict()
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._measured: dict[str, Any] = {}
        self.constants = Constants()

    def pipeline(self, text: str, buffers: int) -> Pipeline:
        """The pipeline of a linked shader whose first `buffers` bindings are storage, the last of them written.

        It is compiled only if it is neither in use nor among the RECENT_PIPELINES last ones. Raises DeviceError with
        the driver's message if it does not compile.
        """
        with self.pipelines([(text, buffers)]) as found:
            return next(found)

    @contextlib.contextmanager
    def pipelines(self, wanted: Sequence[tuple[str, int]]) -> Generator[Iterator[Pipeline]]:
        """`pipeline` for many shaders, in order. Missing ones compile in as many threads as the engine allows, as soon
        as the context is entered. The iterator must be used in one thread.

        Other threads can use the device meanwhile: the lock is held during a compilation only if the engine requires
        it.
        """
        compilers = self.engine.compilers(self.wgpu)
        with self.lock:
            known = {text: self._held.get(text) for text, _ in wanted}
            missing = {text: buffers for text, buffers in wanted if known[text] is None}
            for buffers in missing.values():
                self._layout(buffers)  # made now, while the lock is held
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
                        pipeline = known[text] or (
                            compiled[text].result() if compiled else self._compile(text, buffers)
                        )
                    known[text] = kept = self._keep(text, pipeline)
                    yield kept

            yield taken()

    def _keep(self, text: str, pipeline: Pipeline) -> Pipeline:
        """Caches a pipeline while it is in use or recent. Returns the cached one if another thread was faster."""
        with self.lock:
            cached = self._held.setdefault(text, pipeline)
            self._recent[text] = cached
            self._recent.move_to_end(text)
            if len(self._recent) > RECENT_PIPELINES:
                self._recent.popitem(last=False)
        return cached

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

        It uses the recorder, since wgpu-py's `read_buffer` polls the device from a thread of its own, without our lock.
        """
        recorder = self.recorder(self.wgpu, (), [(buffer, size, 0)], spins=not self.software)
        staging = recorder.staging(size)
        try:
            recorder.submit(staging, recorder.record(staging))
            found = bytes(recorder.read(staging))
            recorder.unmap(staging)
        finally:
            staging.destroy()
        return found

    @property
    def info(self) -> dict[str, Any]:
        """The adapter's information from the engine, and as 'engine' the package and its version."""
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
    def recorder(self) -> type[Recorder]:
        """The recorder of programs for this device: the engine's own one if it works."""
        works = self._once("recorder", lambda: handles.works(self.engine.recorder, self.wgpu))
        return self.engine.recorder if works else Recorder

    def _once(self, name: str, measure: Callable[[], Any]) -> Any:
        """The result of `measure`, which runs only once for each name."""
        with self.lock:
            if name not in self._measured:
                with wgpu_errors(f"{self.name} could not be measured"):
                    self._measured[name] = measure()
            return self._measured[name]

    def _layout(self, buffers: int) -> tuple[Any, Any]:
        if buffers not in self._layouts:
            kinds = ["read-only-storage"] * (buffers - 1) + ["storage", "uniform"]
            entries = [{"binding": i, "visibility": COMPUTE, "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
            layout = self.wgpu.create_bind_group_layout(entries=entries)
            self._layouts[buffers] = layout, self.wgpu.create_pipeline_layout(bind_group_layouts=[layout])
        return self._layouts[buffers]
