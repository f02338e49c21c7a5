"""Tuning: measured kernels and layouts, the cache they are kept in, and bytes that never change."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, Array, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, Layout
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.options import clone_call
from q8ta_wgpu.passes.layout_sync.plan import POLICIES, Plan, Step, sync_layouts
from q8ta_wgpu.program import link
from q8ta_wgpu.program.wgsl import definitions
from q8ta_wgpu.runtime import kept
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tune import cache as tune_cache
from q8ta_wgpu.tune import timing as tune_timing
from q8ta_wgpu.tune import tuner as tune
from q8ta_wgpu.tune.cache import Cache
from q8ta_wgpu.tune.timing import Timed, Timer
from tests import harness, op_graphs
from tests.layout_graphs import random_graph, random_inputs
from tests.small import small_input, small_model
from tests.test_sync_layouts import check_sound

MODEL = small_model()
EXPECTED = Session(MODEL, "reference")(small_input())
INFO = {"device": "A GPU (1.0/x)", "backend_type": "Vulkan", "description": "driver 5"}
L4C, L4W = Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W
Price = Callable[[Call, Variant], float]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of each test's own."""
    monkeypatch.setattr(tune_cache, "folder", lambda: tmp_path / "caches")
    return tmp_path / "caches"


class Clock:
    """Stands in for the timer: times are what `price` says, and every candidate asked for is noted."""

    def __init__(self, price: Price) -> None:
        self.price = price
        self.asked: list[tuple[Call, Variant]] = []

    def __call__(self, device: Device) -> Clock:
        return self

    def copy(self) -> float:
        return 1e6  # a kilobyte a microsecond

    def times(
        self,
        call: Call,
        constants: Mapping[int, Array],
        candidates: Sequence[Variant],
        known: Mapping[Variant, float],
    ) -> list[Timed]:
        self.asked += [(call, way) for way in candidates]
        return [Timed(self.price(call, way), "sampled") for way in candidates]


def by_estimate(call: Call, way: Variant) -> float:
    """The times that the cost model expects, at a kilobyte a microsecond."""
    return cost.dispatch_cost(way, call) / 1e3


def drawn(seed: int) -> Price:
    """Times without rhyme or reason, the same for equal dispatches."""
    return lambda call, way: random.Random(f"{seed} {way} {call.output.shape}").uniform(1, 1000)


def tuned(graph: Graph, monkeypatch: pytest.MonkeyPatch, price: Price, policy: str = "optimal") -> Any:
    """A tuning of a graph with made-up times on a device of WebGPU's baseline, and the clock that was asked."""
    clock = Clock(price)
    monkeypatch.setattr(tune, "Timer", clock)
    device: Any = SimpleNamespace(name="a GPU", timestamps=True, target=BASELINE, info=INFO)
    return tune.tune(graph, device, policy), clock


def kernels(plan: Plan) -> list[tuple[str, str, tuple[Layout | None, ...], Layout]]:
    return [(s.node.output, s.variant.kernel.name, s.variant.reads, s.variant.out) for s in plan.steps]


def convolutions() -> list[Step]:
    return [step for step in sync_layouts(MODEL.graph, BASELINE).steps if step.node.op.startswith("q8ta_conv2d")]


def constants_of(step: Step) -> dict[int, Array]:
    graph = MODEL.graph
    return {i: graph.constants[name] for i, name in enumerate(step.node.inputs) if name in graph.constants}


def same_bytes(found: Any) -> None:
    np.testing.assert_array_equal(found["y"], EXPECTED["y"])
    np.testing.assert_array_equal(found["parts"][0], EXPECTED["parts"][0])


# --- on devices ---


def test_a_tuned_session_gives_the_same_bytes_and_remembers(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bytes(Session(MODEL, device)(small_input()))
    with Session(MODEL, device, tune=True) as session:
        same_bytes(session(small_input()))
        first = session.tuning
        assert first is not None and session.program.dispatches
        assert [d.kernel for d in session.program.dispatches] == [s.variant.kernel.name for s in first.plan.steps]
    assert first.timed > 10 and first.cached == 0 and not first.note
    assert all(us > 0 for ways in first.microseconds.values() for us in ways.values())
    assert first.predicted_ms(first.plan) <= first.predicted_ms(first.rules) * (1 + 1e-9)
    assert first.cache is not None and json.loads(first.cache.read_text())["adapter"]["device"] in device.name

    def refuse(*arguments: object) -> None:
        raise AssertionError("what is in the cache was timed")

    monkeypatch.setattr(Timer, "times", refuse)
    monkeypatch.setattr(Timer, "copy", refuse)
    with Session(MODEL, device, tune=True) as session:
        same_bytes(session(small_input()))
        again = session.tuning
    assert again is not None
    assert (again.timed, again.cached) == (0, first.timed + first.estimated)
    assert kernels(again.plan) == kernels(first.plan)
    assert again.plan.cost == first.plan.cost


@pytest.mark.parametrize("policy", POLICIES)
def test_any_choice_gives_the_same_bytes(policy: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says: kernels that do not suit, layouts that do not match, transitions between them."""
    plans = set()
    for seed in range(3):
        monkeypatch.setattr(tune, "Timer", Clock(drawn(seed)))
        with Session(MODEL, vulkan, policy, tune=True) as session:
            same_bytes(session(small_input()))
            assert session.tuning is not None
            plans.add(str(kernels(session.tuning.plan)))
        Cache.of(vulkan.info).clear()
    assert len(plans) > 1


class Times:
    """Stands in for an executor: each dispatch takes what is said, and runs are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *microseconds: float) -> None:
        self.microseconds = microseconds
        self.runs = [0] * len(microseconds)
        monkeypatch.setattr(tune_timing, "Executor", lambda program, device: self)

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
    assert found == [Timed(50.0, "stopped"), Timed(10.0, "sampled"), Timed(31.0, "stopped"), Timed(29.0, "sampled")]
    assert executor.runs[2] == 3 < 100 < executor.runs[3]
    assert executor.closed
    executor = Times(monkeypatch, 50.0)
    assert Timer(vulkan).times(step.call, arrays, ways[:1], {ways[1]: 10.0}) == [Timed(50.0, "stopped")]


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
    assert direct.how == shared.how == "estimated" and min(direct.microseconds, shared.microseconds) > 1e6
    assert {timed.how for timed in found.values()} == {"sampled"}
    assert executor.runs[[way.kernel.name for way in ways].index("q8ta_conv2d.direct")] == 0
    assert Timer(vulkan).times(large, arrays, ways[-1:], {ways[0]: 3e5}) == [direct]


def test_a_device_without_timestamps(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "timestamps", False)
    with pytest.raises(DeviceError, match=r"no timestamp queries.*leave tune out.*required_features"):
        Session(MODEL, vulkan, tune=True)


def test_the_reference_cannot_be_tuned() -> None:
    with pytest.raises(InputError, match="tune needs an adapter"):
        Session(MODEL, "reference", tune=True)


# --- plans ---


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(12))
def test_plans_are_made_of_measured_dispatches(seed: int, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(seed, 12)
    found, _ = tuned(graph, monkeypatch, drawn(seed), policy)
    check_sound(graph, found.plan)
    for plan in (found.rules, found.plan):
        assert all(found.step_us(step) > 0 for step in plan.steps)
    assert found.predicted_ms(found.plan) * (1 - tune.MARGIN) <= found.predicted_ms(found.rules) * (1 + 1e-9)
    if policy == "greedy":
        assert found.plan.layouts == found.rules.layouts
    again, clock = tuned(graph, monkeypatch, drawn(seed + 1), policy)
    assert kernels(again.plan) == kernels(found.plan)
    assert clock.asked == [] and again.cached == found.sampled


def chain() -> Graph:
    """A float image quantized and looked up twice: each step reads and writes any layout."""
    q = QParams(0.1, 3)
    graph = Graph(inputs=["x"], outputs=["c"])
    graph.types["x"] = TensorType((2, 5, 6, 7))
    graph.types |= {name: TensorType((2, 5, 6, 7), INT8X4, q) for name in "abc"}
    table = graph.add_constant("table", np.arange(-128, 128).astype(np.int8))
    graph.nodes = [
        Node("quantize", ("x",), "a", {"lo": -128, "hi": 127}),
        Node("q8ta_table", ("a", table), "b"),
        Node("q8ta_table", ("b", table), "c"),
    ]
    return graph


def least(graph: Graph, price: Price, rules: Plan) -> float:
    """By brute force over every way of each node of a chain, with the best transition wherever layouts differ."""
    planned = {s.node.output: s.variant for s in rules.steps}
    copied = clone_call(graph.types["a"])

    def us(node: Node, way: Variant) -> float:
        favoured = any(way == planned[n.output] for n in graph.nodes if n.op == node.op)
        return price(graph.call(node), way) * (1 - tune.MARGIN * favoured)

    def clone(source: Layout, wanted: Layout | None) -> float:
        assert wanted is not None
        ways = tune.candidates(copied, BASELINE, (), [Variant(OPS["q8ta_clone"].kernels[-1], (source,), wanted)])
        return 0.0 if source == wanted else min(price(copied, way) for way in ways)

    def ways(node: Node) -> list[Variant]:
        layouts = dict.fromkeys(rules.layouts.values())
        return tune.candidates(graph.call(node), BASELINE, layouts, [planned[node.output]])

    return min(
        sum(map(us, graph.nodes, (a, b, c))) + clone(a.out, b.reads[0]) + clone(b.out, c.reads[0])
        for a, b, c in itertools.product(*map(ways, graph.nodes))
    )


def test_a_plan_is_the_best_of_what_was_measured(monkeypatch: pytest.MonkeyPatch, caches: Path) -> None:
    graph, copies = chain(), 0

    def richer(*arguments: Any) -> Plan:
        """A plan as if other parts of the network ran in other layouts."""
        plan = sync_layouts(*arguments)
        return replace(plan, layouts={**plan.layouts, "other": L4W, "and another": Layout.PACKED_INT8_4C1W})

    monkeypatch.setattr(tune, "sync_layouts", richer)
    for seed in range(30):
        found, _ = tuned(graph, monkeypatch, drawn(seed))
        assert found.plan.cost == pytest.approx(least(graph, drawn(seed), found.rules) * 1e3)
        assert all(found.step_us(step) > 0 for step in found.plan.steps)
        copies += len(found.plan.transitions)
        Cache.of(INFO).clear()
    assert copies > 0


@pytest.mark.parametrize(("gain", "changes"), [(0.02, False), (0.1, True)])
def test_small_gains_do_not_change_the_plan(gain: float, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = sync_layouts(MODEL.graph, BASELINE)
    chosen = {s.variant.kernel.name for s in rules.steps}
    found, _ = tuned(MODEL.graph, monkeypatch, lambda c, way: 100 * (1 - gain * (way.kernel.name not in chosen)))
    assert (kernels(found.plan) != kernels(rules)) == changes
    assert bool(found.changes) == changes
    assert ("the rules stand" in str(found)) != changes


def test_times_as_estimated_leave_the_rules_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is right: measurements that agree with the estimates cost what the estimates say."""
    found, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert found.plan.layouts == found.rules.layouts
    assert found.plan.cost == pytest.approx(found.rules.cost * (1 - tune.MARGIN), rel=0.02)


def test_a_measured_kernel_need_not_suit() -> None:
    """A call runs in its measured ways alone, whatever the table says; the others keep their estimates."""
    node = next(node for node in MODEL.graph.nodes if node.op == "q8ta_conv2d")
    call = MODEL.graph.call(node)
    by_rule = {s.node.output: s.variant.kernel.name for s in sync_layouts(MODEL.graph, BASELINE).steps}
    way = next(way for way in tune.candidates(call, BASELINE, [L4C]) if not way.kernel.preferred(call, BASELINE))
    measured = {call: {way: 1e12}}
    steps = {s.node.output: s for s in sync_layouts(MODEL.graph, BASELINE, measured=measured).steps}
    assert steps[node.output].variant.kernel is way.kernel
    others = {name: s.variant.kernel.name for name, s in steps.items() if name != node.output and name in by_rule}
    assert others == {name: kernel for name, kernel in by_rule.items() if name != node.output}


def test_a_kernel_is_told_apart_from_its_namesakes() -> None:
    """A measured call runs the very kernel that was measured, though another has its name."""
    node = next(node for node in MODEL.graph.nodes if node.op == "q8ta_conv2d")
    call = MODEL.graph.call(node)
    kernel = next(way.kernel for way in tune.candidates(call, BASELINE, [L4C]))
    twin = replace(kernel)
    assert twin != kernel and twin.name == kernel.name
    way = Variant(twin, tuple(L4C if i == 0 else None for i in range(len(call.inputs))), L4C)
    measured = {call: {way: 1.0, replace(way, kernel=kernel): 2.0}}
    steps = {s.node.output: s for s in sync_layouts(MODEL.graph, BASELINE, measured=measured).steps}
    assert steps[node.output].variant == way


# --- what is timed, and under which key ---


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
    assert len(keys) == len(set(keys)) == found.sampled - 1  # and the copy
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
            graph, _ = op_graphs.float_graph(op, case)
            for node in graph.nodes:
                call = graph.call(node)
                arrays = {i: graph.constants[n] for i, n in enumerate(node.inputs) if n in graph.constants}
                ways = tune.candidates(call, BASELINE, (Layout.TENSOR_WIDTH_PACKED, *INT8_LAYOUTS))
                program = tune_timing._program(call, arrays, ways, device)
                assert [d.kernel for d in program.dispatches] == [way.kernel.name for way in ways] != []
    small = replace(BASELINE, binding_size=16)
    step = convolutions()[0]
    assert tune.candidates(step.call, small, [L4C]) == []


def test_limits_that_no_candidate_keeps_are_told(monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    monkeypatch.setattr(vulkan, "target", replace(vulkan.target, binding_size=16))
    with pytest.raises(DeviceError, match="more than the 16 bytes"):
        Session(MODEL, vulkan, tune=True)


# --- progress ---


def test_progress(monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    calls: list[tuple[int, int, str]] = []
    monkeypatch.setattr(tune, "Timer", Clock(drawn(1)))
    tune.tune(MODEL.graph, vulkan, progress=lambda *call: calls.append(call))
    assert calls[0][0] == 1 and calls[0][2] in OPS  # the copy comes first
    assert calls[-1][0] == calls[-1][1] > 10 and calls[-1][2] == ""
    assert all(done < total for done, total, _ in calls[:-1])
    assert calls == sorted(calls, key=lambda call: call[:2])


# --- the cache ---


def written(content: object, path: Path) -> Cache:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Cache.of(INFO)


def test_what_is_saved_is_read(caches: Path) -> None:
    cache = Cache.of(INFO)
    assert (cache.times, cache.note) == ({}, "")
    assert cache.path is not None and cache.path.parent == caches and "A-GPU-1-0-x-Vulkan" in cache.path.name
    cache.times["kernel abc"] = 12.5
    cache.save()
    assert Cache.of(INFO).times == {"kernel abc": 12.5}
    assert [p.name for p in caches.iterdir()] == [cache.path.name]
    for changed in (
        {"description": "driver 6"},
        {"device": "another"},
        {"backend_type": "OpenGL"},
        {"engine": "wgpu 9"},
    ):
        assert Cache.of({**INFO, **changed}).times == {}
    assert Cache.of(INFO).clear() and not Cache.of(INFO).clear()
    assert Cache.of(INFO).times == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b'{"format": 1, "adapter"', "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        ([1, 2], "it is not of format 1"),
        ({"format": 0, "microseconds": {"a": 1.0}}, "it is not of format 1"),
        ({"format": 1, "adapter": {"device": "x"}, "microseconds": {"a": 1.0}}, "it is another adapter's"),
        ({"format": 1, "adapter": tune_cache.identity(INFO)}, "its times are not"),
        *(
            (
                {"format": 1, "adapter": tune_cache.identity(INFO), "microseconds": {"a": 1.0, "b": us}},
                "its times are not",
            )
            for us in (0, -1.0, float("nan"), float("inf"), 10**400, True, "1", None, [1])
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_is_no_cache_counts_as_empty(content: object, reason: str) -> None:
    path = Cache.of(INFO).path
    assert path is not None
    cache = written(content, path)
    assert cache.times == {} and reason in cache.note and str(path) in cache.note
    cache.times["a"] = 2.0
    cache.save()
    assert (Cache.of(INFO).times, Cache.of(INFO).note) == ({"a": 2.0}, "")


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache.of(INFO)
    monkeypatch.setattr(tune_cache, "MAX_ENTRIES", 5)
    cache.times = {f"kernel {i}": 1.0 + i for i in range(9)}
    cache.save()
    assert list(Cache.of(INFO).times) == [f"kernel {i}" for i in range(4, 9)]
    monkeypatch.setattr(tune_cache, "MAX_BYTES", 100)
    assert "larger than 100 bytes" in Cache.of(INFO).note


def test_a_corrupt_file_is_tuned_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert first.cache is not None
    first.cache.write_text("broken")
    again, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert again.sampled == first.sampled and "it is not JSON" in str(again)
    last, _ = tuned(MODEL.graph, monkeypatch, by_estimate)
    assert last.sampled == 0 and not last.note


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vulkan: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(tune_cache, "folder", lambda: tmp_path / "file" / "folder")
    monkeypatch.setattr(tune, "Timer", Clock(by_estimate))
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "cannot be written" in str(session.tuning) and "nothing is kept" in str(session.tuning)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(tune_cache, "folder", homeless)
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        assert "there is no cache folder" in str(session.tuning)
        assert session.tuning is not None and session.tuning.cache is None
    assert not Cache.of(INFO).clear()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(caches: Path) -> None:
    cache = Cache.of(INFO)
    assert cache.path is not None
    cache.path.mkdir(parents=True)
    (cache.path / "in the way").touch()
    again = Cache.of(INFO)
    assert "it cannot be read" in again.note
    again.times["a"] = 1.0
    again.save()
    assert "cannot be written" in again.note
    assert [p.name for p in caches.iterdir()] == [cache.path.name]


def test_processes_that_write_at_once(caches: Path) -> None:
    """Readers see whole files, and what one wrote before the other is kept."""
    first, second = Cache.of(INFO), Cache.of(INFO)
    first.times["a"], second.times["b"] = 1.0, 2.0
    first.save()
    second.save()
    assert Cache.of(INFO).times == {"a": 1.0, "b": 2.0}
    writers = [Cache.of(INFO) for _ in range(4)]
    notes: list[str] = []

    def work(number: int) -> None:
        for i in range(20):
            writers[number].times[f"{number} {i}"] = 1.0
            writers[number].save()
            notes.append(Cache.of(INFO).note + writers[number].note)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(notes) == {""}
    assert {"a", "b"} <= Cache.of(INFO).times.keys()
    assert len(list(caches.iterdir())) == 1


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere/q8ta_wgpu"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/q8ta_wgpu"),
        ("linux", {}, "/home/me/.cache/q8ta_wgpu"),
        ("darwin", {"XDG_CACHE_HOME": "/elsewhere"}, "/home/me/Library/Caches/q8ta_wgpu"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/q8ta_wgpu/Cache"),
        ("win32", {}, "/home/me/AppData/Local/q8ta_wgpu/Cache"),
    ],
)
def test_the_folder_of_each_platform(
    platform: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert tune_cache.folder() == Path(expected)


# --- the command ---


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vulkan: Device
) -> None:
    monkeypatch.chdir(tmp_path)
    MODEL.save(tmp_path / "net.q8ta")
    first = next(step.variant.kernel.name for step in sync_layouts(MODEL.graph, vulkan.target).steps)
    slow = Clock(lambda call, way: 100.0 if way.kernel.name != first else 50.0)
    monkeypatch.setattr(tune, "Timer", slow)
    assert main(["tune", "net.q8ta", "--device", "vulkan"]) == 0
    out, err = capsys.readouterr()
    assert f"{vulkan.name}: {len(slow.asked) + 1} candidates timed (0 of them stopped" in out
    assert "0 taken from the cache" in out
    assert "predicted: " in out and "measured: " in out and "times" in out and ".json" in out
    assert "tuning" not in err
    assert main(["tune", "net.q8ta", "--device", "vulkan", "--layouts", "greedy"]) == 0
    assert "candidates timed" in capsys.readouterr().out
    kept.keep(vulkan.info, "rates", [1.0, 2.0])
    assert main(["tune", "--device", "vulkan", "--clear"]) == 0
    assert "removed " in capsys.readouterr().out
    assert kept.recall(vulkan.info, "rates") is None
    assert main(["tune", "--device", "vulkan", "--clear"]) == 0
    assert "nothing was kept for" in capsys.readouterr().out
    assert main(["tune", "net.q8ta", "--device", "vulkan", "--clear"]) == 0
    assert "0 taken from the cache" in capsys.readouterr().out
    for arguments, message in (
        (["tune"], "tune takes a FILE"),
        (["tune", "net.q8ta", "--device", "reference"], "tune needs an adapter"),
        (["tune", "missing.q8ta"], "missing.q8ta"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_random_networks_keep_their_bytes(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(5, 8)
    inputs = random_inputs(graph, 5)
    expected = harness.run_poisoned(graph, inputs, sync_layouts(graph, vulkan.target), vulkan)
    found, _ = tuned(graph, monkeypatch, drawn(5))
    for a, b in zip(harness.run_poisoned(graph, inputs, found.plan, vulkan), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes to it: reading it would wait for ever."""
    monkeypatch.setattr(tune_cache, "folder", lambda: tmp_path)
    path = Cache.of({}).path
    assert path is not None
    os.mkfifo(path)
    assert "it is no regular file" in Cache.of({}).note
