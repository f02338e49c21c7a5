"""Large inputs and outputs: copied in pieces, uploaded through memory of our own, used again in turn."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import cast

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime import handles, transfer
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.handles import HandleRecorder
from q8ta_wgpu.runtime.recording import Recorder

SHAPE = (1, 3, 640, 641)


@pytest.mark.parametrize("size", [0, 1, 7, transfer._PIECE, 5 * transfer._PIECE + 3])
def test_copies_are_equal(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    np.testing.assert_array_equal(transfer.copied(source), source)


@pytest.mark.parametrize("shape", [(), (3, 5), (9, 2, 1024, 300), (1, 2, 1024, 3000), (2, 2, 3, 600_000)])
def test_copies_of_any_strides(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without their padding, and axes in another order, as results lie in mapped memory."""
    monkeypatch.setattr(transfer, "_THREADS", 4)
    padded = np.random.default_rng(0).integers(0, 255, (*shape[:-1], shape[-1] + 2) if shape else (), dtype=np.uint8)
    source = padded[..., :-2].swapaxes(-1, -2) if shape else padded
    found = transfer.copied(source)
    np.testing.assert_array_equal(found, source)
    assert found.flags.c_contiguous and not np.shares_memory(found, padded)


def test_who_is_interrupted_may_free_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        if source[0]:
            raise KeyboardInterrupt
        time.sleep(0.2)
        ended.append(True)

    source = np.zeros(2 * transfer._PIECE, np.uint8)
    source[0] = 1
    monkeypatch.setattr(transfer, "_THREADS", 2)
    with pytest.raises(KeyboardInterrupt):
        transfer.copy(source, np.empty_like(source), copyto)
    assert ended


def _two_inputs() -> Model:
    graph = Graph(inputs=["a", "b"], outputs=["y", "z"])
    for name, output in (("a", "y"), ("b", "z")):
        graph.types |= {name: TensorType(SHAPE), f"q{name}": TensorType(SHAPE, INT8X4, QParams(0.05, 3))}
        graph.types[output] = TensorType(SHAPE)
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
    assert sum(x.nbytes for x in items[0]) >= handles._LARGE
    with q8.Session(session.model, "reference") as reference:
        expected = [reference(*item) for item in items]
    executor = session._runner.executor
    assert executor is not None and isinstance(executor._recorder, HandleRecorder)
    for found, wanted in zip(session.run_many(items * 2), expected * 2, strict=True):
        np.testing.assert_array_equal(found, wanted)
    stream = cast("Generator[object]", session.run_many(items))
    next(stream)
    stream.close()
    for item, wanted in zip(items, expected, strict=True):
        np.testing.assert_array_equal(session(*item), wanted)
    assert len(executor._uploads) == handles._UPLOADS


@pytest.mark.parametrize("fault", ["raises", "writes nothing"])
def test_without_a_way_to_write_the_public_one_is_taken(
    fault: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of a package may be."""

    def write_mapped(self: HandleRecorder, inputs: object, kept: object) -> None:
        if fault == "raises":
            raise AttributeError("wgpuBufferGetMappedRange")

    assert Device(vulkan.wgpu).recorder is vulkan.engine.recorder
    monkeypatch.setattr(HandleRecorder, "write_mapped", write_mapped)
    assert Device(vulkan.wgpu).recorder is Recorder


def test_closing_frees_the_uploads(session: q8.Session) -> None:
    session(*_items(1)[0])
    executor = session._runner.executor
    assert executor is not None and executor._uploads
    session.close()
    assert not executor._uploads
    with pytest.raises(q8.InputError, match="closed"):
        session(*_items(1)[0])
