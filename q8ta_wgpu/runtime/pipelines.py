"""An open device of an engine: locks, compiled pipelines, and reading buffers back."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.runtime import engines, handles
from q8ta_wgpu.runtime.constants import Constants
from q8ta_wgpu.runtime.engine import STORAGE, wgpu_errors
from q8ta_wgpu.runtime.flags import COMPUTE
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
        return self.pipelines([text], buffers)[0]

    def pipelines(self, texts: Sequence[str], buffers: int) -> list[Pipeline]:
        """The pipelines of several shaders, made side by side."""
        with self.compiling() as compiling:
            for text in texts:
                compiling.start(text, buffers)
            return [compiling.pipeline(text, buffers) for text in texts]

    @contextlib.contextmanager
    def compiling(self) -> Iterator[Compiling]:
        """A context in which pipelines are made side by side."""
        threads = self.engine.compilers(self.wgpu)
        if threads == 1:
            yield Compiling(self, None)
            return
        with contextlib.ExitStack() as stack:
            pool = ThreadPoolExecutor(threads, "compiling")
            stack.callback(pool.shutdown, cancel_futures=True)
            yield Compiling(self, pool)

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
            compiled = self.engine.compiled(self.wgpu, label, pipeline_layout, text)
        return Pipeline(compiled, bind_layout)

    def bind_group(self, pipeline: Pipeline, resources: Sequence[dict[str, Any]]) -> Any:
        """A bind group of buffer bindings: `{"buffer": buffer}`, or with an offset and a size."""
        entries = [{"binding": i, "resource": resource} for i, resource in enumerate(resources)]
        return self.wgpu.create_bind_group(layout=pipeline.layout, entries=entries)

    def upload(self, contents: Sequence[tuple[Any, NDArray[Any]]]) -> None:
        """Writes words to buffers. The caller holds the lock."""
        if contents:
            self.recorder(self.wgpu, (), (), spins=not self.software).upload(contents)

    def read(self, buffer: Any, size: int) -> bytes:
        """The first `size` bytes of a buffer, after all submitted work."""
        return self.reading(buffer, size)()

    def reading(self, buffer: Any, size: int) -> Callable[[], bytes]:
        """Submits a copy of the first `size` bytes of a buffer, behind all submitted work. Returns the function that
        waits for it, to be called once.

        It uses the recorder, since wgpu-py's `read_buffer` polls the device from a thread of its own, without our lock.
        """
        recorder = self.recorder(self.wgpu, (), [(buffer, size, 0)], spins=not self.software)
        staging = recorder.staging(size)

        def finish() -> bytes:
            try:
                found = bytes(recorder.read(staging))
                recorder.unmap(staging)
            finally:
                staging.destroy()
            return found

        try:
            recorder.submit(staging, recorder.record(staging))
        except BaseException:
            staging.destroy()
            raise
        return finish

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


class Compiling:
    """Pipelines of a device that are made side by side. `OpenDevice.compiling` makes it.

    Without a pool, the engine makes one at a time: each is made when it is taken, while the device's lock is held.
    """

    def __init__(self, device: OpenDevice, pool: ThreadPoolExecutor | None) -> None:
        self._device, self._pool = device, pool
        self._made: dict[str, Future[Pipeline]] = {}

    def start(self, text: str, buffers: int) -> None:
        """Begins to make a pipeline, as of `OpenDevice.pipeline`, unless the device has it. Other threads can use the
        device meanwhile."""
        device = self._device
        with device.lock:
            device._layout(buffers)  # made now, while the lock is held
            wanted = self._pool is not None and text not in self._made and text not in device._held
        if wanted and self._pool:
            self._made[text] = self._pool.submit(device._compile, text, buffers)

    def pipeline(self, text: str, buffers: int) -> Pipeline:
        """The pipeline, once it is made. Raises DeviceError if it does not compile."""
        device = self._device
        self.start(text, buffers)
        made = self._made.get(text)
        with device.lock if made is None else contextlib.nullcontext():
            pipeline = device._held.get(text) if made is None else made.result()
            return device._keep(text, pipeline or device._compile(text, buffers))
