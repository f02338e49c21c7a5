"""Runs that are recorded ahead, by wgpu-native's functions and by WebGPU's: the same outputs, and errors are raised."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from wgpu.backends.wgpu_native import _api

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.native import NativeRecorder
from q8ta_wgpu.runtime.recording import Recorder
from q8ta_wgpu.session import inputs
from q8ta_wgpu.session.streaming import IN_FLIGHT
from testbed import insides
from testbed.small import same_bytes
from testbed.standins import failing, noted
from tests.session.streams import EXPECTED, INPUTS, MODEL


def test_closing_while_runs_are_in_flight(vulkan: Device) -> None:
    """The results still come, and the staging buffers go with them."""
    with Session(MODEL, vulkan) as opened:
        executor = insides.executor(opened)
        fills = inputs.fills(opened.program.inputs, {"x": INPUTS[0]})
        runs = [executor.submit(fills) for _ in range(6)]
    for run in runs[:-1]:
        assert len(run.result()) == 2
    runs[-1].discard()
    assert insides.runs(executor).idle == []
    with pytest.raises(DeviceError, match="this program was closed"):
        executor.submit(fills)


def test_a_session_that_is_dropped_frees_its_memory_at_once(vulkan: Device) -> None:
    """By counting references: a recorded command buffer holds every buffer of the program."""
    opened = Session(MODEL, vulkan)
    list(opened.run_many(INPUTS))
    held: list[weakref.ref[Any]] = [weakref.ref(s) for s in insides.runs(insides.executor(opened)).idle]
    held.append(weakref.ref(insides.executor(opened)))
    gc.disable()
    try:
        del opened
        assert [ref() for ref in held] == [None] * (IN_FLIGHT + 1)
    finally:
        gc.enable()


def test_two_streams_at_a_time_make_their_buffers_once(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both begin and end again and again: new buffers take longer than a run."""
    with Session(MODEL, vulkan) as opened:
        runs = insides.runs(insides.executor(opened))
        made = noted(monkeypatch, runs, "_new")
        needed = 0
        for _ in range(3):
            for *found, expected in zip(opened.run_many(INPUTS), opened.run_many(INPUTS), EXPECTED, strict=True):
                for outputs in found:
                    same_bytes(outputs, expected)
            needed = needed or len(made)
            assert len(made) == needed > IN_FLIGHT


def test_what_an_interrupt_loses_is_not_counted(vulkan: Device) -> None:
    """Between the lines that take a staging buffer and that give it back."""
    with Session(MODEL, vulkan) as opened:
        list(opened.run_many(INPUTS))
        runs = insides.runs(insides.executor(opened))
        before = runs.bytes
        for _ in range(3 * IN_FLIGHT):
            with vulkan.lock:
                lost, _ = runs.take()
            runs.record_ahead()
            del lost, _
        list(opened.run_many(INPUTS))
        assert runs.bytes <= before + before // IN_FLIGHT


@pytest.mark.parametrize("form", [NativeRecorder, Recorder])
def test_the_next_run_is_recorded_while_the_device_works(
    form: type[Recorder], vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vulkan._measured, "recorder", form is NativeRecorder)
    with Session(MODEL, vulkan) as opened:
        executor = insides.executor(opened)
        recorder = insides.recorder(executor)
        events: list[str] = []

        def logged(name: str) -> Callable[..., Any]:
            original = getattr(recorder, name)

            def call(*arguments: Any) -> Any:
                events.append(name)
                return original(*arguments)

            return call

        for name in ("record", "submit", "read"):
            monkeypatch.setattr(recorder, name, logged(name))
        for _ in range(3):
            same_bytes(opened(INPUTS[0]), EXPECTED[0])
        assert events == ["record", "submit", "read", "record", *["submit", "record", "read"] * 2]
        events.clear()
        list(opened.run_many(INPUTS[:4]))
        assert events.count("submit") == events.count("read") == 4
        assert events[: events.index("read")].count("submit") == IN_FLIGHT


def test_errors_while_recording_are_raised(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native functions report errors to a handler: what it is told while recording must not only be logged."""
    with Session(MODEL, vulkan) as opened:
        executor = insides.executor(opened)
        recorder = insides.recorder(executor)
        assert isinstance(recorder, NativeRecorder)
        set_pipeline, *others = recorder._calls

        def complain(*arguments: Any) -> None:
            recorder._errors.handle_error("Validation", "this pipeline is of another device")
            set_pipeline(*arguments)

        monkeypatch.setattr(recorder, "_calls", (complain, *others))
        with pytest.raises(DeviceError, match="could not run the program: this pipeline is of another device"):
            opened(INPUTS[0])
        monkeypatch.undo()
        same_bytes(opened(INPUTS[0]), EXPECTED[0])


def test_an_interrupt_while_outputs_arrive(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may run a signal handler in the callback that wgpu-native calls: neither it nor the session is lost."""
    with Session(MODEL, vulkan) as opened:
        same_bytes(opened(INPUTS[0]), EXPECTED[0])
        failing(monkeypatch, _api, "from_c_string_view", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            opened(INPUTS[1])
        monkeypatch.undo()
        same_bytes(opened(INPUTS[2]), EXPECTED[2])


def test_the_public_form(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.recorder is device.engine.recorder
    other = Device(device.wgpu)
    package = "wgpu.backends.wgpu_native" if device.engine.name == "wgpu-native" else "wgpudawn.backends.dawn"
    monkeypatch.setattr(f"{package}._api.lib", object())
    assert other.recorder is Recorder
    monkeypatch.undo()
    with Session(MODEL, other) as opened:
        for outputs, expected in zip(opened.run_many(INPUTS), EXPECTED, strict=True):
            same_bytes(outputs, expected)
        same_bytes(opened(INPUTS[5]), EXPECTED[5])


def test_spinning_and_blocking_waits(vulkan: Device) -> None:
    """Software adapters never spin; here both ways of waiting are taken, by two threads at a time."""
    with Session(MODEL, vulkan) as opened, ThreadPoolExecutor(2) as pool:
        executor = insides.executor(opened)
        assert isinstance(executor, Executor)

        def work(turn: int) -> None:
            for outputs, expected in zip(opened.run_many(INPUTS), EXPECTED, strict=True):
                same_bytes(outputs, expected)

        for spins in (False, True):
            insides.recorder(executor).spins = spins
            list(pool.map(work, range(4)))
