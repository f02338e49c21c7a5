"""Devices: what becomes a DeviceError, what is freed, and pipelines, compiled at a time and kept by who uses them."""

from __future__ import annotations

import functools
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu
from wgpu.backends.wgpu_native._poller import PollThread

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.runtime import handles
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import STORAGE, wgpu_errors
from q8ta_wgpu.runtime.engines import named
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.pipelines import Pipeline
from q8ta_wgpu.runtime.stopwatch import Stopwatch
from q8ta_wgpu.runtime.timestamps import timestamps
from testbed import harness, insides
from testbed.small import small_input, small_model
from testbed.standins import failing

MODEL = small_model()
ROOT = Path(__file__).parents[2]


def with_words(text: str) -> str:
    """A small module, different from every other text."""
    return f"""// {text}
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
struct Params {{ count: u32 }};
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ if (id.x < params.count) {{ y[id.x] = x[id.x]; }} }}
"""


# --- errors ---


@pytest.mark.parametrize(
    "error",
    [
        wgpu.GPUError("the driver's words"),
        wgpu.GPUValidationError("the driver's words"),
        wgpu.GPUOutOfMemoryError("the driver's words"),
        wgpu.GPUInternalError("the driver's words"),
        wgpu.GPUPipelineError("the driver's words", {"reason": "internal"}),
        RuntimeError("the driver's\n words"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_wgpu_raises(error: Exception) -> None:
    named("wgpu-native")  # whose package raises these
    with pytest.raises(DeviceError, match=r"^could not work: the driver's words$"), wgpu_errors("could not work"):
        raise error


@pytest.mark.parametrize(
    "error", [IndexError(3), TypeError("x"), RecursionError(), NotImplementedError(), KeyboardInterrupt()], ids=repr
)
def test_our_own_mistakes_are_no_device_errors(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, wgpu_errors("could not work"):
        raise error
    assert caught.value is error


def test_a_mistake_while_a_program_is_loaded(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as it is, and what was made is freed."""
    made: list[Any] = []
    original = Executor._buffer

    def noted(self: Executor, size: int, usage: int) -> Any:
        made.append(original(self, size, usage))
        return made[-1]

    monkeypatch.setattr(Executor, "_buffer", noted)
    failing(monkeypatch, Executor, "_bind", IndexError("list index out of range"))
    with pytest.raises(IndexError, match="list index"):
        Executor(harness.program_of(MODEL.graph, vulkan.target), vulkan)
    assert made
    for buffer in made:
        with pytest.raises(wgpu.GPUError, match="destroyed"):
            vulkan.wgpu.queue.write_buffer(buffer, 0, np.zeros(4, np.uint32))


# --- what is freed ---


class Counting:
    """A wgpu device that notes which query sets and buffers are made and not destroyed, and whose making may fail."""

    def __init__(self, real: Any, fails: str) -> None:
        self.real, self.fails = real, fails
        self.alive: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _made(self, made: Any) -> Any:
        self.alive.add(id(made))
        original = made.destroy

        def destroy() -> None:
            self.alive.discard(id(made))
            original()

        made.destroy = destroy
        return made

    def create_query_set(self, **wanted: Any) -> Any:
        return self._made(self.real.create_query_set(**wanted))

    def create_buffer(self, **wanted: Any) -> Any:
        if self.fails == "create_buffer":
            raise wgpu.GPUOutOfMemoryError("not enough memory left")
        return self._made(self.real.create_buffer(**wanted))


@pytest.mark.parametrize("fails", ["", "create_buffer", "read"])
def test_timestamps_are_freed(fails: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, other = Counting(vulkan.wgpu, fails), Device(vulkan.wgpu)
    other.wgpu = counting
    if fails == "read":
        failing(monkeypatch, other, "reading", wgpu.GPUError("lost"))

    def measured() -> float:
        with timestamps(other, 1) as stamps:
            assert len(counting.alive) == 2
            encoder = counting.create_command_encoder()
            encoder.begin_compute_pass(timestamp_writes=stamps.around(0)).end()
            return float(stamps.submit(encoder)()[0])

    if fails:
        with pytest.raises(wgpu.GPUError):
            measured()
    else:
        assert measured() >= 0
    assert not counting.alive


def test_constants_larger_than_a_piece_of_mapped_memory(device: Device) -> None:
    """Several share a piece, and one is in several of them."""
    rng = np.random.default_rng(0)
    contents = [
        rng.integers(0, 1 << 32, size, np.uint32)
        for size in (5, handles.PIECE // 4 - 3, 7, handles.PIECE // 2 + 9, 4, 1)
    ]
    buffers = [device.wgpu.create_buffer(size=words.nbytes, usage=STORAGE) for words in contents]
    for count in (2, len(contents)):
        with device.lock:
            device.upload(list(zip(buffers, contents, strict=True))[:count])
        for buffer, words in list(zip(buffers, contents, strict=True))[:count]:
            assert device.read(buffer, words.nbytes) == words.tobytes()
    for buffer in buffers:
        buffer.destroy()


def test_no_thread_polls_without_our_lock(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu-py's public ways of reading wake a thread that polls: on OpenGL that ends the process, now and then."""
    failing(monkeypatch, PollThread, "get_token", AssertionError("a thread was woken"))
    other = Device(device.wgpu)
    assert other.contract == ""
    assert other.dot_rates.packed > 0
    assert other.copy_rate > 0
    with Session(MODEL, other) as opened:
        opened(small_input())
        assert opened.time(small_input(), repeats=1, warmup=0).total_ms > 0


def test_times_follow_the_clock_of_the_timestamps(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu-native hands out ticks: on a GPU whose tick is 1 us, 1000 of them are no microsecond."""
    program = harness.program_of(MODEL.graph, vulkan.target)
    executor = Executor(program, vulkan)
    watch = Stopwatch(executor)
    plain = np.median(watch.time_runs([small_input()], 9))
    monkeypatch.setattr(vulkan.engine, "timestamp_period", lambda device: 1000.0)
    assert np.median(watch.time_runs([small_input()], 9)) > 100 * plain
    executor.close()


def test_a_refused_mapping_lets_its_callback_go(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(MODEL, vulkan) as opened:
        recorder = insides.recorder(insides.executor(opened))
        assert isinstance(recorder, handles.HandleRecorder)
        before = dict(handles.mapping)
        refused = wgpu.GPUValidationError("this buffer is mapped already")
        failing(monkeypatch, recorder._safe, "wgpuBufferMapAsync", refused)
        with pytest.raises(DeviceError, match="mapped already"):
            opened(small_input())
        assert handles.mapping == before
        monkeypatch.undo()
        opened(small_input())


# --- pipelines ---


def _made(device: Device, *texts: str) -> list[Pipeline]:
    """The pipelines of shaders with two buffers, all of them begun before the first is taken."""
    with device.compiling() as compiling:
        for text in texts:
            compiling.start(text, 2)
        return [compiling.pipeline(text, 2) for text in texts]


@pytest.mark.parametrize("threads", [1, 4])
def test_pipelines_compile_at_a_time(threads: int, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, each once, and an error is that of its kernel; what compiled before it stays."""
    other = Device(vulkan.wgpu)
    monkeypatch.setattr(other.engine, "compilers", lambda device: threads)
    original, used = Device._compile, set()

    def compiling(self: Device, text: str, buffers: int) -> Pipeline:
        used.add(threading.current_thread().name.partition("_")[0])
        return original(self, text, buffers)

    monkeypatch.setattr(Device, "_compile", compiling)
    texts = [with_words(f"{threads} at a time, {i % 4}") for i in range(6)]
    found = _made(other, *texts)
    assert found[:2] == found[4:] and len(set(found)) == 4
    assert [other.pipeline(text, 2) for text in texts] == found
    assert used == ({"compiling"} if threads > 1 else {"MainThread"})
    with pytest.raises(DeviceError, match="could not compile kernel broken"):
        _made(other, texts[0], "// broken\nfn main( {", with_words(f"{threads} at a time, last"))
    assert other.pipeline(texts[0], 2) is found[0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_session_runs_while_another_one_compiles(count: int, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of their device is free while pipelines compile, where the engine compiles in threads."""
    compiling, let = threading.Event(), threading.Event()

    def slow(self: Device, text: str, buffers: int) -> Pipeline:
        compiling.set()
        assert let.wait(60)
        return Pipeline(None, None)

    def opened() -> int:
        return len(_made(other, *(with_words(f"meanwhile {i}") for i in range(count))))

    other = Device(vulkan.wgpu)
    other.lock = vulkan.lock
    monkeypatch.setattr(other.engine, "compilers", lambda device: 2)
    with Session(MODEL, vulkan) as session, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(Device, "_compile", slow)
        opening = pool.submit(opened)
        assert compiling.wait(60)
        try:
            found = pool.submit(session, small_input()).result(60)
            assert not opening.done()
        finally:
            let.set()
        assert opening.result(60) == count
    np.testing.assert_array_equal(found["y"], Session(MODEL, "reference")(small_input())["y"])


def test_pipelines_are_kept_by_who_uses_them(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program holds its own; beside those a device keeps the last ones asked for, and no more."""
    monkeypatch.setattr("q8ta_wgpu.runtime.pipelines.RECENT_PIPELINES", 3)
    other = Device(vulkan.wgpu)
    executor = Executor(harness.program_of(MODEL.graph, other.target), other)
    own = set(insides.pipelines(other)[0])
    assert len(own) == len(executor.program.shaders) > 3
    first = other.pipeline(with_words("0"), 2)
    for i in range(1, 6):
        other.pipeline(with_words(str(i)), 2)
    assert len(insides.pipelines(other)[1]) == 3
    assert set(insides.pipelines(other)[0]) == own | {with_words(str(i)) for i in (0, 3, 4, 5)}
    assert other.pipeline(with_words("0"), 2) is first
    assert all(other.pipeline(text, 2) is insides.pipelines(other)[0][text] for text in own)
    executor.close()
    del executor
    gc.collect()
    assert len(insides.pipelines(other)[0]) == 3 + len({with_words("0")} - set(insides.pipelines(other)[1]))


def test_types_are_read_alone(vulkan: Device) -> None:
    """By cffi, for wgpu-py: the same types as beside the whole header, and soon."""
    from wgpu.backends.wgpu_native._ffi import ffi

    parser, seconds = ffi._parser, {True: 0.0, False: 0.0}
    declarations = parser._declarations
    declared = dict(declarations)
    for text in (
        "WGPUBufferDescriptor *",
        "WGPULimits",
        "WGPUFeatureName[3]",
        "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
        "struct WGPUChainedStruct *",
        "uint64_t[]",
    ):
        found = {}
        for alone, read in ((True, parser.parse_type), (False, functools.partial(type(parser).parse_type, parser))):
            started = time.process_time()
            found[alone] = read(text)
            seconds[alone] += time.process_time() - started
        assert found[True] == found[False], text
    assert 5 * seconds[True] < seconds[False]
    assert declarations == declared
    with pytest.raises(Exception, match="WGPUNothing"):
        parser.parse_type("WGPUNothing *")


def test_weights_that_threads_pack_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, whatever thread packs it."""
    one = harness.program_of(MODEL.graph)
    monkeypatch.setattr("q8ta_wgpu.program.build.MANY", 0)
    many = harness.program_of(MODEL.graph)
    assert many.dispatches == one.dispatches and many.shaders == one.shaders
    for found, expected in zip(many.constants, one.constants, strict=True):
        np.testing.assert_array_equal(found, expected)
