"""Large inputs: written to mapped memory that runs copy from, and that is used again in turn."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator, Iterator
from typing import Any, cast

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import PACKINGS, Layout, pack
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program.program import Port
from q8ta_wgpu.runtime import handles, reused, transfer
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.handles import HandleRecorder, HandleStaging
from q8ta_wgpu.runtime.recording import Recorder
from q8ta_wgpu.session import inputs
from testbed import insides
from testbed.standins import failing

SHAPE = (1, 3, 640, 641)


def _two_inputs(first: tuple[int, ...] = SHAPE, second: tuple[int, ...] = SHAPE) -> Model:
    graph = Graph(inputs=["a", "b"], outputs=["y", "z"])
    for name, output, shape in (("a", "y", first), ("b", "z", second)):
        graph.types |= {name: TensorType(shape), f"q{name}": TensorType(shape, INT8X4, QParams(0.05, 3))}
        graph.types[output] = TensorType(shape)
        graph.nodes.append(Node("quantize", (name,), f"q{name}", {"lo": -128, "hi": 127}))
        graph.nodes.append(Node("dequantize", (f"q{name}",), output))
    return Model(graph, Structure({"tuple": [0, 1]}))


@pytest.fixture(params=["vulkan", "swiftshader"])
def session(request: pytest.FixtureRequest) -> Iterator[q8.Session]:
    device: Device = request.getfixturevalue(request.param)
    with q8.Session(_two_inputs(), device) as opened:
        yield opened


def _items(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(0, 1, SHAPE).astype("f4"), rng.normal(0, 1, SHAPE).astype("f4")) for _ in range(count)]


def test_large_inputs_arrive_whole(session: q8.Session) -> None:
    """One call after the other, many at a time, and after a stream that was left early: upload buffers are written
    again only once the device has read them."""
    items = _items(3)
    assert sum(x.nbytes for x in items[0]) >= handles.LARGE
    with q8.Session(session.model, "reference") as reference:
        expected = [reference(*item) for item in items]
    executor = insides.executor(session)
    assert isinstance(insides.recorder(executor), HandleRecorder)
    for found, wanted in zip(session.run_many(items * 2), expected * 2, strict=True):
        np.testing.assert_array_equal(found, wanted)
    stream = cast("Generator[object]", session.run_many(items))
    next(stream)
    stream.close()
    for item, wanted in zip(items, expected, strict=True):
        np.testing.assert_array_equal(session(*item), wanted)
    used = insides.runs(executor).idle
    assert used and all(isinstance(staging, HandleStaging) and staging.upload for staging in used)


@pytest.mark.parametrize("copy_threads", [1], indirect=True)
@pytest.mark.usefixtures("copy_threads")
def test_memory_of_results_is_freed_with_their_session(session: q8.Session) -> None:
    """With one thread: another that copied lets go of its array a little later."""
    item = _items(1)[0]
    kept = session(*item)[0]
    assert kept.nbytes >= reused.LEAST
    expected = kept.copy()
    places = {y.ctypes.data for y in session(*item)}
    for _ in range(3):
        assert places == {y.ctypes.data for y in session(*item)}, "the memory of the last results"
    np.testing.assert_array_equal(kept, expected)
    results = insides.results(session)
    assert [len(free) for free in insides.free(results).values()] == [2]
    session.close()
    assert not insides.free(results)
    np.testing.assert_array_equal(kept, expected)
    del kept
    assert not insides.free(results), "what ends later is freed, too"


@pytest.mark.parametrize("fault", ["raises", "writes nothing"])
def test_without_a_way_to_write_the_public_one_is_taken(
    fault: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of a package may be."""

    def write(self: HandleRecorder, staging: object, fills: object) -> None:
        if fault == "raises":
            raise AttributeError("wgpuBufferGetMappedRange")

    assert Device(vulkan.wgpu).recorder is vulkan.engine.recorder
    monkeypatch.setattr(HandleRecorder, "write", write)
    assert Device(vulkan.wgpu).recorder is Recorder


@pytest.mark.parametrize("where", ["before mapping", "in the callback", "while writing"])
def test_an_interrupt_while_inputs_are_written(
    where: str, session: q8.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next calls give their own results, closing does not submit what was interrupted, and nothing keeps the
    inputs."""
    items = _items(2)
    with q8.Session(session.model, "reference") as reference:
        expected = [reference(*item) for item in items]
    for _ in range(2):  # from the second one, the next run is recorded ahead
        np.testing.assert_array_equal(session(*items[0]), expected[0])
    executor = insides.executor(session)
    recorder = insides.recorder(executor)
    assert isinstance(recorder, HandleRecorder)
    before = insides.runs(executor).most

    places: dict[str, tuple[Any, str]] = {
        "before mapping": (recorder, "_wait"),
        "in the callback": (recorder.api, "from_c_string_view"),
        "while writing": (transfer, "copy"),
    }
    failing(monkeypatch, *places[where], KeyboardInterrupt)
    given = [x.copy() for x in items[1]]
    kept = [weakref.ref(x) for x in given]
    with pytest.raises(KeyboardInterrupt):
        session(*given)
    monkeypatch.undo()
    given.clear()
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
    for item, wanted in zip(items * 2, expected * 2, strict=True):
        np.testing.assert_array_equal(session(*item), wanted)
    assert insides.runs(executor).most == before
    session.close()


@pytest.mark.parametrize("shapes", [((1, 3, 101, 67), (2, 5, 61, 37)), ((1, 1, 33331), (1,)), ((1,), (1, 3, 201, 107))])
def test_inputs_of_odd_sizes_share_an_upload(shapes: tuple[tuple[int, ...], tuple[int, ...]], vulkan: Device) -> None:
    rng = np.random.default_rng(0)
    items = [tuple(rng.normal(0, 1, shape).astype("f4") for shape in shapes) for _ in range(5)]
    model = _two_inputs(*shapes)
    with q8.Session(model, vulkan) as session, q8.Session(model, "reference") as reference:
        for found, item in zip(session.run_many(items), items, strict=True):
            for y, wanted in zip(found, reference(*item), strict=True):
                np.testing.assert_array_equal(y, wanted)
        staging = insides.runs(insides.executor(session)).idle[0]
        assert isinstance(staging, HandleStaging) and staging.upload


def test_inputs_beyond_the_limit_of_a_buffer_are_written_to_the_queue(session: q8.Session) -> None:
    (item,) = _items(1)
    executor = insides.executor(session)
    assert insides.runs(executor).idle
    wgpu_device, size = executor.device.wgpu, sum(x.nbytes for x in item)

    class Limited:
        def __init__(self, size: int) -> None:
            self.limits = {"max-buffer-size": size}

        def __getattr__(self, name: str) -> Any:
            return getattr(wgpu_device, name)

    recorder = insides.recorder(executor)
    assert isinstance(recorder, HandleRecorder)
    for limit, is_mapped in ((size, True), (size - 1, False)):
        recorder.device = Limited(limit)
        with executor.device.lock:
            insides.runs(executor).drop(insides.runs(executor).idle.pop())
        found = session(*item)
        with q8.Session(session.model, "reference") as reference:
            np.testing.assert_array_equal(found, reference(*item))
        (used,) = insides.runs(executor).idle
        assert isinstance(used, HandleStaging) and (used.upload is not None) == is_mapped


def test_a_session_that_only_binds_has_no_upload(session: q8.Session) -> None:
    executor = insides.executor(session)
    outputs = sum(port.size for port in executor.program.outputs)
    assert executor.memory.staging == outputs
    session(*_items(1)[0])
    assert executor.memory.staging == 2 * outputs, "inputs have the sizes of outputs"


def test_closing_frees_the_uploads(session: q8.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        session(*_items(1)[0])
    executor = insides.executor(session)
    assert executor.memory.staging == insides.runs(executor).most * sum(
        4 * x.size for x in (*_items(1)[0], *_items(1)[0])
    )
    held = [*insides.runs(executor).idle, *(staging for staging, _ in insides.runs(executor).ahead)]
    uploads = [staging.upload.buffer for staging in held if isinstance(staging, HandleStaging) and staging.upload]
    destroyed: list[object] = []
    kind = type(uploads[0])
    destroy = kind.destroy

    def noted(buffer: object) -> None:
        destroyed.append(buffer)
        destroy(buffer)

    monkeypatch.setattr(kind, "destroy", noted)
    session.close()
    assert len(uploads) == len(held) == insides.runs(executor).most and set(map(id, uploads)) <= set(map(id, destroyed))
    assert not insides.runs(executor).idle and not insides.runs(executor).ahead
    with pytest.raises(q8.InputError, match="closed"):
        session(*_items(1)[0])


@pytest.mark.parametrize("name", ["wgpu-native:vulkan", "dawn:swiftshader"])
@pytest.mark.usefixtures("nothing_open")
def test_a_lost_device_under_large_inputs(name: str, swiftshader: Device) -> None:
    """Nothing is submitted to it, which could end the process."""
    with q8.Session(_two_inputs(), open_device(name)) as session:
        (item,) = _items(1)
        session(*item)
        assert session.device is not None
        session.device.wgpu.destroy()
        for _ in range(2):
            with pytest.raises(q8.DeviceError, match=r"could not run the program: .*lost"):
                session(*item)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 9), (6,), (2, 5, 4, 8)])
@pytest.mark.parametrize("layout", [layout for layout in Layout if layout in PACKINGS], ids=lambda layout: layout.short)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_, np.int16])
def test_inputs_are_written_as_layouts_have_them(
    shape: tuple[int, ...], layout: Layout, dtype: type[np.generic]
) -> None:
    """Twice to the same words, whose padding stays 0: uint8 minus 128, bools as 0 and 1, also those of other bytes."""
    stored = INT16X4 if dtype is np.int16 else INT8X4
    size = TensorType(shape, stored, QParams(1.0, 0, stored)).stored_bytes(layout)
    port = Port("x", shape, stored, layout.short, ("slot", 0), size)
    words = np.zeros(size // 4, np.uint32)
    for seed in range(2):
        x = np.random.default_rng(seed).integers(0, 127, shape)
        x = (x % 3).astype(np.uint8).view(np.bool_) if dtype is np.bool_ else x.astype(dtype)
        as_stored = (x ^ np.uint8(128)).view(np.int8) if dtype is np.uint8 else x.astype(DTYPES[stored])
        if dtype is np.bool_:
            assert as_stored.max() == 1
        (fill,) = inputs.fills([port], {"x": x})
        fill(words)
        np.testing.assert_array_equal(words, pack(as_stored, layout))


def test_the_order_of_words_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as packing them where they are in another order."""
    shape, layout = (1, 2, 9, 11), Layout.PACKED_INT8_4H4W
    port = Port(
        "x", shape, INT8X4, layout.short, ("slot", 0), TensorType(shape, INT8X4, QParams(1.0, 0)).stored_bytes(layout)
    )
    x = np.zeros(shape, np.int8)
    inputs.fills([port], {"x": x})
    monkeypatch.delattr(inputs, "unpack")
    inputs.fills([port], {"x": x})
