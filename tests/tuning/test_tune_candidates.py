"""What tuning times: the candidates, under which keys, and which of them are stopped or not made."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import DTYPES, Array, Node, QParams
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, Layout
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.passes.layout_sync.layout_sync import Step, sync_layouts
from q8ta_wgpu.program import link
from q8ta_wgpu.program.wgsl_definitions import definitions
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import timer as tune_timer
from q8ta_wgpu.tuning import tuner as tune
from q8ta_wgpu.tuning.timer import Timer
from testbed import insides, op_graphs
from testbed.small import small_model
from tests.clock import by_estimate, tuned

MODEL = small_model()
pytestmark = pytest.mark.usefixtures("caches")
L4C, L4W = Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W


def convolutions() -> list[Step]:
    return [step for step in sync_layouts(MODEL.graph, BASELINE).steps if step.node.op.startswith("q8ta_conv2d")]


def constants_of(step: Step) -> dict[int, Array]:
    graph = MODEL.graph
    return {i: graph.constants[name] for i, name in enumerate(step.node.inputs) if name in graph.constants}


class Times:
    """Stands in for an executor and its stopwatch: each dispatch takes what is said, and runs are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *microseconds: float) -> None:
        self.microseconds = microseconds
        self.runs = [0] * len(microseconds)
        monkeypatch.setattr(tune_timer, "Executor", lambda program, device: self)
        monkeypatch.setattr(tune_timer, "Stopwatch", lambda executor: self)

    def load(self, words: object, seconds: float, only: int) -> None:
        """Nothing: this clock does not rise."""

    def time_runs(self, words: object, repeats: int, runs: int = 1, only: int = 0) -> Array:
        self.runs[only] += repeats * runs
        return np.full(repeats, self.microseconds[only])

    def close(self) -> None:
        self.closed = True


def test_slow_candidates_are_stopped(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, of which one compiles, and no more of what takes three times as long as the best."""
    step = convolutions()[0]
    arrays = constants_of(step)
    ways = tune.candidates(step.call, vulkan.target, [L4C])[:4]
    executor = Times(monkeypatch, 50.0, 10.0, 31.0, 29.0)
    found = Timer(vulkan).times(step.call, arrays, ways, {})
    assert found == [50.0, 10.0, 31.0, 29.0]
    assert executor.runs[2] == 3 < 100 < executor.runs[3]
    assert executor.closed
    executor = Times(monkeypatch, 50.0)
    assert Timer(vulkan).times(step.call, arrays, ways[:1], {ways[1]: 10.0}) == [50.0]


def test_a_run_that_would_take_too_long_is_not_made(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The general kernel, where a tiled one takes a third of a second: a GPU's watchdog may not wait for it."""
    (node,) = (n for n in MODEL.graph.nodes if n.output == "first.q")
    call = MODEL.graph.call(node)
    x, w, *others = call.inputs
    large = replace(
        call,
        inputs=(replace(x, shape=(1, 5, 256, 256)), *(replace(w, shape=(96, 5, 3, 3)), *others)),
        output=replace(call.output, shape=(1, 96, 256, 256)),
    )
    arrays = {i: np.zeros(t.shape, DTYPES[t.dtype]) for i, t in enumerate(large.inputs) if i}
    ways = tune.candidates(large, vulkan.target, [L4C])
    executor = Times(monkeypatch, *[3e5] * len(ways))
    timed_ways = Timer(vulkan).times(large, arrays, ways, {})
    found = {way.kernel.name: timed for way, timed in zip(ways, timed_ways, strict=True)}
    direct, shared = (found.pop(f"q8ta_conv2d.{name}") for name in ("direct", "direct_shared"))
    assert min(direct, shared) > 1e6 and set(found.values()) == {3e5}
    assert executor.runs[[way.kernel.name for way in ways].index("q8ta_conv2d.direct")] == 0
    assert Timer(vulkan).times(large, arrays, ways[-1:], {ways[0]: 3e5}) == [direct]


def key_of(step: Step, **changed: Any) -> str:
    call = replace(step.call, **changed)
    return tune.dispatch_key(step.variant, call, BASELINE)


def test_keys_know_shapes_and_attributes_but_not_scales() -> None:
    step = convolutions()[0]
    key, attrs = key_of(step), step.call.attrs
    _, *rest = attrs["epilogue"].stages
    q = replace(step.call.output, q=QParams(0.5, -77))
    assert (
        key_of(step, output=q, inputs=(replace(step.call.inputs[0], q=QParams(0.25, 9)), *step.call.inputs[1:])) == key
    )
    assert key_of(step, attrs={**attrs, "epilogue": Epilogue((Requantize(-3, 99), *rest))}) == key
    assert key_of(step, attrs={**attrs, "dilation": (2, 2)}) != key
    assert key_of(step, attrs={**attrs, "padding": (0, 1, 2, 1)}) != key
    n, c, h, w = step.call.output.shape
    assert key_of(step, output=replace(step.call.output, shape=(n, c, h + 1, w))) != key
    assert key_of(replace(step, variant=replace(step.variant, out=L4W))) != key


def test_equal_layers_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the same table lookup, at other scales."""
    graph = MODEL.graph.copy()
    (table,) = (node for node in graph.nodes if node.op == "q8ta_table")
    graph.types["more"] = replace(graph.types[table.output], q=QParams(0.7, 70))
    graph.nodes.append(Node(table.op, (table.output, *table.inputs[1:]), "more", table.attrs))
    graph.outputs.append("more")
    found, clock = tuned(graph, monkeypatch, by_estimate)
    keys = [tune.dispatch_key(way, call, BASELINE) for call, way in clock.asked]
    assert len(keys) == len(set(keys)) == found.timed - 1  # and the copy
    calls = [call for call, _ in clock.asked if call.op == "q8ta_table"]
    assert len(calls) == len({way for call, way in clock.asked if call.op == "q8ta_table"})


def test_a_changed_source_is_timed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernels that are linked from the file."""
    _, clock = tuned(MODEL.graph, monkeypatch, by_estimate)
    names = {way.kernel.name: way.kernel.linked(call)[0] for call, way in clock.asked}
    changed = {name for name, stems in names.items() if "gemm" in stems}
    assert changed and changed != names.keys()
    original = link.link
    (line,) = (f"// gemm.wgsl:{d.line}\n" for d in definitions()["main"] if d.file == "gemm")
    monkeypatch.setattr(link, "link", lambda *args: original(*args).replace(line, f"// better\n{line}"))
    _, clock = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert {way.kernel.name for _, way in clock.asked} == changed


def test_candidates_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layout, over the operator table: a program of all of them, within the target's limits."""
    device: Any = SimpleNamespace(target=BASELINE)
    for op in OPS.values():
        for case in op.cases[:3]:
            if not op.kernels or op.name in ("q8ta_clone", "dequantize"):
                continue
            graph, _ = op_graphs.single_graph(op, case)
            for node in graph.nodes:
                call = graph.call(node)
                arrays = {i: graph.constants[n] for i, n in enumerate(node.inputs) if n in graph.constants}
                ways = tune.candidates(call, BASELINE, (Layout.TENSOR_WIDTH_PACKED, *INT8_LAYOUTS))
                program = tune_timer._program(call, arrays, ways, device)
                assert [d.kernel for d in program.dispatches] == [way.kernel.name for way in ways] != []
    small = replace(BASELINE, binding_size=16)
    step = convolutions()[0]
    assert tune.candidates(step.call, small, [L4C]) == []


def test_limits_that_no_candidate_keeps_are_told(vulkan: Device) -> None:
    small = insides.like(vulkan, target=replace(vulkan.target, binding_size=16))
    with pytest.raises(DeviceError, match="more than the 16 bytes"):
        Session(MODEL, small, tune=True)
