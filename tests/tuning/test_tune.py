"""Tuning: measured kernels and layouts, the cache they are kept in, and bytes that never change."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.product import speeds
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, Plan, sync_layouts
from q8ta_wgpu.passes.layout_sync.options import clone_call
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime import findings
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import tuner as tune
from testbed import harness, insides
from testbed.layout_graphs import random_graph, random_inputs
from testbed.moved_graphs import MOVED
from testbed.op_graphs import SETTINGS
from testbed.small import same_bytes, small_input, small_model
from tests.clock import INFO, Price, by_estimate, clocked, drawn, tuned
from tests.layout_sync.test_sync_layouts import check_sound

MODEL = small_model()
pytestmark = pytest.mark.usefixtures("caches")
L4C, L4W = Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W


def kernels(plan: Plan) -> list[tuple[str, str, tuple[Layout | None, ...], Layout]]:
    return [(s.node.output, s.variant.kernel.name, s.variant.reads, s.variant.out) for s in plan.steps]


# --- on devices ---


def test_a_tuned_session_gives_the_same_bytes_and_remembers(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bytes(Session(MODEL, vulkan)(small_input()))
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        first = session.tuning
        assert first is not None and session.program.dispatches
        assert [d.kernel for d in session.program.dispatches] == [s.variant.kernel.name for s in first.plan.steps]
    assert first.timed > 10 and first.cached == 0 and not first.note
    assert all(us > 0 for ways in first.microseconds.values() for us in ways.values())
    assert first.predicted_ms(first.plan) <= first.predicted_ms(first.rules) * (1 + 1e-9)
    assert first.cache is not None and json.loads(first.cache.read_text())["adapter"]["device"] in vulkan.name

    clock = clocked(monkeypatch, by_estimate)
    with Session(MODEL, vulkan, tune=True) as session:
        same_bytes(session(small_input()))
        again = session.tuning
    assert again is not None
    assert (clock.asked, clock.copies) == ([], 0), "what is in the cache was timed"
    assert (again.timed, again.cached) == (0, first.timed)
    assert kernels(again.plan) == kernels(first.plan)
    assert again.plan.cost == first.plan.cost


@pytest.mark.parametrize("policy", POLICIES)
def test_any_choice_gives_the_same_bytes(policy: str, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says: kernels that do not suit, layouts that do not match, transitions between them."""
    plans = set()
    for seed in range(3):
        clocked(monkeypatch, drawn(seed))
        with Session(MODEL, vulkan, policy, tune=True) as session:
            same_bytes(session(small_input()))
            assert session.tuning is not None
            plans.add(str(kernels(session.tuning.plan)))
        tune.times_of(vulkan.info).clear()
    assert len(plans) > 1


def test_a_device_without_timestamps(vulkan: Device) -> None:
    with pytest.raises(DeviceError, match=r"no timestamp queries.*leave tune out.*required_features"):
        Session(MODEL, insides.like(vulkan, timestamps=False), tune=True)


def test_the_reference_cannot_be_tuned() -> None:
    with pytest.raises(InputError, match="tune needs an adapter"):
        Session(MODEL, "reference", tune=True)


def test_a_session_measures_only_when_it_is_told_to(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on an adapter that the rules do not know: measuring took 1 to 9 seconds there, and gained nothing."""
    unknown = insides.like(vulkan, target=replace(vulkan.target, name="a new GPU", shares_memory=True))
    assert not speeds.known(unknown.target)
    clock = clocked(monkeypatch, by_estimate)
    assert Session(MODEL, unknown).tuning is None
    assert (clock.asked, clock.copies) == ([], 0)
    with pytest.raises(InputError, match="tune must be True or False, found None"):
        Session(MODEL, vulkan, tune=None)  # type: ignore[arg-type]


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
    assert clock.asked == [] and again.cached == found.timed


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
        tune.times_of(INFO).clear()
    assert copies > 0


@pytest.mark.parametrize(("gain", "changes"), [(0.02, False), (0.1, True)])
def test_small_gains_do_not_change_the_plan(gain: float, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = sync_layouts(MODEL.graph, BASELINE)
    chosen = {s.variant.kernel.name for s in rules.steps}
    found, _ = tuned(MODEL.graph, monkeypatch, lambda c, way: 100 * (1 - gain * (way.kernel.name not in chosen)))
    assert (kernels(found.plan) != kernels(rules)) == changes
    assert bool(found.changed) == changes
    assert ("the rules stand" in str(found)) != changes


@pytest.mark.parametrize("slow", ["q8ta_conv2d_parts", "view", "q8ta_conv2d"])
def test_a_network_is_timed_with_and_without_prologues(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = MOVED["shuffle"].graph(SETTINGS[0])
    fused, stored = (lower(graph, replace(BASELINE, prologues=wanted)) for wanted in (True, False))
    assert len(stored.nodes) == len(graph.nodes) > len(fused.nodes) == 1
    found, _ = tuned(fused, monkeypatch, lambda call, way: 1e3 if call.op == slow else 1.0, others=[stored])
    assert found.graph.nodes == (stored if slow == "q8ta_conv2d_parts" else fused).nodes
    assert bool(found.changed) == (slow == "q8ta_conv2d_parts")


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


# --- progress ---


def test_progress(monkeypatch: pytest.MonkeyPatch, vulkan: Device) -> None:
    calls: list[tuple[int, int, str]] = []
    clocked(monkeypatch, drawn(1))
    tune.tune([MODEL.graph], vulkan, progress=lambda *call: calls.append(call))
    assert calls[0][0] == 1 and calls[0][2] in OPS  # the copy comes first
    assert calls[-1][0] == calls[-1][1] > 10 and calls[-1][2] == ""
    assert all(done < total for done, total, _ in calls[:-1])
    assert calls == sorted(calls, key=lambda call: call[:2])


# --- the command ---


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vulkan: Device
) -> None:
    monkeypatch.chdir(tmp_path)
    MODEL.save(tmp_path / "net.q8ta")
    first = next(step.variant.kernel.name for step in sync_layouts(MODEL.graph, vulkan.target).steps)
    slow = clocked(monkeypatch, lambda call, way: 100.0 if way.kernel.name != first else 50.0)
    assert main(["tune", "net.q8ta", "--device", "vulkan"]) == 0
    out, err = capsys.readouterr()
    timed = re.search(rf"{re.escape(vulkan.name)}: (\d+) candidates timed, 0 taken", out)
    assert timed and int(timed[1]) == len(slow.asked) + slow.copies
    assert out.startswith("measuring kernels, ")
    assert "0 taken from the cache" in out
    assert "predicted: " in out and "measured: " in out and "times" in out and ".json" in out
    assert "tuning" not in err
    assert main(["tune", "net.q8ta", "--device", "vulkan", "--layouts", "greedy"]) == 0
    assert "candidates timed" in capsys.readouterr().out
    findings.keep(vulkan.info, "rates", [1.0, 2.0])
    assert main(["tune", "--device", "vulkan", "--clear"]) == 0
    assert "removed " in capsys.readouterr().out
    assert findings.recall(vulkan.info, "rates") is None
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
