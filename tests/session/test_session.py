"""Sessions: inputs they take and refuse, timing, threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, INT16X4, RANGES, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.model import Model, load
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session import inputs
from testbed.small import SHAPE, one_node, same_bytes, small_input, small_model

MODEL = small_model()


@pytest.fixture(scope="module")
def session(vulkan: Device) -> Session:
    return Session(MODEL, vulkan)


# --- inputs ---


def test_position_name_and_structure(session: Session) -> None:
    x = small_input()
    for found in (session(x), session(x=x)):
        assert list(found) == ["y", "parts"]
        assert isinstance(found["parts"], tuple)
        assert found["y"].dtype == np.float32
        assert found["y"].flags.writeable
        same_bytes(found)


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
        ((None,), {}, r"'x' cannot become an array of numbers, found NoneType: its numpy dtype is object\. If it"),
        ((np.zeros(SHAPE, object),), {}, r"found ndarray: .* dtype is object\. .* write np\.array\(value, dtype\)"),
        (([[1.0], [1.0, 2.0]],), {}, r"'x' cannot become an array of numbers, found list"),
        ((np.zeros(SHAPE[1:], np.float32),), {}, r"must have shape \(2, 5, 6, 7\), found shape \(5, 6, 7\).*reshape"),
        ((np.zeros((2, 6, 7, 5), np.float32),), {}, r"channels come first, write np.moveaxis\(x, -1, -3\)$"),
        ((np.zeros((0, *SHAPE[1:]), np.float32),), {}, r"'x' is empty, it must have shape \(2, 5, 6, 7\), found"),
        ((torch.zeros(SHAPE, dtype=torch.int32),), {}, r"must be float32, found int32"),
        ((torch.zeros(SHAPE, device="meta"),), {}, r"'x' cannot become an array of numbers, found Tensor"),
    ],
)
def test_inputs_that_are_refused(
    where: str | None, args: tuple[Any, ...], kwargs: dict[str, Any], message: str, session: Session
) -> None:
    chosen = session if where is None else Session(MODEL, where)
    with pytest.raises(InputError, match=message):
        chosen(*args, **kwargs)


@pytest.mark.parametrize(
    ("found", "way"),
    [((3, 4, 6), "x[None]"), ((4, 6, 3), "np.moveaxis(x, -1, -3)[None]"), ((1, 4, 6, 3), "np.moveaxis(x, -1, -3)")],
)
def test_the_way_to_the_wanted_shape(found: tuple[int, ...], way: str) -> None:
    x = np.zeros(found)
    assert inputs._way_to((1, 3, 4, 6), found).endswith(f"write {way}")
    assert eval(way, {"np": np, "x": x}).shape == (1, 3, 4, 6)


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
        same_bytes(session(form))
    half = x.astype(np.float16)
    same_bytes(session(half), session(half.astype(np.float32)))


def test_torch_is_not_imported_for_a_tensor() -> None:
    code = """
import sys, numpy as np
from q8ta_wgpu import Session
from testbed.small import small_input, small_model
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
    same_bytes(Session(MODEL, "reference")(clean), expected)
    opened = Session(MODEL, device)
    same_bytes(opened(x), expected)
    wide = x.astype(np.float64)
    wide.flat[2:5] = [1e300, -1e300, 1e39]
    same_bytes(opened(wide), expected)


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
    same_bytes(Session(model, vulkan)(x), Session(model, "reference")(x))
    with pytest.raises(InputError, match="dimensions"):
        MODEL.reshape((0, *SHAPE[1:]))


def test_no_model() -> None:
    with pytest.raises(InputError, match=r"takes a Model, found str: q8ta_wgpu.load"):
        Session("net.q8ta")  # type: ignore[arg-type]


def test_inputs_are_told_as_they_are_given() -> None:
    graph = Graph(["a", "b", "c", "d"], ["a"])
    graph.types = {name: TensorType((2, 3), INT8X4, QParams(1.0, 0)) for name in "abc"} | {"d": TensorType((5,))}
    graph.values.set("a", given="bool")
    graph.values.set("b", given="uint8")
    model = Model(graph, Structure(0))
    assert str(model.inputs) == "{'a': bool[2, 3], 'b': uint8[2, 3], 'c': int8[2, 3], 'd': float32[5]}"
    assert model.inputs["a"].array_dtype == "bool" and model.inputs["c"].q == QParams(1.0, 0)


# --- timing ---


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_warm_up(where: str) -> None:
    """A call whose result nobody sees, on zeros of the dtype that is given."""
    with Session(MODEL, where) as opened:
        opened.warm_up()
        same_bytes(opened(small_input()))
    with pytest.raises(InputError, match="closed"):
        opened.warm_up()


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
            same_bytes(found, wanted)


@pytest.mark.parametrize("dtype", [FLOAT32, INT8X4, INT16X4])
def test_an_output_may_be_a_constant(dtype: str, device: Device) -> None:
    q = QParams(0.1, 3, dtype) if dtype in RANGES else None
    graph = Graph(["x"], ["y", "fixed"], [Node("relu", ("x",), "y", {})])
    graph.types = {"x": TensorType((3, 5)), "y": TensorType((3, 5))}
    fixed = np.arange(-7, 8).reshape(3, 5).astype(DTYPES[dtype])
    graph.types["fixed"], graph.constants["fixed"] = TensorType((3, 5), dtype, q), fixed
    with Session(Model(graph, Structure({"tuple": [0, 1]})), device) as opened:
        _, found = opened(np.ones((3, 5), np.float32))
    np.testing.assert_array_equal(found, fixed)


def test_a_saved_model_runs_the_same(tmp_path: Any, device: Device) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    same_bytes(Session(load(tmp_path / "net.q8ta"), device)(small_input()))
