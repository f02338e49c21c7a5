"""Both engines behind one interface: choosing them, using them at once, and what each says when something fails."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu
import wgpudawn

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.target import MatrixUnit
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.program import known_results
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.known_results import Trial
from q8ta_wgpu.runtime import engines, flags, probe
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.dawn import Dawn, DawnRecorder
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import Engine
from q8ta_wgpu.session.runner import has_products
from testbed import insides
from testbed.devices import BACKENDS, Listing
from testbed.graphs import between_integers
from testbed.harness import flat
from testbed.small import one_node, small_input, small_model
from testbed.standins import failing
from tests.runtime.test_runtime import with_words

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
        *(("dawn:swiftshader", "dawn", "SwiftShader"), ("DAWN:SwiftShader", "dawn", "SwiftShader"))
        * ("swiftshader" in BACKENDS),
        ("wgpu-native", "wgpu-native", ""),
        ("wgpu-native:vulkan", "wgpu-native", "Vulkan"),
        (None, "", ""),
        ("vulkan", "wgpu-native", "Vulkan"),
    ],
)
def test_an_engine_by_name(text: str | None, engine: str, part: str, vulkan: Device) -> None:
    """By default it is wgpu-native, but for a GPU whose matrix units Dawn alone has. Equal cards are numbered."""
    with Session(MODEL, text) as session:
        assert f", {engine or ('wgpu-native' if vulkan.software else '')}" in session.name and part in session.name
        assert equal(session(INPUTS[0]), 0)


def test_dawn_alone_is_its_best_adapter() -> None:
    assert open_device("dawn").name.partition("#")[0] == dawn().describe(dawn().adapters()[0])


def test_numbers_go_on_through_the_engines(swiftshader: Device) -> None:
    listed = list(engines.listed())
    assert [owner.name for owner, _ in listed] == sorted((owner.name for owner, _ in listed), reverse=True)
    number = next(i for i, (owner, a) in enumerate(listed) if owner.describe(a) == swiftshader.name)
    assert open_device(number) is swiftshader


def test_an_adapter_the_engine_does_not_have(swiftshader: Device) -> None:
    with pytest.raises(DeviceError, match=r"no adapter is called 'dawn:nothing'; there are 0: .*wgpu-native.*dawn\)"):
        Session(MODEL, "dawn:nothing")


class NoAdapters(Dawn):
    """Dawn on a machine whose adapters it does not take."""

    def adapters(self) -> list[Any]:
        return []


def test_an_engine_without_adapters(listing: Listing) -> None:
    listing(engines.native().adapters(), NoAdapters())
    with pytest.raises(DeviceError, match=r"dawn is installed and takes no adapter.*there are 0: .*wgpu-native\)$"):
        Session(MODEL, "dawn")
    listing([], NoAdapters())
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


def test_an_engine_that_cannot_list_adapters(swiftshader: Device, listing: Listing) -> None:
    """The other one is used; where there is no other, it is told what the engine said."""
    listing(RuntimeError("no loader"), dawn())
    for name in (None, "swiftshader", "dawn:swiftshader"):
        assert open_device(name) is swiftshader
    with pytest.raises(DeviceError, match="no loader"):
        open_device("wgpu-native")
    with pytest.raises(DeviceError, match="there are 0: SwiftShader"):
        open_device("nothing")
    listing(RuntimeError("no loader"))
    with pytest.raises(DeviceError, match="no loader"):
        open_device()


WITHOUT = """
import sys
sys.modules["wgpudawn"] = None
from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from testbed.small import one_node, small_input, small_model
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
        recorder = insides.recorder(insides.executor(session))
        assert isinstance(recorder, DawnRecorder)
        for spins in (True, False):
            recorder.spins = spins
            assert all(equal(outputs, i) for i, outputs in enumerate(session.run_many(INPUTS)))


# --- failing ---


def test_wrong_code_on_dawn(swiftshader: Device) -> None:
    with pytest.raises(DeviceError, match=r"dawn\) could not compile kernel wrong: .*unresolved"):
        swiftshader.pipeline(with_words("wrong").replace("x[id.x];", "nothing[id.x];"), 2)


@pytest.mark.usefixtures("nothing_open")
def test_a_lost_device_of_dawn(swiftshader: Device) -> None:
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
        failing(monkeypatch, wgpudawn.backends.dawn._api, "from_c_string_view", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            opened(INPUTS[1])
        monkeypatch.undo()
        assert equal(opened(INPUTS[2]), 2)


@pytest.mark.parametrize("kind", [wgpudawn.GPUValidationError, wgpudawn.GPUOutOfMemoryError, wgpudawn.GPUInternalError])
def test_what_dawn_raises(
    kind: Callable[[str], Exception], swiftshader: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(MODEL, swiftshader) as session:
        failing(monkeypatch, swiftshader.wgpu, "create_command_encoder", kind("the driver's words"))
        with pytest.raises(DeviceError, match="could not run the program: the driver's words"):
            session(INPUTS[0])


@pytest.mark.parametrize("package", [wgpu, wgpudawn], ids=["wgpu", "wgpudawn"])
def test_flags_are_those_of_both_packages(package: Any) -> None:
    for own in (flags.BufferUsage, flags.TextureUsage):
        theirs = getattr(package, own.__name__)
        assert {flag.name: int(flag) for flag in own} == {
            flag.name: int(getattr(theirs, str(flag.name))) for flag in own
        }
    assert (flags.COMPUTE, flags.READ) == (package.ShaderStage.COMPUTE, package.MapMode.READ)


def test_a_session_on_dawn_does_not_import_wgpu() -> None:
    """It takes a tenth of opening."""
    used = "from q8ta_wgpu.runtime import adapters, engines, executor; engines.dawn()"
    code = f"import sys; {used}; print('wgpu' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_dawn_makes_as_many_pipelines_at_a_time_as_there_are_threads(
    swiftshader: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dawn's own threads are two. An error is that of its kernel, though others are made meanwhile."""
    other, together, create = Device(swiftshader.wgpu), threading.Barrier(6), Engine.create_pipeline

    def met(*args: Any) -> Any:
        together.wait(60)
        return create(*args)

    monkeypatch.setattr(Dawn, "compilers", lambda *_: 6)
    monkeypatch.setattr(Engine, "create_pipeline", met)
    right = [with_words(f"side by side {i}") for i in range(5)]
    wrong = with_words("without a main").replace("fn main", "fn other")
    with other.compiling() as compiling:
        for text in (wrong, *right):
            compiling.start(text, 2)
        assert len({compiling.pipeline(text, 2) for text in right}) == 5
        with pytest.raises(DeviceError, match=r"could not compile kernel without a main: .*main"):
            compiling.pipeline(wrong, 2)


def test_a_program_says_which_matrix_units_it_does_not_use(vulkan: Device) -> None:
    """Some drivers compute wrong results with them: what was found when the device was opened."""
    faults = {MatrixUnit(16, 16, 32, 32): "a kernel gives 3 of 64 words otherwise"}
    with Session(MODEL, insides.like(vulkan, unit_faults=faults)) as session:
        last = str(session.program).splitlines()[-1]
    assert last == "matrix unit 16x16x32 is not used: a kernel gives 3 of 64 words otherwise"


@pytest.mark.parametrize("known", [False, True], ids=["found here", "found in another thread meanwhile"])
def test_units_that_compute_wrong_are_left_out(known: bool, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried when a plan chooses them, before they are used: then another plan takes their place."""
    unit = MatrixUnit(16, 16, 32, 32)
    large: dict[str, Any] = {"invocations": 1024, "workgroup_memory": 48 << 10, "shares_memory": True, "fast_dot": True}
    gpu = insides.like(vulkan, target=replace(vulkan.target, matrix_units=(unit,), **large), unit_faults={})
    asked = []

    def fault(device: Device, trial: Trial, compiling: Any) -> str:
        asked.append(trial.kernel)
        if known:
            device.target = replace(device.target, matrix_units=())
        return "a kernel gives 3 of 64 words otherwise"

    monkeypatch.setattr(probe, "fault", fault)
    graph = between_integers("linear", ((512, 256),), ((256, 256), (256,)), {}, INT8X4)
    model = Model(graph, Structure(0))
    x = np.random.default_rng(0).integers(-128, 128, (512, 256)).astype(np.int8)
    with Session(model, gpu) as session:
        assert asked and all(name.startswith("q8ta_linear.tiled_units_") for name in asked)
        assert gpu.target.matrix_units == () and gpu.unit_faults.keys() == {unit}
        assert session.program.notes == (f"matrix unit {unit} is not used: a kernel gives 3 of 64 words otherwise",)
        np.testing.assert_array_equal(session(x), Session(model, "reference")(x))


@pytest.mark.parametrize("right", [True, False])
def test_a_trial_compares_bytes_and_is_remembered(right: bool, vulkan: Device, caches: Path) -> None:
    """What is right once is right with this driver and engine; what is wrong is tried again. A kernel without units
    stands for one with them here."""
    case = known_results._linear(known_results.SHALLOW)
    (node,) = case.graph.nodes
    call, row_major = case.graph.call(node), known_results.ROW_MAJOR
    (kernel,) = (k for k in OPS["q8ta_linear"].kernels if k.name == "q8ta_linear.tiled_16x16")
    reads = tuple(None if name in case.graph.constants else row_major for name in node.inputs)
    plan = Plan((Step(node, call, Variant(kernel, reads, row_major)),), {"x": row_major, "y": row_major})
    program = build(case.graph, vulkan.target, plan)
    trial = Trial(kernel.name, MatrixUnit(16, 16, 32, 32), frozenset(), program, case)
    if not right:
        case.__dict__["expected"] = case.expected ^ 1
    with vulkan.compiling() as compiling:
        assert not probe.passed(vulkan, trial)
        found = probe.fault(vulkan, trial, compiling)
    assert found.startswith("q8ta_linear.tiled_16x16 gives") != right
    assert probe.passed(vulkan, trial) == right
    other = replace(trial, case=replace(case, inputs={"x": case.inputs["x"] ^ 1}))
    assert not probe.passed(vulkan, other), "a later version may multiply other numbers"


def test_products_ask_for_matrix_units() -> None:
    """Those of int8 and of int16; networks without any do not."""
    for dtype in (INT8X4, INT16X4):
        assert has_products(between_integers("linear", ((64, 256),), ((256, 256), (256,)), {}, dtype))
    assert not has_products(one_node("add", (64, 256), INT8X4, inputs=2).graph)
