"""Times the host's share of a run: 60 dispatches so small that recording, submitting and reading back dominate.

`python -m pytest bench/bench_host.py` times, on the best Vulkan adapter of each engine: a call, the same through the
public methods of the engine's package, a stream, and the steps of a call. Compare only rows of one engine. On a
software adapter the dispatches take most of the time of the first two. A stream gains nothing there, since the queue
runs on the same cores.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout, pack
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.recording import Recorder
from q8ta_wgpu.session import inputs

SHAPE = (1, 8, 8, 8)
DISPATCHES = 60
STREAMED = 16


def chain() -> Model:
    """A graph: quantize, tables and additions in turn, dequantize."""
    last = DISPATCHES - 1
    graph = Graph(inputs=["x"], outputs=["y"])
    graph.types = {"x": TensorType(SHAPE), "y": TensorType(SHAPE)}
    graph.types |= {f"v{i}": TensorType(SHAPE, INT8X4, QParams(0.05, 3)) for i in range(last)}
    table = graph.add_constant("table", np.arange(-128, 128)[::-1].astype(np.int8))
    add = {"a_multiplier": 1 << 14, "b_multiplier": 1 << 13, "shift": 14, "lo": -128, "hi": 127}
    graph.nodes.append(Node("quantize", ("x",), "v0", {"lo": -128, "hi": 127}))
    for i in range(1, last):
        before = f"v{i - 1}"
        other = f"v{max(i - 2, 0)}"
        graph.nodes.append(
            Node("q8ta_table", (before, table), f"v{i}") if i % 2 else Node("q8ta_add", (before, other), f"v{i}", add)
        )
    graph.nodes.append(Node("dequantize", (f"v{last - 1}",), "y"))
    return Model(graph, Structure(0))


def item() -> Array:
    return np.random.default_rng(0).normal(0, 1, SHAPE).astype(np.float32)


@pytest.fixture(scope="module", params=["wgpu-native:vulkan", "dawn:vulkan"])
def used(request: pytest.FixtureRequest) -> Device:
    """The best Vulkan adapter of an engine."""
    return open_device(request.param)


@pytest.fixture(scope="module")
def session(used: Device) -> Iterator[q8.Session]:
    with q8.Session(chain(), used) as opened:
        assert len(opened.program.dispatches) == DISPATCHES
        yield opened


def executor(session: q8.Session) -> Executor:
    assert session._runner.executor is not None
    return session._runner.executor


@pytest.mark.benchmark(group="end to end")
def test_call(benchmark: BenchmarkFixture, session: q8.Session) -> None:
    benchmark(session, item())


@pytest.mark.benchmark(group="end to end")
def test_call_through_public_methods(
    benchmark: BenchmarkFixture, used: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(used._measured, "recorder", False)
    with q8.Session(chain(), used) as opened:
        assert type(executor(opened)._recorder) is Recorder
        benchmark(opened, item())


@pytest.mark.benchmark(group=f"a stream of {STREAMED} items")
def test_calls_one_after_the_other(benchmark: BenchmarkFixture, session: q8.Session) -> None:
    items = [item()] * STREAMED
    benchmark(lambda: [session(x) for x in items])


@pytest.mark.benchmark(group=f"a stream of {STREAMED} items")
def test_run_many(benchmark: BenchmarkFixture, session: q8.Session) -> None:
    items = [item()] * STREAMED
    benchmark(lambda: list(session.run_many(items)))


@pytest.mark.benchmark(group="parts")
def test_upload(benchmark: BenchmarkFixture, session: q8.Session) -> None:
    made = executor(session)
    recorder = made._recorder
    staging = recorder.staging(16)
    benchmark(recorder.write, staging, inputs.fills(session.program.inputs, {session.program.inputs[0].name: item()}))
    staging.destroy()


@pytest.mark.benchmark(group="parts")
@pytest.mark.parametrize("public", [False, True], ids=["handles", "public"])
def test_recording(benchmark: BenchmarkFixture, session: q8.Session, public: bool) -> None:
    made = executor(session)._recorder
    recorder = (Recorder if public else type(made))(made.device, made.steps, made.copies, made.spins)
    staging = recorder.staging(16384)
    benchmark(lambda: recorder.record(staging))


@pytest.mark.benchmark(group="parts")
def test_checking_inputs(benchmark: BenchmarkFixture, session: q8.Session) -> None:
    x = item()
    benchmark(lambda: inputs.fills(session.program.inputs, inputs.arrays(session.model.graph, (x,), {})))


@pytest.mark.benchmark(group="packing 32 images of uint8")
@pytest.mark.parametrize("layout", [Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C], ids=lambda layout: layout.short)
def test_packing_images(benchmark: BenchmarkFixture, layout: Layout) -> None:
    images = np.random.default_rng(0).integers(-128, 128, (32, 1, 240, 426)).astype(np.int8)
    benchmark(pack, images, layout)
