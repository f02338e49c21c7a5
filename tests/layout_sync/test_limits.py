"""Limits of a target filter choices before anything is chosen, and what is left without one is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import INT8X4, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, sync_layouts
from q8ta_wgpu.passes.layout_sync.limits import fitting
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs

Q = QParams(0.1, 3)
L4W = Layout.PACKED_INT8_4W


def single(op: str, shapes: Sequence[Shape], attrs: Attrs) -> Graph:
    """A graph of one int8 node that reads inputs x0, x1 ..."""
    names = [f"x{i}" for i in range(len(shapes))]
    types = tuple(TensorType(shape, INT8X4, Q) for shape in shapes)
    shape, dtype = OPS[op].check(types, attrs)
    graph = Graph(inputs=names, outputs=["y"], types=dict(zip(names, types, strict=True)))
    graph.types["y"] = TensorType(shape, dtype, Q)
    graph.nodes = [Node(op, tuple(names), "y", attrs)]
    return graph


def pooled(size: int = 64) -> Graph:
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    return single("max_pool2d", [(1, 1, size, size)], {**OPS["max_pool2d"].cases[0].attrs, **attrs})


def linear(outputs: int, inputs: int, rows: int = 20) -> tuple[Graph, dict[str, Any]]:
    case = Case(((rows, inputs), (outputs, inputs), (outputs,)), {})
    return op_graphs.int8_graph(OPS["linear"], case, op_graphs.SETTINGS[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_layout_that_pads_too_much_is_not_chosen(policy: str, vulkan: Device) -> None:
    """One channel takes four times its bytes in 4C, and just its bytes in 4W."""
    graph, target = pooled(), replace(vulkan.target, binding_size=4096)
    plan = sync_layouts(graph, target, policy)
    assert plan.layouts == {"x0": L4W, "y": L4W}
    inputs = {"x0": op_graphs.extremes(op_graphs.rng(policy), (1, 1, 64, 64))}
    (found,) = harness.run_poisoned(graph, inputs, plan, vulkan, target)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)["y"])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tensor_that_fits_in_no_layout_is_named(policy: str) -> None:
    target, graph = replace(BASELINE, binding_size=4000), pooled()
    graph.nodes = [replace(graph.nodes[0], source="stem.pool (net.py:7)")]
    told = r"\(stem.pool \(net.py:7\)\): value x0 takes 4096 bytes, more than the 4000 bytes .*TiledSession"
    with pytest.raises(DeviceError, match=told):
        sync_layouts(graph, target, policy)
    unread = Graph(inputs=["x0"], outputs=["x0"], types={"x0": TensorType((1, 1, 64, 64), INT8X4, Q)})
    with pytest.raises(DeviceError, match="input x0 takes 4096 bytes, more than the 4000"):
        sync_layouts(unread, target, policy)


def test_a_constant_counts_as_its_kernel_packs_it(vulkan: Device) -> None:
    """130 outputs are 192 in tiles of 64, and 132 where they are packed by four."""
    graph, inputs = linear(130, 64)
    whole = sync_layouts(graph, BASELINE).steps[0].variant.kernel
    target = replace(vulkan.target, binding_size=132 * 64)
    kernel = sync_layouts(graph, target).steps[0].variant.kernel
    call = graph.call(graph.nodes[0])
    assert whole not in [found.kernel for found in fitting(call, target)]
    (found,) = harness.run_poisoned(graph, inputs, None, vulkan, target)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)["y"])
    assert kernel.prepack[1](call, graph.constants[graph.nodes[0].inputs[1]]).nbytes <= 132 * 64


def test_a_constant_that_no_kernel_packs_small_enough_is_named() -> None:
    graph, _ = linear(130, 64, rows=4)
    weight = graph.nodes[0].inputs[1]
    for size in (131 * 64, 3000):
        with pytest.raises(DeviceError, match=rf"constant {re.escape(weight)}, as .* packs it, takes \d+ bytes, more"):
            sync_layouts(graph, replace(BASELINE, binding_size=size))


def test_a_program_is_not_built_from_constants_that_cannot_be_bound() -> None:
    """A plan may have been made for another target."""
    graph, _ = linear(130, 64)
    plan = sync_layouts(graph, BASELINE)
    with pytest.raises(DeviceError, match=r"constant .*, as q8ta_linear.* packs it, takes \d+ bytes"):
        build(graph, replace(BASELINE, binding_size=132 * 64), plan)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"invocations": 1}, r"needs \d+ threads a workgroup, baseline has 1"),
        ({"workgroups": 1}, r"y takes \d+ workgroups in a dimension, baseline allows 1"),
        ({"storage_buffers": 1}, "needs 2 storage buffers, baseline has 1"),
        ({"loop_turns": 0}, r"needs \d+ loop turns of a thread, baseline has 0"),
    ],
)
def test_other_limits_are_told(limit: dict[str, Any], message: str) -> None:
    for policy in POLICIES:
        with pytest.raises(DeviceError, match=rf"node y \(max_pool2d\): .*{message}"):
            sync_layouts(pooled(), replace(BASELINE, **limit), policy)


def test_tiles_need_workgroup_memory() -> None:
    graph, _ = linear(256, 256, rows=512)
    call = graph.call(graph.nodes[0])
    most = max(found.kernel.workgroup_memory for found in fitting(call, BASELINE))
    assert 0 < most <= BASELINE.workgroup_memory
    small = replace(BASELINE, workgroup_memory=most - 1)
    assert all(found.kernel.workgroup_memory < most for found in fitting(call, small))
    assert sync_layouts(graph, small).steps


@pytest.mark.parametrize(("buffers", "limit"), [(4, 3), (8, 7), (9, 8), (64, 8)])
def test_cats_are_split_by_the_target(buffers: int, limit: int, vulkan: Device) -> None:
    target = replace(vulkan.target, storage_buffers=buffers)
    graph = single("cat", [(1, 1 + i % 3, 2, 3) for i in range(17)], {"dim": 1})
    lowered = lower(graph, target)
    assert max(len(node.inputs) for node in lowered.nodes) == limit
    inputs = {n: op_graphs.extremes(op_graphs.rng(n), graph.types[n].shape) for n in graph.inputs}
    expected = reference.run(graph, inputs)["y"]
    np.testing.assert_array_equal(reference.run(lowered, inputs)["y"], expected)
    if buffers <= vulkan.target.storage_buffers:
        (found,) = harness.run_poisoned(graph, inputs, None, vulkan, target)
        np.testing.assert_array_equal(found, expected)


def test_lowering_twice_is_lowering_once() -> None:
    target = Target(storage_buffers=4)
    once = lower(single("cat", [(1, 2, 2, 3)] * 9, {"dim": 1}), target)
    assert str(lower(once, target)) == str(once)
