"""Devices: choosing one, adapters and devices that fail, the arithmetic contract, what a target is measured by."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import wgpu

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.program import resolve
from q8ta_wgpu.program.wgsl_definitions import files
from q8ta_wgpu.runtime import engines, probe, rates, stopwatch
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.stopwatch import Settling, Stopwatch
from q8ta_wgpu.runtime.timestamps import Timestamps
from q8ta_wgpu.session.runner import has_products
from q8ta_wgpu.tuning import tuner
from testbed import insides
from testbed.devices import BACKENDS, Listing
from testbed.small import one_node, same_bytes, small_input, small_model
from testbed.standins import noted

MODEL = small_model()
NATIVE = engines.native()


# --- choosing a device ---


def test_default_names_numbers_and_the_callers_own(vulkan: Device) -> None:
    assert Session(MODEL).device is open_device(None, has_products(MODEL.graph))
    assert Session(MODEL, "VULKAN").device is vulkan
    for number, (owner, adapter) in enumerate(engines.listed()):
        if any(backend.lower() in owner.describe(adapter).lower() for backend in BACKENDS):
            chosen = Session(MODEL, number)
            assert chosen.name.partition("#")[0] == owner.describe(adapter)
            same_bytes(chosen(small_input()))
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    assert open_device(adapter).name == vulkan.name
    own = adapter.request_device_sync()
    first, second = Session(MODEL, own), Session(MODEL, own)
    assert first.device is second.device
    assert first.device is not None
    assert first.device.wgpu is own
    same_bytes(first(small_input()))
    same_bytes(second(small_input()))


@pytest.mark.parametrize("wrong", ["no such adapter", 99, -1, True, 1.5, object()])
def test_a_device_that_is_not_there(wrong: Any) -> None:
    with pytest.raises(DeviceError, match=r"there are 0: |device must be"):
        Session(MODEL, wrong)


def test_no_adapters_at_all(listing: Listing) -> None:
    listing([])
    with pytest.raises(DeviceError, match=r"no wgpu adapter.*device='reference'"):
        Session(MODEL)
    listing(RuntimeError("no driver"))
    with pytest.raises(DeviceError, match="could not list adapters: no driver"):
        NATIVE.adapters()


class FakeAdapter(wgpu.GPUAdapter):  # type: ignore[misc]
    """An adapter that lists well and cannot make a device, as OpenGL on a headless NVIDIA machine."""

    def __init__(self, fails: Callable[[], Any], kind: str = "DiscreteGPU") -> None:
        self.fails = fails
        self._adapter_info: Any = {"device": "Broken GPU", "backend_type": "OpenGL", "adapter_type": kind}
        self._features: frozenset[str] = frozenset()
        self._limits = {"max-buffer-size": 2**28, "max-storage-buffer-binding-size": 2**27}

    def __del__(self) -> None:
        pass

    def request_device_sync(self, **wanted: Any) -> Any:
        return self.fails()


def cannot() -> None:
    raise RuntimeError("storage buffers in compute are not supported\nby this driver")


def test_an_adapter_that_cannot_make_a_device(listing: Listing, vulkan: Device) -> None:
    """It is not used, though it is the best by its kind."""
    real = vulkan.wgpu.adapter
    listing([FakeAdapter(cannot), real] if real.info["adapter_type"] == "DiscreteGPU" else [real, FakeAdapter(cannot)])
    assert NATIVE.describe(NATIVE.adapters()[0]) == "Broken GPU (OpenGL, wgpu-native)"
    with pytest.raises(
        DeviceError, match=r"Broken GPU \(OpenGL, wgpu-native\) cannot make a device: storage buffers in compute"
    ):
        Session(MODEL, "broken")
    assert Session(MODEL).name.partition("#")[0] == NATIVE.describe(real)


def test_a_device_below_the_baseline(monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    class Small:
        def __init__(self) -> None:
            self.adapter = vulkan.wgpu.adapter
            self.features: frozenset[str] = frozenset()
            self.limits = {**vulkan.wgpu.limits, "max-storage-buffers-per-shader-stage": 4}

    with pytest.raises(DeviceError, match=r"max-storage-buffers-per-shader-stage 4, every program needs 8"):
        Device(Small())


def test_a_value_that_cannot_be_bound(vulkan: Device) -> None:
    size = vulkan.target.binding_size // 4
    model = one_node("add", (size // 1024 + 1, 1024), inputs=2)
    with pytest.raises(DeviceError, match=r"more than the \d+ bytes"):
        Session(model, vulkan)
    assert Session(model, "reference").model is model


def test_threads_open_the_same_adapter_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({id(d) for d in pool.map(open_device, ["vulkan"] * 16)}) == 1


# --- the arithmetic contract ---


def test_every_device_keeps_the_contract(device: Device) -> None:
    assert device.contract == ""


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("vec4<i32>(round(clamp(", "vec4<i32>(trunc(clamp(", "accumulator"),
        ("vec4<f32>(T_LIMIT)", "vec4<f32>(T_LIMIT * 0.5)", "accumulator"),
        ("vec4<f32>(acc), multiplier", "vec4<f32>(acc & vec4<i32>(-2)), multiplier", "accumulator"),
        ("clamp(round(v), -limit, limit)", "clamp(trunc(v + 0.5), -limit, limit)", "quantize"),
        ("i32(clamp(round(v), -limit, limit))", "i32(clamp(round(v), -limit, limit * 0.5))", "quantize"),
        ("((v >> k) & 1i)", "1i", "rounds half to even"),
        ("> 0x7f800000u", "> 0x7fffffffu", "quantize"),
    ],
)
def test_a_device_that_breaks_the_contract(
    good: str, bad: str, rule: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe sees each kind of wrong arithmetic, and int8 is refused, with the numbers; float models still run."""
    complete = resolve.complete
    assert any(good in text for text in files().values())
    other = Device(vulkan.wgpu)
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "complete", lambda *text: complete(*text).replace(good, bad))
        assert rule in other.contract  # probed once, when first asked for
    monkeypatch.setattr(tuner, "tune", None)  # no kernel is timed there
    for tune in (False, True):
        with pytest.raises(DeviceError, match=r"cannot run int8 models: .*the contract .*results differ"):
            Session(MODEL, other, tune=tune)
    assert Session(one_node("add", (3,), inputs=2), other)(np.ones(3, np.float32), np.ones(3, np.float32)).sum() == 6


class Said:
    """A device that says it is of a kind."""

    def __init__(self, real: Any, kind: str) -> None:
        self.real = real
        self.adapter = FakeAdapter(cannot)
        self.adapter._adapter_info = {**real.adapter.info, "adapter_type": kind}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(
    ("packed", "emulated", "fast"),
    [(6.0, 1.0, True), (1.0, 1.0, False), (1.0, 6.0, False)],
)
def test_a_target_is_measured_when_a_device_is_opened(
    packed: float, emulated: float, fast: bool, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and on a GPU alone: nothing that is asked of a device later changes what it is scheduled for."""
    asked: list[Device] = []

    def measured(device: Device) -> rates.DotRates:
        asked.append(device)
        return rates.DotRates(packed, emulated)

    monkeypatch.setattr(rates, "dot_rates", measured)
    gpu = Device(Said(vulkan.wgpu, "DiscreteGPU"))
    assert (gpu.target.packed_dot, gpu.target.fast_dot) == (fast, fast)
    assert gpu.target == replace(BASELINE, **limits_of(gpu), packed_dot=fast, fast_dot=fast)
    assert asked == [gpu]
    cpu = Device(Said(vulkan.wgpu, "CPU"))
    assert cpu.target == replace(SOFTWARE, **limits_of(cpu))
    assert asked == [gpu]
    for device in (gpu, cpu):
        before = device.target
        with Session(MODEL, device) as opened:
            opened.time(small_input(), repeats=1, warmup=0)
        assert device.target is before
        with ThreadPoolExecutor(4) as pool:
            assert set(map(id, pool.map(getattr, [device] * 8, ["dot_rates"] * 8))) == {id(device.dot_rates)}
    assert asked == [gpu, cpu]


@pytest.mark.parametrize("settles", [True, False])
def test_clocks_have_risen_once_two_windows_agree(settles: bool) -> None:
    """An H100 timed ResNet-50 at 2.66 ms in a first call and at 1.56 later. It ends, too, if times never agree."""
    seconds = itertools.count(0.0, 0.21)  # two times are a window
    settling = Settling(lambda: next(seconds))
    rising = [2660.0, 2660.0, 2600.0, 2600.0, 2000.0, 2000.0]
    times = itertools.chain(rising, itertools.cycle([1600.0, 1590.0] if settles else [9.0, 9.0, 7.0, 7.0]))
    taken = 0
    while not settling.done:
        settling.add(next(times))
        taken += 1
    assert settling.settled == settles
    assert taken == (10 if settles else 30)


@pytest.mark.parametrize("slow", [True, False])
def test_runs_are_timed_without_a_pause_after_their_load(
    slow: bool, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even an upload is between them, which makes clocks fall. A run that is longer than a window needs no load."""
    gpu = insides.like(vulkan, software=False)
    monkeypatch.setattr(stopwatch, "WINDOW", 0.0 if slow else 0.05)
    with Session(MODEL, gpu) as session:
        executor = insides.executor(session)
        words = [np.zeros(port.size // 4, np.uint32) for port in session.program.inputs]
        uploads, runs = noted(monkeypatch, executor, "upload"), noted(monkeypatch, stopwatch, "record_pass")
        settled, times = Stopwatch(executor).settled_runs(words, 4)
    assert times.shape == (4,) and times.min() > 0 and len(uploads) == 2
    assert (len(runs) == 2 + 5) == slow
    assert settled or not slow


def test_a_load_has_no_pauses(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next runs are submitted before the last ones have ended, as long as the load is to last."""
    gpu = insides.like(vulkan, software=False)
    events: list[str] = []
    submit = Timestamps.submit

    def noted(self: Timestamps, encoder: Any) -> Any:
        events.append("submit")
        finish = submit(self, encoder)

        def waited() -> Any:
            events.append("wait")
            return finish()

        return waited

    monkeypatch.setattr(Timestamps, "submit", noted)
    monkeypatch.setattr(stopwatch, "LONGEST", 0.3)
    with Session(MODEL, gpu) as session:
        words = [np.zeros(port.size // 4, np.uint32) for port in session.program.inputs]
        Stopwatch(insides.executor(session)).settled_runs(words, 9)
    ahead = [events[:i].count("submit") - events[:i].count("wait") for i in range(len(events) + 1)]
    assert max(ahead) == 2 and ahead[-1] == 0
    assert events.count("submit") > 5


def limits_of(device: Device) -> dict[str, Any]:
    behaviour = {"packed_dot", "fast_dot", "shares_memory", "few_cores", "unroll"}
    return {key: value for key, value in asdict(device.target).items() if key not in behaviour}


def test_dot_rates_of_a_device_that_others_use(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the device while the first timings are made: of either form, which are timed in turns."""
    taken: list[float] = []

    def elapsed(kernel: probe.Probe, groups: int, repeats: int = 1) -> float:
        taken.append(repeats * (1.0 if len(taken) < 8 else 1e-3) * (1.0 if kernel is kernels[0] else 5.0))
        return taken[-1]

    monkeypatch.setattr(probe.Probe, "elapsed", elapsed)
    gpu = Device(Said(vulkan.wgpu, "DiscreteGPU"))
    kernels = [probe.Probe(gpu, None, None, None) for _ in range(2)]
    packed, emulated = rates.in_turns(kernels, 4096, 0.02)
    assert (packed, emulated) == (1e-3, 5e-3)


def test_dot_rates(vulkan: Device) -> None:
    assert vulkan.dot_rates.packed > 0
    assert vulkan.dot_rates.emulated > 0
