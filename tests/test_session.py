"""Sessions: devices to choose from, inputs to refuse, threads, and devices that fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
import wgpu

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.model.model import Model, load
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program import link
from q8ta_wgpu.program.wgsl import files
from q8ta_wgpu.runtime import device as devices
from q8ta_wgpu.runtime import engine, engines, rates
from q8ta_wgpu.runtime.device import Device, open_device
from q8ta_wgpu.runtime.executor import Executor
from tests import harness
from tests.conftest import BACKENDS
from tests.small import SHAPE, small_input, small_model

MODEL = small_model()
NATIVE = engines.native()
EXPECTED = Session(MODEL, "reference")(small_input())


def close_to(found: Any, expected: Any = EXPECTED) -> None:
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["parts"][0], expected["parts"][0])


def one_node(op: str, shape: tuple[int, ...], dtype: str = FLOAT32, inputs: int = 1) -> Model:
    """y = op(x0, x1, ...) on one dtype, for tests that need no particular network."""
    q = QParams(0.1, 3) if dtype == INT8X4 else None
    names = [f"x{i}" for i in range(inputs)]
    graph = Graph(inputs=names, outputs=["y"])
    graph.types = {name: TensorType(shape, dtype, q) for name in (*names, "y")}
    graph.nodes = [Node(op, tuple(names), "y", {"alpha": 1.0} if op == "add" else {})]
    return Model(graph, Structure(0))


@pytest.fixture(scope="module")
def session(vulkan: Device) -> Session:
    return Session(MODEL, vulkan)


# --- choosing a device ---


def test_default_names_numbers_and_the_callers_own(vulkan: Device) -> None:
    assert Session(MODEL).device is open_device(None)
    assert Session(MODEL, "VULKAN").device is vulkan
    for number, (owner, adapter) in enumerate(engines.listed()):
        if any(backend.lower() in owner.describe(adapter).lower() for backend in BACKENDS):
            chosen = Session(MODEL, number)
            assert chosen.name == owner.describe(adapter)
            close_to(chosen(small_input()))
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    assert open_device(adapter).name == vulkan.name
    own = adapter.request_device_sync()
    first, second = Session(MODEL, own), Session(MODEL, own)
    assert first.device is second.device
    assert first.device is not None
    assert first.device.wgpu is own
    close_to(first(small_input()))
    close_to(second(small_input()))


@pytest.mark.parametrize("wrong", ["no such adapter", 99, -1, True, 1.5, object()])
def test_a_device_that_is_not_there(wrong: Any) -> None:
    with pytest.raises(DeviceError, match=r"there are 0: |device must be"):
        Session(MODEL, wrong)


def test_no_adapters_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "dawn", lambda: None)
    monkeypatch.setattr(NATIVE, "_listed", [])
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
    with pytest.raises(DeviceError, match=r"no wgpu adapter.*device='reference'"):
        Session(MODEL)

    def broken() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(NATIVE, "_listed", [])
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", broken)
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


def test_an_adapter_that_cannot_make_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NATIVE.adapters()
    monkeypatch.setattr(NATIVE, "_listed", [])
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: [FakeAdapter(cannot), *real])
    monkeypatch.setattr(engine, "rank", lambda adapter: adapter.info["device"] != "Broken GPU")
    assert NATIVE.describe(NATIVE.adapters()[0]) == "Broken GPU (OpenGL, wgpu-native)"
    with pytest.raises(
        DeviceError, match=r"Broken GPU \(OpenGL, wgpu-native\) cannot make a device: storage buffers in compute"
    ):
        Session(MODEL, "broken")
    assert Session(MODEL).name == NATIVE.describe(real[0])


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


# --- inputs ---


def test_position_name_and_structure(session: Session) -> None:
    x = small_input()
    for found in (session(x), session(x=x)):
        assert list(found) == ["y", "parts"]
        assert isinstance(found["parts"], tuple)
        assert found["y"].dtype == np.float32
        assert found["y"].flags.writeable
        close_to(found)


@pytest.mark.parametrize("where", [None, "reference"])
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"takes 1 input \(x\); missing: x"),
        ((1, 2), {}, r"takes 1 input \(x\), found 2"),
        ((), {"image": 1}, r"no input 'image'; its inputs are x"),
        ((0,), {"x": 0}, r"'x' was given twice"),
        ((np.zeros(SHAPE, np.int64),), {}, r"must be float32, found int64: convert it the way"),
        ((np.zeros(SHAPE, np.uint8),), {}, r"must be float32, found uint8: convert it the way"),
        ((np.zeros(SHAPE, bool),), {}, r"must be float32, found bool"),
        ((np.zeros(SHAPE, np.complex64),), {}, r"must be float32, found complex64"),
        ((np.full(SHAPE, "1"),), {}, r"must be float32, found <U1"),
        ((None,), {}, r"must be float32, found object"),
        (([[1.0], [1.0, 2.0]],), {}, r"'x' cannot become a numpy array, found list"),
        ((np.zeros(SHAPE[1:], np.float32),), {}, r"must have shape \(2, 5, 6, 7\), found shape \(5, 6, 7\).*reshape"),
        ((np.zeros((0, *SHAPE[1:]), np.float32),), {}, r"'x' is empty, it must have shape \(2, 5, 6, 7\), found"),
        ((torch.zeros(SHAPE, dtype=torch.int32),), {}, r"must be float32, found int32"),
        ((torch.zeros(SHAPE, device="meta"),), {}, r"'x' cannot become a numpy array, found Tensor"),
    ],
)
def test_inputs_that_are_refused(
    where: str | None, args: tuple[Any, ...], kwargs: dict[str, Any], message: str, session: Session
) -> None:
    chosen = session if where is None else Session(MODEL, where)
    with pytest.raises(InputError, match=message):
        chosen(*args, **kwargs)


def test_bfloat16_is_widened(session: Session) -> None:
    x = torch.from_numpy(small_input()).bfloat16()
    for found, expected in zip(session(x), session(x.float()), strict=True):
        assert np.array_equal(found, expected)


def test_a_session_and_its_model_are_told_in_one_line(session: Session) -> None:
    assert repr(session).startswith("Session(Model(x float32[2, 5, 6, 7] -> ")
    assert session.name in repr(session)
    assert len(repr(session)) < 300


class Dlpack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_every_kind(session: Session) -> None:
    x = small_input()
    wide = np.zeros((*SHAPE[:3], 2 * SHAPE[3]), np.float32)
    wide[..., ::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    forms: list[Any] = [
        x.astype(np.float64),
        x.astype(">f4"),
        np.asfortranarray(x),
        wide[..., ::2],
        np.ascontiguousarray(x[::-1])[::-1],
        read_only,
        x.tolist(),
        Dlpack(x),
        torch.from_numpy(x),
        torch.from_numpy(x).double(),
        torch.from_numpy(x).requires_grad_(),
        torch.from_numpy(x).to(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.from_numpy(x)),
    ]
    for form in forms:
        close_to(session(form))
    half = x.astype(np.float16)
    close_to(session(half), session(half.astype(np.float32)))


def test_torch_is_not_imported_for_a_tensor() -> None:
    code = """
import sys, numpy as np
from q8ta_wgpu import Session
from tests.small import small_input, small_model
class Tensor:  # what a session asks of a torch tensor
    def detach(self): return self
    def cpu(self): return self
    def __array__(self, dtype=None, copy=None): return small_input()
print(Session(small_model(), "reference")(Tensor())["y"].shape, "torch" in sys.modules, "wgpu" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "(2, 6, 6, 7) False False", done.stderr


def test_nan_and_infinities(device: Device) -> None:
    """NaN is the zero point, infinities saturate, a float64 past float32 is an infinity: the same as the reference."""
    x = small_input()
    x.flat[:6] = [np.nan, -np.nan, np.inf, -np.inf, 3e38, 1e-42]
    expected = Session(MODEL, "reference")(x)
    clean = x.copy()
    clean.flat[:6] = [0, 0, 100, -100, 100, 0]
    close_to(Session(MODEL, "reference")(clean), expected)
    opened = Session(MODEL, device)
    close_to(opened(x), expected)
    wide = x.astype(np.float64)
    wide.flat[2:5] = [1e300, -1e300, 1e39]
    close_to(opened(wide), expected)


def test_int8_in_and_out_and_scalars(vulkan: Device) -> None:
    model = one_node("q8ta_clone", (3, 5), INT8X4)
    x = np.random.default_rng(0).integers(-128, 128, (3, 5)).astype(np.int8)
    for opened in (Session(model, vulkan), Session(model, "reference")):
        found = opened(x)
        np.testing.assert_array_equal(found, x)
        assert found.dtype == np.int8
        found[:] = 0
        assert x.any()
        for wrong in (x.astype(np.float32), x.astype(np.uint8), x.astype(np.int32)):
            with pytest.raises(InputError, match="must be int8, found"):
                opened(wrong)
    scalar = one_node("add", (), inputs=2)
    for opened in (Session(scalar, vulkan), Session(scalar, "reference")):
        assert opened(np.float32(1.5), 2.0).shape == ()
        assert opened(1.5, x1=2.0) == 3.5


def test_batch_size_by_reshape(vulkan: Device) -> None:
    x = np.concatenate([small_input(), small_input(1)])
    model = MODEL.reshape((4, *SHAPE[1:]))
    close_to(Session(model, vulkan)(x), Session(model, "reference")(x))
    with pytest.raises(InputError, match="dimensions"):
        MODEL.reshape((0, *SHAPE[1:]))


def test_no_model() -> None:
    with pytest.raises(InputError, match=r"takes a Model, found str: q8ta_wgpu.load"):
        Session("net.q8ta")  # type: ignore[arg-type]


# --- closing, timing ---


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_use_after_close(where: str) -> None:
    with Session(MODEL, where) as opened:
        close_to(opened(small_input()))
    opened.close()
    with pytest.raises(InputError, match="this session was closed"):
        opened(small_input())
    with pytest.raises(InputError, match="this session was closed"):
        opened.time(small_input())


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_warm_up(where: str) -> None:
    """A call whose result nobody sees, on zeros of the dtype that is given."""
    with Session(MODEL, where) as opened:
        opened.warm_up()
        close_to(opened(small_input()))
    with pytest.raises(InputError, match="closed"):
        opened.warm_up()


def test_a_closed_program_is_never_submitted(vulkan: Device) -> None:
    """wgpu-native would end the process."""
    executor = Executor(harness.program_of(MODEL.graph, vulkan.target), vulkan)
    executor.close()
    executor.close()
    with pytest.raises(DeviceError, match="this program was closed"):
        executor.run([small_input()])


def test_time(session: Session) -> None:
    timing = session.time(small_input(), repeats=3, warmup=1)
    assert timing.samples.shape == (3, len(session.program.dispatches))
    assert (timing.medians >= 0).all()
    assert timing.total_ms > 0
    assert len([line for line in str(timing).splitlines() if " -> " in line]) == len(session.program.dispatches)
    with pytest.raises(InputError, match="missing: x"):
        session.time()
    with pytest.raises(InputError, match="repeats must be an integer of at least 1"):
        session.time(small_input(), repeats=0)
    with pytest.raises(DeviceError, match="no timestamp queries"):
        Session(MODEL, "reference").time(small_input())
    nothing = Model(Graph(["x"], ["x"], types={"x": TensorType((3,))}), Structure(0))
    assert Session(nothing, session.device).time(np.zeros(3, np.float32)).total_ms == 0


# --- threads ---


def test_threads_on_one_session(session: Session) -> None:
    inputs = [small_input(i) for i in range(6)]
    expected = [Session(MODEL, "reference")(x) for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        for found, wanted in zip(pool.map(session, inputs * 8), expected * 8, strict=True):
            close_to(found, wanted)


def test_threads_open_run_and_close_sessions_of_one_device(device: Device) -> None:
    models = [MODEL, MODEL.reshape((1, *SHAPE[1:])), MODEL.reshape((3, *SHAPE[1:]))]
    inputs = [np.resize(small_input(i), m.inputs["x"].shape) for i, m in enumerate(models)]
    expected = [Session(m, "reference")(x) for m, x in zip(models, inputs, strict=True)]

    def work(turn: int) -> None:
        i = turn % len(models)
        with Session(models[i], device) as opened:
            for _ in range(3):
                close_to(opened(inputs[i]), expected[i])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))


def test_closing_while_others_call(vulkan: Device) -> None:
    """Every call either finishes or says that the session was closed."""
    opened = Session(MODEL, vulkan)

    def call(turn: int) -> str:
        try:
            close_to(opened(small_input()))
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(call, range(40))
        opened.close()
    assert all("closed" in text for text in answers if text)


def test_threads_open_the_same_adapter_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({id(d) for d in pool.map(open_device, ["vulkan"] * 16)}) == 1


# --- devices that fail ---


def test_a_lost_device() -> None:
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    opened = Session(MODEL, adapter.request_device_sync())
    assert opened.device is not None
    close_to(opened(small_input()))
    opened.device.wgpu.destroy()
    assert not opened.device.alive
    with pytest.raises(DeviceError, match=r"could not run the program: .*lost"):
        opened(small_input())
    with pytest.raises(DeviceError, match=r"could not load the program \(.* MiB of activations.*lost"):
        Session(MODEL, opened.device)
    opened.close()


def test_a_lost_device_under_a_model_without_inputs() -> None:
    """Nothing is uploaded that would fail; wgpu-native would end the process at the submission."""
    graph = Graph([], ["y"], types={"y": TensorType((3,))})
    graph.nodes = [Node("relu", (graph.add_constant("c", np.ones(3, np.float32)),), "y")]
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    with Session(Model(graph, Structure(0)), adapter.request_device_sync()) as opened:
        assert opened().sum() == 3
        assert opened.device is not None
        opened.device.wgpu.destroy()
        with pytest.raises(DeviceError, match="was lost"):
            opened()


def test_a_lost_device_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_open", {})
    first = open_device("vulkan")
    assert open_device("vulkan") is first
    first.wgpu.destroy()
    second = open_device("vulkan")
    assert second is not first
    close_to(Session(MODEL, second)(small_input()))


def test_out_of_memory_while_loading(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was allocated before the failure is freed."""
    program = harness.program_of(MODEL.graph, vulkan.target)
    freed: list[Any] = []

    class Full:
        """A device with memory for two buffers."""

        def __init__(self) -> None:
            self.made: list[Any] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(vulkan.wgpu, name)

        def create_buffer(self, **wanted: Any) -> Any:
            if len(self.made) == 2:
                raise wgpu.GPUOutOfMemoryError("not enough memory left")
            self.made.append(self)
            return self

        def destroy(self) -> None:
            freed.append(self)

    fake = Device(vulkan.wgpu)
    fake.wgpu = Full()
    with pytest.raises(DeviceError, match=r"could not load the program .*not enough memory left"):
        Executor(replace(program, slots=(16, 16, 16)), fake)
    assert len(freed) == 2


def test_a_kernel_that_does_not_compile(vulkan: Device) -> None:
    program = harness.program_of(MODEL.graph, vulkan.target)
    broken = replace(program, shaders=tuple("// broken\nfn main( {" for _ in program.shaders))
    with pytest.raises(DeviceError, match="could not compile kernel broken"):
        Executor(broken, vulkan)


def test_a_grid_past_the_limit(vulkan: Device) -> None:
    program = harness.program_of(MODEL.graph, vulkan.target)
    wide = tuple(replace(d, grid=(1, 1, vulkan.target.workgroups + 1)) for d in program.dispatches)
    with pytest.raises(DeviceError, match=r"quantize\S* for x\.q needs a grid of \(1, 1, 65536\), the limit is 65535"):
        Executor(replace(program, dispatches=wide), vulkan)


# --- the arithmetic contract ---


def test_every_device_keeps_the_contract(device: Device) -> None:
    assert device.contract == ""


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("clamp(round(v), -limit, limit)", "clamp(trunc(v + 0.5), -limit, limit)", "accumulator"),
        ("i32(clamp(round(v), -limit, limit))", "i32(clamp(round(v), -limit, limit * 0.5))", "accumulator"),
        ("f32(acc) * multiplier", "f32(acc & -2) * multiplier", "accumulator"),
        ("((v >> k) & 1i)", "1i", "rounds half to even"),
        ("> 0x7f800000u", "> 0x7fffffffu", "quantize"),
    ],
)
def test_a_device_that_breaks_the_contract(
    good: str, bad: str, rule: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe sees each kind of wrong arithmetic, and int8 is refused, with the numbers; float models still run."""
    complete = link.complete
    assert any(good in text for text in files().values())
    other = Device(vulkan.wgpu)
    with monkeypatch.context() as patch:
        patch.setattr(link, "complete", lambda text: complete(text).replace(good, bad))
        assert rule in other.contract  # probed once, when first asked for
    with pytest.raises(DeviceError, match=r"cannot run int8 models: .*the contract .*results differ"):
        Session(MODEL, other)
    assert Session(one_node("add", (3,), inputs=2), other)(np.ones(3, np.float32), np.ones(3, np.float32)).sum() == 6


class Gpu:
    """A software device that says it is a GPU."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.adapter = FakeAdapter(cannot)
        self.adapter._adapter_info = {**real.adapter.info, "adapter_type": "DiscreteGPU"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(
    ("packed", "emulated", "linked", "fast"),
    [(6.0, 1.0, True, True), (1.0, 1.0, True, False), (1.0, 6.0, False, False)],
)
def test_a_target_is_measured_when_a_device_is_opened(
    packed: float, emulated: float, linked: bool, fast: bool, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and on a GPU alone: nothing that is asked of a device later changes what it is scheduled for."""
    asked: list[Device] = []

    def measured(device: Device) -> rates.DotRates:
        asked.append(device)
        return rates.DotRates(packed, emulated)

    monkeypatch.setattr(rates, "dot_rates", measured)
    gpu = Device(Gpu(vulkan.wgpu))
    assert (gpu.target.packed_dot, gpu.target.fast_dot) == (linked, fast)
    assert gpu.target == replace(BASELINE, **limits_of(gpu), packed_dot=linked, fast_dot=fast)
    assert asked == [gpu]
    cpu = Device(vulkan.wgpu)
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


def limits_of(device: Device) -> dict[str, Any]:
    behaviour = {"packed_dot", "fast_dot", "shares_memory", "few_cores", "unroll"}
    return {key: value for key, value in asdict(device.target).items() if key not in behaviour}


def test_dot_rates(vulkan: Device) -> None:
    assert vulkan.dot_rates.packed > 0
    assert vulkan.dot_rates.emulated > 0
    assert vulkan.unit_rate == 0, "software has no matrix units"


def test_a_saved_model_runs_the_same(tmp_path: Any, device: Device) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    close_to(Session(load(tmp_path / "net.q8ta"), device)(small_input()))
