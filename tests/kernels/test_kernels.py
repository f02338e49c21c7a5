"""Every kernel of every operator over its cases: int8 equals the reference bit for bit, float within its tolerance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, Layout
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.passes.layout_sync.options import transitions
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.wgsl_definitions import definitions
from q8ta_wgpu.runtime.device import Device
from testbed import attention_graphs, epilogue_graphs, expanded_graphs, harness, moved_graphs, op_graphs, sample
from tests.kernels import test_chains, test_image

CASES = [(op, i) for op in OPS.values() for i in range(len(op.cases)) if op.kernels]
FAR_APART = ("add", "rotary", "layer_norm", "group_norm")
"""Operators that stay in float32 where the result's scale is a billionth of what the operands' are."""
INT8_CASES = [(op, i) for op, i in CASES if op.int8 and op.name != "q8ta_clone"]


PARTIAL = ("update_rows", "q8ta_rotary_update")
"""They write a part of a state, which tests/session/test_state.py and tests/passes/test_rotary.py read."""


def _id(value: object) -> str:
    return value.name if isinstance(value, Op) else str(value)


def test_every_operator_has_cases() -> None:
    """Int8 forms are reached from their float operator's cases; everything else with a kernel needs its own."""
    made = {name for name in OPS if name.startswith(("q8ta_", "q16ta_")) and name != "q8ta_clone"} | {*PARTIAL}
    assert [op.name for op in OPS.values() if op.kernels and not op.cases and op.name not in made] == []


def test_every_kernel_runs_a_case() -> None:
    """Each kernel of each operator is chosen by `harness.sampled_plans` for some case, so that the tests below run it.

    Those for matrix units are compiled by test_wgsl.py; test_int16.py runs those of int16.
    """
    moved = (*moved_graphs.graphs(BASELINE), moved_graphs.taken(), *expanded_graphs.graphs(BASELINE))
    others = (*test_image.graphs(), *test_chains.graphs(), *attention_graphs.fused_graphs(), *moved)
    reached = set[int]()
    for graph, index in (*harness.plain_graphs(), *((g, 0) for g in others)):
        if len(graph.nodes) != 1:
            continue
        reached |= {id(plan.steps[0].variant.kernel) for _, plan in harness.sampled_plans(graph, index)}
        for _, plan in harness.plans(graph, index, (harness.UNITS,)):
            (step,) = plan.steps
            if not any(step.variant.kernel.runs(step.call, target) for target in (BASELINE, SOFTWARE)):
                reached.add(id(step.variant.kernel))
    missing = [
        kernel.name
        for op in OPS.values()
        for kernel in op.kernels
        if id(kernel) not in reached and op.name not in PARTIAL and not op.name.startswith("q16ta_")
    ]
    assert missing == []


def test_sampled_backends_meet_every_family() -> None:
    """Of the kernels that Vulkan runs, OpenGL and SwiftShader run at least one with each WGSL file that has a main."""
    mains = {definition.file for definition in definitions()["main"]}
    whole, sampled = set[str](), set[str]()
    for graph, index in harness.plain_graphs():
        if len(graph.nodes) != 1:
            continue
        for _, plan in harness.sampled_plans(graph, index, every=False):
            found = mains & {*plan.steps[0].variant.kernel.linked(plan.steps[0].call)[0]}
            whole |= found
            sampled |= found if index % sample.IN_EIGHT == 0 else set()
    assert whole - sampled == set()


@pytest.mark.parametrize(("op", "index"), CASES, ids=_id)
def test_single(op: Op, index: int, device: Device) -> None:
    """Operators on float32 values, across the border to int8 and on int8 values alone against their reference."""
    graph, inputs = op_graphs.single_graph(op, op.cases[index])
    expected = reference.run(graph, inputs)["y"]
    for name, plan in harness.plans_or_none(graph, index, device):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        harness.assert_close(op, found, expected, name)


INTEGER_CASES = [(op, i) for op, i in CASES if op_graphs.takes_integers(op) and i < 4]
"""What an operator does beside its arithmetic, float32 meets in all of its cases."""


@pytest.mark.parametrize(("op", "index"), INTEGER_CASES, ids=_id)
def test_integers(op: Op, index: int, device: Device) -> None:
    """Operators on int32: 0 mismatches, unless they make floats of them."""
    graph, inputs = op_graphs.integer_graph(op, op.cases[index])
    expected = reference.run(graph, inputs)["y"]
    for name, plan in harness.plans_or_none(graph, index, device):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, op.tolerance if op.name == "to_float32" else 0, err_msg=name)


STEPS_CASES = [(op, i) for op, i in CASES if op_graphs.takes_steps(op)]


@pytest.mark.parametrize(("op", "index"), STEPS_CASES, ids=_id)
def test_steps(op: Op, index: int, device: Device) -> None:
    """Operators of floats that read int8 as it is stored, too: 0 mismatches."""
    graph, inputs = op_graphs.int8_only_graph(op, op.cases[index])
    expected = reference.run(graph, inputs)["y"]
    for name, plan in harness.plans_or_none(graph, index, device):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(("op", "index"), INT8_CASES, ids=_id)
def test_int8(op: Op, index: int, device: Device) -> None:
    """dequantize -> operator -> quantize, fused, on every kernel: 0 mismatches.

    The first case meets every layout, the others one each.
    """
    for setting in op_graphs.settings_for(op, index):
        graph, inputs = op_graphs.int8_graph(op, op.cases[index], setting)
        if setting.mode == "overflow" and op.name in FAR_APART:
            assert "too far apart" in graph.notes[0]
            continue
        assert not graph.notes, graph.notes
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        if not graph.nodes:
            np.testing.assert_array_equal(inputs[graph.outputs[0]], expected)
            continue
        for name, plan in harness.plans_or_none(graph, index, device):
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            mismatches = int((found != expected).sum())
            assert mismatches == 0, f"{name}, {setting}: {mismatches} of {expected.size} differ"


WEIGHTED = [(op, i) for op, i in CASES if isinstance(op.int8, WeightedSum)]


WITH_EPILOGUE = [(op, i, after) for op, i in WEIGHTED for after in epilogue_graphs.epilogues_of(op, i)]


@pytest.mark.parametrize(("op", "index", "epilogue"), WITH_EPILOGUE, ids=_id)
def test_epilogues(op: Op, index: int, epilogue: str, device: Device) -> None:
    """What follows a weighted sum in its dispatch: 0 mismatches.

    A kernel is linked from a body and an epilogue that know nothing of each other, so that of a case's kernels each
    epilogue meets one in sixteen, in turn.
    """
    for setting in op_graphs.settings_for(op, index):
        if setting.mode == "overflow" and "curve" in epilogue:
            continue  # an activation 2^30 steps tall has no curve: it stays in float32
        graph, inputs = epilogue_graphs.epilogue_graph(op, op.cases[index], setting, epilogue)
        (node,) = graph.nodes
        expected_stages = " ".join(stage for stage in epilogue.split() if stage != "pixel_shuffle")
        assert (node.op, harness.stages_of(node)) == (f"q8ta_{op.name}", expected_stages), graph.notes
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        for name, plan in harness.plans(graph, index):
            if not harness.taken(plan.steps[0], index + epilogue_graphs.EPILOGUES.index(epilogue), 16):
                continue
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name}, {setting}")


@pytest.mark.parametrize(("op", "index"), WEIGHTED, ids=_id)
def test_emulated_dot_product(op: Op, index: int, device: Device) -> None:
    """As for a device whose packed dot product is the slower one: 0 mismatches, and no packed one in the shader."""
    graph, inputs = op_graphs.int8_graph(op, op.cases[index], op_graphs.SETTINGS[index % len(op_graphs.SETTINGS)])
    expected, target = (
        reference.run(graph, inputs)[graph.outputs[0]],
        replace(device.target, packed_dot=False, fast_dot=False),
    )
    for name, plan in harness.plans(graph, index):
        step = plan.steps[0]
        if "dot" not in step.variant.kernel.linked(step.call)[0] or not harness.taken(step, index, 16):
            continue
        assert "dot4I8Packed" not in build(graph, target, plan).shaders[0]
        (found,) = harness.run_poisoned(graph, inputs, plan, device, target)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("before", INT8_LAYOUTS, ids=lambda layout: layout.short)
@pytest.mark.parametrize("after", INT8_LAYOUTS, ids=lambda layout: layout.short)
def test_clone_between_every_pair_of_layouts(before: Layout, after: Layout, vulkan: Device) -> None:
    shape = (2, 5, 3, 7)
    graph = Graph(["x"], ["y"], [Node("q8ta_clone", ("x",), "y")])
    graph.types = dict.fromkeys(("x", "y"), TensorType(shape, INT8X4, QParams(0.037, -11)))
    inputs = {"x": op_graphs.extremes(op_graphs.rng(before, after), shape)}
    call = graph.call(graph.nodes[0])
    _, chosen = transitions(call.output, vulkan.target)[before, after]
    step = Step(graph.nodes[0], call, Variant(chosen, (before,), after))
    (found,) = harness.run_poisoned(graph, inputs, Plan((step,), {"x": before, "y": after}), vulkan)
    np.testing.assert_array_equal(found, inputs["x"])
