"""Layout sync: no kernel reads a layout it did not list, both policies give the same bytes, views are free."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from q8ta_wgpu.errors import InputError, UnsupportedError
from q8ta_wgpu.ir.graph import INT8X4, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout, Shape, packed_axis
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.layout_report import layout_report, moved
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, Plan, sync_layouts
from q8ta_wgpu.passes.layout_sync.limits import input_layouts
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.session import Session
from testbed.graphs import conv
from testbed.harness import run_poisoned
from testbed.layout_graphs import GraphMaker, addresses, deep_graph, random_graph, random_inputs
from testbed.small import small_model

L4W, L4C, L4C1W = Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W
graphs = st.builds(random_graph, st.integers(0, 10**6), st.integers(1, 14))


def check_sound(graph: Graph, plan: Plan) -> None:
    """Every step reads values that exist, in the layout they are in, and that its kernel lists."""
    made = {*graph.inputs}
    nodes = {node.output: node for node in graph.nodes}
    aliases = dict(plan.aliases)
    for step in plan.steps:
        for name, layouts, found in zip(
            step.node.inputs, input_layouts(step.variant.kernel, step.call), step.variant.reads, strict=True
        ):
            assert (found is None) == (not layouts)
            if found is None:
                continue
            assert found in layouts and found is not Layout.PACKED_INT8_CONV2D
            assert name in graph.constants or (plan.root(name) in made and plan.layouts[name] == found)
        assert step.variant.out in step.variant.kernel.output and plan.layouts[step.node.output] == step.variant.out
        assert step.variant.kernel.runs(step.call, BASELINE)
        if step.variant.kernel.synced:
            assert len({packed_axis(layout) for layout in (*step.variant.reads, step.variant.out) if layout}) == 1
        made.add(step.node.output)
    for name, source in aliases.items():
        node = nodes[name]
        was = addresses(graph.types[node.inputs[0]].shape, plan.layouts[source])
        if node.op == "permute":
            was = was.transpose(node.attrs["dims"])
        now = addresses(graph.types[name].shape, plan.layouts[name])
        np.testing.assert_array_equal(was.reshape(-1), now.reshape(-1))
    assert {plan.root(name) for name in nodes} <= made
    assert len({step.node.output for step in plan.steps}) == len(plan.steps)


@given(graphs, st.sampled_from(POLICIES))
def test_no_step_reads_a_layout_its_kernel_does_not_list(graph: Graph, policy: str) -> None:
    check_sound(graph, sync_layouts(graph, BASELINE, policy))


@given(graphs)
def test_optimal_is_proved_and_never_above_greedy(graph: Graph) -> None:
    best, swept = sync_layouts(graph, BASELINE), sync_layouts(graph, BASELINE, "greedy")
    assert best.proved
    assert best.cost <= swept.cost * (1 + 1e-9)


@given(graphs, st.sampled_from(POLICIES))
def test_plans_are_deterministic(graph: Graph, policy: str) -> None:
    assert sync_layouts(graph, BASELINE, policy) == sync_layouts(graph.copy(), BASELINE, policy)


PRINT_PLANS = """
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, sync_layouts
from q8ta_wgpu.ir.target import BASELINE
from testbed.layout_graphs import random_graph
for seed in range(20):
    for policy in POLICIES:
        plan = sync_layouts(random_graph(seed, 12), BASELINE, policy)
        print([(s.variant.kernel.name, s.variant.reads, s.variant.out, s.node) for s in plan.steps], plan.aliases)
"""


def test_plans_do_not_depend_on_the_order_of_sets() -> None:
    """Python orders sets of strings and enum members differently in every process."""
    root = Path(__file__).parents[2]
    printed = [
        subprocess.run(
            [sys.executable, "-c", PRINT_PLANS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] and printed[0].count(b"\n") == 40


@given(graphs, st.sampled_from(POLICIES))
def test_the_cost_of_a_plan_is_the_sum_over_its_dispatches(graph: Graph, policy: str) -> None:
    plan = sync_layouts(graph, BASELINE, policy)
    total = sum(cost.dispatch_cost(step.variant, step.call) for step in plan.steps)
    assert plan.cost == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_time_grows_about_linearly(policy: str) -> None:
    """Least processor times of three runs in turn: 8 times the nodes take 10 times as long; quadratic were 64."""
    small, large = deep_graph(20), deep_graph(160)
    assert len(large.nodes) == 8 * len(small.nodes)

    def seconds(graph: Graph) -> float:
        gc.collect()
        started = time.process_time()
        sync_layouts(graph, BASELINE, policy)
        return time.process_time() - started

    runs = [(seconds(small), seconds(large)) for _ in range(3)]
    fast, slow = (min(times) for times in zip(*runs, strict=True))
    assert slow <= 24 * fast, f"8 times the nodes took {slow / fast:.1f} times as long"


@pytest.mark.parametrize("seed", range(6))
def test_both_policies_give_the_bytes_of_the_reference(seed: int, vulkan: Device) -> None:
    graph = random_graph(seed, 9)
    inputs = random_inputs(graph, seed)
    expected = reference.run(graph, inputs)
    for policy in POLICIES:
        found = run_poisoned(graph, inputs, sync_layouts(graph, vulkan.target, policy), vulkan)
        for name, array in zip(graph.outputs, found, strict=True):
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{policy} {name}")


# --- free views, aliases, reports ---


def test_a_pooled_classifier_head_needs_no_copy(vulkan: Device) -> None:
    """(N, C, 1, 1) channels-packed and (N, C) width-packed are the same bytes."""
    make = GraphMaker(0)
    x = make.input((2, 10, 1, 1))
    y = make.conv(x, channels=9)
    graph = make.finish(make.linear(make.view(y, 2, 9), 4))
    plan = sync_layouts(graph, BASELINE)
    assert plan.transitions == () and len(plan.aliases) == 1
    inputs = random_inputs(graph, 0)
    (found,) = run_poisoned(graph, inputs, plan, vulkan)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)[graph.outputs[0]])


def test_channels_last_permutes_are_free(vulkan: Device) -> None:
    """(N, C, H, W) in 4C is (N, H, W, C) in 4W."""
    make = GraphMaker(1)
    y = make.permute(make.conv(make.input((1, 6, 5, 7))), 0, 2, 3, 1)
    graph = make.finish(make.permute(make.linear(y, 10), 0, 3, 1, 2))
    plan = sync_layouts(graph, BASELINE)
    assert plan.transitions == () and len(plan.aliases) == 2
    assert not any(step.node.op == "permute" for step in plan.steps)
    inputs = random_inputs(graph, 1)
    (found,) = run_poisoned(graph, inputs, plan, vulkan)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)[graph.outputs[0]])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("x", "layout"), [((2, 1, 12, 14), L4W), ((2, 3, 12, 14), L4W), ((2, 8, 1, 1), L4C)])
def test_images_of_bytes_come_in_the_order_of_rows(x: Shape, layout: Layout, policy: str) -> None:
    """The host packs them; int8 inputs lie as the first kernel reads them."""
    graph = conv(x, 8, 1)
    (name,) = graph.inputs
    assert sync_layouts(graph, BASELINE, policy).layouts[name] == L4C
    graph.values.set(name, given="uint8")
    plan = sync_layouts(graph, BASELINE, policy)
    assert plan.layouts[name] == layout and len(plan.transitions) == (layout != L4C)


def test_a_view_of_an_input_may_be_an_output(vulkan: Device) -> None:
    """Aliases share one slot that lives as long as the longest of them."""
    graph = Graph(inputs=["x"], outputs=["v", "r"])
    graph.types = {
        "x": TensorType((3, 4), INT8X4, QParams(0.1, 0)),
        "v": TensorType((1, 12), INT8X4, QParams(0.1, 0)),
        "table": TensorType((256,), "int8"),
        "r": TensorType((3, 4), INT8X4, QParams(0.2, 1)),
    }
    graph.constants["table"] = np.arange(256, dtype=np.uint8).view(np.int8)
    graph.nodes = [Node("view", ("x",), "v", {"shape": (1, 12)}), Node("q8ta_table", ("x", "table"), "r")]
    plan = sync_layouts(graph, BASELINE)
    assert plan.aliases == {"v": "x"}
    program = build(graph, BASELINE, plan)
    assert program.outputs[0].buffer == program.inputs[0].buffer and len(program.dispatches) == 1
    inputs = random_inputs(graph, 2)
    expected = reference.run(graph, inputs)
    for name, found in zip(graph.outputs, run_poisoned(graph, inputs, plan, vulkan), strict=True):
        np.testing.assert_array_equal(found, expected[name])


def test_a_copy_is_inserted_once_for_all_readers() -> None:
    """Two linears that read rows of a channels-packed image share the copy that a greedy sweep makes."""
    make = GraphMaker(3)
    y = make.conv(make.input((1, 6, 5, 7)))
    graph = make.finish(make.linear(y, 4), make.linear(y, 5))
    for policy in POLICIES:
        plan = sync_layouts(graph, BASELINE, policy)
        assert len(plan.transitions) == 1
        reads = [step.node.inputs[0] for step in plan.steps if step.node.op == "q8ta_linear"]
        assert reads == [plan.transitions[0].node.output] * 2
        check_sound(graph, plan)


def test_the_report_names_layouts_transitions_and_costs() -> None:
    make = GraphMaker(4)
    graph = make.finish(make.linear(make.conv(make.input((1, 6, 5, 7))), 4))
    report = layout_report(graph)
    text = str(report)
    (copy,) = report.optimal.transitions
    assert ", 1 transition of " in text
    t, (source,) = graph.types[copy.node.inputs[0]], copy.variant.reads
    assert source is not None and moved(copy) == cost.size(t, source) + cost.size(t, copy.variant.out)
    for part in (f"{copy.variant}, {moved(copy)} bytes", "proved optimal", "greedy:"):
        assert part in text
    assert all(name in text for name in report.optimal.layouts if name in graph.types and name not in graph.constants)


def test_unknown_policies_and_impossible_nodes_are_refused() -> None:
    t = TensorType((2, 3), INT8X4, QParams(0.1, 0))
    names = [f"x{i}" for i in range(9)]
    graph = Graph(inputs=names, outputs=["y"], types={**dict.fromkeys(names, t), "y": replace(t, shape=(18, 3))})
    graph.nodes = [Node("cat", tuple(names), "y", {"dim": 0})]
    for policy in POLICIES:
        with pytest.raises(UnsupportedError, match=r"no kernel of cat can run node y \(cat\) on baseline"):
            sync_layouts(graph, BASELINE, policy)
    with pytest.raises(UnsupportedError, match="'best'"):
        sync_layouts(graph, BASELINE, "best")
    with pytest.raises(InputError, match="'best'"):
        Session(small_model(), "reference", layouts="best")


def test_costs_count_padding_launches_and_how_bytes_are_read() -> None:
    t = TensorType((1, 3, 5, 7), INT8X4, QParams(0.1, 0))
    assert [cost.size(t, layout) for layout in (L4W, L4C, L4C1W)] == [120, 140, 140]
    add, clone = OPS["q8ta_add"].kernels[0], OPS["q8ta_clone"].kernels[-1]
    assert cost.base_cost(add, Call("q8ta_add", {}, (t, t), t)) == cost.DISPATCH
    assert [cost.read_cost(add, t, L4C, out) for out in (L4C, L4C1W)] == [140, 140 * cost.MIXED]
    copied = [cost.read_cost(clone, t, L4C, out) for out in (L4C, L4C1W, L4W)]
    assert copied == [140 * cost.ELEMENT, 280 * cost.ELEMENT, 140 * cost.GATHER]
    tiled = next(k for k in OPS["q8ta_clone"].kernels if k.name == "q8ta_clone.to_4C")
    one, four = (replace(t, shape=(1, channels, 5, 7)) for channels in (1, 4))
    assert tiled.cost(Call("q8ta_clone", {}, (one,), one)) == tiled.cost(Call("q8ta_clone", {}, (four,), four)) == 70


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_packs_int8_inputs_as_the_plan_wants_them(policy: str) -> None:
    graph = random_graph(3, 6)
    model = Model(graph, Structure({"list": list(range(len(graph.outputs)))}))
    inputs = random_inputs(graph, 3)
    expected = reference.run(graph, inputs)
    with Session(model, "vulkan", layouts=policy) as session:
        for name, found in zip(graph.outputs, session(**inputs), strict=True):
            np.testing.assert_array_equal(found, expected[name])
