"""Both engines behind one interface: choosing them, using them at once, and what each says when something fails."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wgpu
import wgpudawn

from bench.widths import graph_of
from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.runtime import adapters, engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.dawn import Dawn, DawnRecorder
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.opened import _has_matrix_work
from tests.conftest import SWIFTSHADER
from tests.harness import flat
from tests.runtime.test_runtime import with_words
from tests.small import small_input, small_model

MODEL = small_model()
INPUTS = [small_input(seed) for seed in range(6)]
EXPECTED = [flat(Session(MODEL, "reference")(x)) for x in INPUTS]
ROOT = Path(__file__).parents[2]


def equal(outputs: Any, number: int) -> bool:
    """Whether every output of the model for an input has the reference's bytes."""
    return all(np.array_equal(f, e) for f, e in zip(flat(outputs), EXPECTED[number], strict=True))


def dawn() -> Dawn:
    found = engines.dawn()
    assert found is not None
    return found


# --- choosing ---


@pytest.mark.parametrize(
    ("text", "engine", "part"),
    [
        ("dawn:swiftshader", "dawn", "SwiftShader"),
        ("DAWN:SwiftShader", "dawn", "SwiftShader"),
        ("wgpu-native", "wgpu-native", ""),
        ("wgpu-native:vulkan", "wgpu-native", "Vulkan"),
        (None, "wgpu-native", ""),
        ("vulkan", "wgpu-native", "Vulkan"),
    ],
)
def test_an_engine_by_name(text: str | None, engine: str, part: str) -> None:
    with Session(MODEL, text) as session:
        assert session.name.endswith(f", {engine})") and part in session.name
        assert equal(session(INPUTS[0]), 0)


def test_dawn_alone_is_its_best_adapter() -> None:
    assert open_device("dawn").name == dawn().describe(dawn().adapters()[0])


def test_numbers_go_on_through_the_engines(swiftshader: Device) -> None:
    listed = list(engines.listed())
    assert [owner.name for owner, _ in listed] == sorted((owner.name for owner, _ in listed), reverse=True)
    number = next(i for i, (owner, a) in enumerate(listed) if owner.describe(a) == swiftshader.name)
    assert open_device(number) is swiftshader


def test_an_adapter_the_engine_does_not_have(swiftshader: Device) -> None:
    with pytest.raises(DeviceError, match=r"no adapter is called 'dawn:nothing'; there are 0: .*wgpu-native.*dawn\)"):
        Session(MODEL, "dawn:nothing")


def test_an_engine_without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dawn(), "adapters", list)
    with pytest.raises(DeviceError, match=r"dawn is installed and takes no adapter.*there are 0: .*wgpu-native\)$"):
        Session(MODEL, "dawn")
    monkeypatch.setattr(engines.native(), "adapters", list)
    with pytest.raises(DeviceError, match="no wgpu adapter"):
        Session(MODEL, "dawn")


@pytest.mark.parametrize("package", [wgpu, wgpudawn], ids=lambda package: package.__name__)
@pytest.mark.parametrize("synchronized", [True, False])
def test_a_device_or_adapter_of_the_callers_own(package: Any, synchronized: bool, swiftshader: Device) -> None:
    """Used as it is, by several threads at a time; without Dawn's synchronization they take turns."""
    adapter = package.gpu.enumerate_adapters_sync()[0]
    wanted = ["implicit-device-synchronization"] if synchronized and package is wgpudawn else []
    own = adapter.request_device_sync(required_features=wanted)
    with Session(MODEL, own) as session, ThreadPoolExecutor(3) as pool:
        assert session.device is not None and session.device.wgpu is own
        assert (session.device.waiting is session.device.lock) == (package is wgpudawn and not synchronized)
        for results in pool.map(lambda _: list(session.run_many(INPUTS)), range(3)):
            assert all(equal(outputs, i) for i, outputs in enumerate(results))
    with Session(MODEL, adapter) as session:
        assert session.device is not None and session.device.wgpu is not own
        assert equal(session(INPUTS[1]), 1)


class _WithUnits(Dawn):
    """Dawn whose adapters offer matrix units."""

    def matrix_units(self, adapter: Any) -> tuple[MatrixUnit, ...]:
        return (MatrixUnit(16, 16, 32, 32),)


@pytest.mark.parametrize("usable", [True, False])
def test_dawn_is_taken_for_its_matrix_units(usable: bool, swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for an engine, the adapter is the same one, its units compute right and products need them."""
    other = _WithUnits()
    other._listed.extend(dawn().adapters())
    monkeypatch.setattr(engines, "dawn", lambda: other)
    monkeypatch.setattr(adapters, "_open", {})
    native = open_device("wgpu-native:vulkan")
    info = {**native.wgpu.adapter.info, **{k: swiftshader.info[k] for k in ("vendor_id", "device_id")}}
    monkeypatch.setattr(native.wgpu.adapter, "_adapter_info", info)
    found = Target(matrix_units=(MatrixUnit(16, 16, 32, 32),) if usable else ())
    monkeypatch.setattr(Device, "_target", lambda device: found)
    assert open_device("vulkan", matrix_work=True).engine.name == ("dawn" if usable else "wgpu-native")
    assert open_device("vulkan").engine.name == "wgpu-native"
    assert open_device("wgpu-native:vulkan", matrix_work=True).engine.name == "wgpu-native"


class _Card:
    """An adapter that is one of several equal cards."""

    def __init__(self, adapter: Any) -> None:
        self.features, self.limits = adapter.features, adapter.limits
        self.info = {**adapter.info, "vendor_id": 4318, "device_id": 9019, "backend_type": "Vulkan"}


@pytest.mark.parametrize("listed", [1, 2, 3])
def test_of_equal_cards_the_same_is_taken(listed: int, swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two; wgpu-native's own where Dawn does not list as many."""
    native, other = engines.native(), _WithUnits()
    cards = [_Card(swiftshader.wgpu.adapter) for _ in range(2 + listed)]
    monkeypatch.setattr(native, "_listed", cards[:2])
    other._listed.extend(cards[2:])
    monkeypatch.setattr(engines, "dawn", lambda: other)
    asked = []

    def opened(engine: Any, adapter: Any, number: int) -> Any:
        asked.append((engine.name, cards.index(adapter), number))
        units = (MatrixUnit(16, 16, 32, 32),)
        made = SimpleNamespace(engine=engine, target=Target(matrix_units=units))
        made.wgpu = SimpleNamespace(adapter=adapter)
        return made

    monkeypatch.setattr(adapters, "_from_adapter", opened)
    first = opened(native, cards[1], 1)
    found = adapters._with_matrix_units(first)
    assert asked[1:] == ([("dawn", 3, 1)] if listed == 2 else [])
    assert (found is first) == (listed != 2)


def _fake(device: Any, adapter: Any) -> None:
    device.adapter, device.alive = adapter, True


def test_one_of_equal_cards_is_named(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number; a device's name has it, and names that device again."""
    native = engines.native()
    cards = [_Card(swiftshader.wgpu.adapter) for _ in range(2)]
    monkeypatch.setattr(native, "_listed", cards)
    monkeypatch.setattr(adapters, "_open", {})
    monkeypatch.setattr(native, "request", lambda adapter: adapter)
    monkeypatch.setattr(adapters, "Device", type("Fake", (SimpleNamespace,), {"__init__": _fake}))
    for number, card in enumerate(cards):
        found: Any = open_device(f"swiftshader#{number}")
        assert found.adapter is card and found.name.endswith(f"(Vulkan, wgpu-native)#{number}")
        assert open_device(found.name) is found and open_device(f"wgpu-native:#{number}") is found
    assert open_device("swiftshader") is open_device("swiftshader#0")
    with pytest.raises(DeviceError, match=r"no adapter is called 'swiftshader#2'; there are 0: .*#0, 1: .*#1, "):
        open_device("swiftshader#2")


_OF_TWO = """
import sys
import numpy as np
import q8ta_wgpu as q8
from q8ta_wgpu.runtime.adapters import titles
names = [name for name in titles() if name.startswith("SwiftShader") and "dawn" in name]
print(names)
model = q8.load(sys.argv[1])
(t,) = model.inputs.values()
x = [np.random.default_rng(i).normal(0, 1, t.shape).astype(np.float32) for i in range(3)]
sessions = [q8.Session(model, name) for name in (*names, "reference")]
print([session.name for session in sessions[:-1]], sessions[0].device is not sessions[1].device)
found = [q8.run_many(some, x) for some in (sessions[:2], sessions[2:])]
print([all(np.array_equal(a, b) for a, b in zip(one, other)) for one, other in zip(*found)])
"""


def test_dawn_lists_each_of_two_equal_cards(tmp_path: Path, swiftshader: Device) -> None:
    """Its package leaves out the second one. Two copies of SwiftShader stand for two GPUs."""
    folder = next(folder for folder in SWIFTSHADER if (folder / "libvk_swiftshader.so").exists())
    for number in range(2):
        library = tmp_path / f"copy{number}.so"
        shutil.copy(folder / "libvk_swiftshader.so", library)
        icd = {"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": "1.0.5"}}
        (tmp_path / f"{number}.json").write_text(json.dumps(icd))
    MODEL.save(tmp_path / "net.q8ta")
    drivers = os.pathsep.join(str(tmp_path / f"{number}.json") for number in range(2))
    command = [sys.executable, "-c", _OF_TWO, str(tmp_path / "net.q8ta")]
    variables = {**os.environ, "VK_ADD_DRIVER_FILES": drivers}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    names = [f"SwiftShader Device (Subzero) (Vulkan, dawn)#{number}" for number in range(2)]
    assert done.stdout.splitlines() == [str(names), f"{names} True", "[True, True, True]"]


def test_dawn_makes_a_device_of_the_card_asked_for(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two equal ones, which it lists anew for every device."""
    made: list[Any] = []
    other = Dawn()
    fresh = [[_Card(swiftshader.wgpu.adapter) for _ in range(2)] for _ in range(2)]
    gpu = SimpleNamespace(enumerate_adapters_sync=lambda: fresh[len(made)])
    extras = SimpleNamespace(request_device_sync=lambda adapter, **_: made.append(adapter))
    monkeypatch.setattr(other, "package", SimpleNamespace(gpu=gpu))
    monkeypatch.setattr(other, "_extras", extras)
    listed = [_Card(swiftshader.wgpu.adapter) for _ in range(2)]
    other._listed.extend(listed)
    for _ in range(2):
        other._request(listed[1], [], {})
    assert made == [fresh[0][1], fresh[1][1]]


def test_an_engine_that_cannot_list_adapters(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is used; where there is no other, it is told what the engine said."""

    def fails() -> list[Any]:
        raise DeviceError("wgpu-native could not list adapters: no loader")

    monkeypatch.setattr(engines.native(), "adapters", fails)
    for name in (None, "swiftshader", "dawn:swiftshader"):
        assert open_device(name) is swiftshader
    with pytest.raises(DeviceError, match="no loader"):
        open_device("wgpu-native")
    with pytest.raises(DeviceError, match="there are 0: SwiftShader"):
        open_device("nothing")
    monkeypatch.setattr(engines, "dawn", lambda: None)
    with pytest.raises(DeviceError, match="no loader"):
        open_device()


WITHOUT = """
import sys
sys.modules["wgpudawn"] = None
from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from tests.small import small_input, small_model
with Session(small_model()) as session:
    session(small_input())
    print(session.name)
assert main(["devices"]) == 0
sys.exit(main(["show", sys.argv[1], "--device", "dawn:nvidia"]))
"""


def test_without_wgpudawn(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "net.q8ta")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert done.returncode == 2, done.stderr
    assert 'the engine dawn is not installed: pip install "q8ta-wgpu[dawn]"' in done.stderr
    assert "wgpu-native)" in done.stdout.splitlines()[0]
    assert " dawn " not in done.stdout


# --- using ---


def test_two_sessions_on_two_engines_at_once(vulkan: Device, swiftshader: Device) -> None:
    with Session(MODEL, vulkan) as first, Session(MODEL, swiftshader) as second, ThreadPoolExecutor(4) as pool:
        works = [pool.submit(lambda s: list(s.run_many(INPUTS * 3)), session) for session in (first, second) * 2]
        for work in works:
            assert all(equal(outputs, i % len(INPUTS)) for i, outputs in enumerate(work.result(120)))


def test_awaited_calls_on_dawn(swiftshader: Device) -> None:
    async def several() -> list[Any]:
        return await asyncio.gather(*(session.run_async(x) for x in INPUTS))

    with Session(MODEL, swiftshader) as session:
        assert all(equal(outputs, i) for i, outputs in enumerate(asyncio.run(several())))


def test_times_on_dawn(swiftshader: Device) -> None:
    """Not rounded: Dawn's quantized timestamps are multiples of 65,536 ns."""
    with Session(MODEL, swiftshader) as session:
        timing = session.time(INPUTS[0], repeats=3, warmup=1)
        assert 0 < timing.run_ms < 10_000
        assert np.any(np.rint(timing.runs * 1000) % 65536)


def test_dawn_waits_blocking_and_spinning(swiftshader: Device) -> None:
    with Session(MODEL, swiftshader) as session:
        assert session._executor is not None
        recorder = session._executor._recorder
        assert isinstance(recorder, DawnRecorder)
        for spins in (True, False):
            recorder.spins = spins
            assert all(equal(outputs, i) for i, outputs in enumerate(session.run_many(INPUTS)))


# --- failing ---


def test_wrong_code_on_dawn(swiftshader: Device) -> None:
    with pytest.raises(DeviceError, match=r"dawn\) could not compile kernel wrong: .*unresolved"):
        swiftshader.pipeline(with_words("wrong").replace("x[id.x];", "nothing[id.x];"), 2)


def test_a_lost_device_of_dawn(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_open", {})
    first = open_device("dawn:swiftshader")
    opened = Session(MODEL, first)
    assert equal(opened(INPUTS[0]), 0)
    first.wgpu.destroy()
    with pytest.raises(DeviceError, match=r"could not run the program: .*lost"):
        opened(INPUTS[0])
    gc.collect()  # what the error held is gone
    second = open_device("dawn:swiftshader")
    assert second is not first
    with Session(MODEL, second) as session:
        assert equal(session(INPUTS[1]), 1)


def test_an_interrupt_while_outputs_arrive_from_dawn(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(MODEL, swiftshader) as opened:
        assert equal(opened(INPUTS[0]), 0)

        def signalled(view: Any) -> str:
            raise KeyboardInterrupt

        monkeypatch.setattr("wgpudawn.backends.dawn._api.from_c_string_view", signalled)
        with pytest.raises(KeyboardInterrupt):
            opened(INPUTS[1])
        monkeypatch.undo()
        assert equal(opened(INPUTS[2]), 2)


@pytest.mark.parametrize("kind", [wgpudawn.GPUValidationError, wgpudawn.GPUOutOfMemoryError, wgpudawn.GPUInternalError])
def test_what_dawn_raises(
    kind: Callable[[str], Exception], swiftshader: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**wanted: Any) -> Any:
        raise kind("the driver's words")

    with Session(MODEL, swiftshader) as session:
        monkeypatch.setattr(swiftshader.wgpu, "create_command_encoder", fails)
        with pytest.raises(DeviceError, match="could not run the program: the driver's words"):
            session(INPUTS[0])


def test_a_program_says_which_matrix_units_it_does_not_use(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drivers compute wrong results with them: what was found when the device was opened."""
    monkeypatch.setattr(vulkan, "unit_faults", {MatrixUnit(16, 16, 32, 32): "a kernel gives 3 of 64 words otherwise"})
    with Session(MODEL, vulkan) as session:
        last = str(session.program).splitlines()[-1]
    assert last == "matrix unit 16x16x32 is not used: a kernel gives 3 of 64 words otherwise"


@pytest.mark.parametrize("dtype", [INT8X4, INT16X4])
def test_large_products_ask_for_matrix_units(dtype: str) -> None:
    """Of int8 and of int16; small ones do not."""
    for rows, wanted in ((4096, True), (64, False)):
        graph = graph_of("linear", ((rows, 256),), ((256, 256), (256,)), {}, dtype)
        assert _has_matrix_work(graph) == wanted
