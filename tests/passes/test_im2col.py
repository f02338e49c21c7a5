"""im2col and a 1x1 convolution give the bytes of the convolution they replace, where a rule or a clock chooses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.passes.use_im2col import rewritable, with_im2col
from q8ta_wgpu.runtime.device import Device
from testbed import epilogue_graphs, harness, op_graphs
from testbed.graphs import conv
from tests.clock import by_estimate, tuned

CONV = OPS["conv2d"]
FITTING = [
    i
    for i, case in enumerate(CONV.cases)
    if case.attrs["groups"] == 1 and case.shapes[1][1] % 4 == 0 and np.prod(case.shapes[1][2:]) > 1
]
COPIED = ["q8ta_im2col", "q8ta_conv2d"]


@pytest.mark.parametrize("index", FITTING)
@pytest.mark.parametrize("epilogue", ["", "residual requantize", "requantize pixel_shuffle dequantize"])
def test_same_bytes(index: int, epilogue: str, vulkan: Device) -> None:
    case, setting = CONV.cases[index], op_graphs.SETTINGS[index % 3]
    made = (
        epilogue_graphs.epilogue_graph(CONV, case, setting, epilogue)
        if epilogue
        else op_graphs.int8_graph(CONV, case, setting)
    )
    graph, inputs = made
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    copied = with_im2col(graph, rewritable(graph))
    verify(copied, RUNNABLE)
    assert [node.op for node in copied.nodes] == COPIED
    assert [node.op for node in graph.nodes] == ["q8ta_conv2d"], "the graph given is left alone"
    np.testing.assert_array_equal(reference.run(copied, inputs)[graph.outputs[0]], expected)
    (found,) = harness.run_poisoned(copied, inputs, None, vulkan)
    np.testing.assert_array_equal(found, expected)


def test_the_product_reads_what_is_copied_as_it_lies() -> None:
    graph = conv((1, 16, 7, 9), 12, 3)
    steps = sync_layouts(with_im2col(graph, rewritable(graph)), BASELINE).steps
    assert len(steps) == 2 and steps[1].variant.kernel.name.startswith("q8ta_conv2d.pw_")


@pytest.mark.parametrize(("channels", "kernel", "groups"), [(16, 1, 1), (16, 3, 2), (18, 3, 1)])
def test_convolutions_without_windows_with_groups_or_with_parts_of_words_stay(
    channels: int, kernel: int, groups: int
) -> None:
    assert rewritable(conv((1, channels, 9, 9), 12, kernel, groups=groups)) == []


@pytest.mark.parametrize(("channels", "size", "copied"), [(32, 70, True), (16, 70, False), (16, 64, True)])
def test_upstreams_rule_holds_unmeasured_where_the_target_says_so(channels: int, size: int, copied: bool) -> None:
    """From 32 channels on, or up to 4,096 pixels of the result."""
    graph, phone = conv((1, channels, size, size), 8, 3), replace(BASELINE, copies_windows=True)
    assert [node.op for node in lower(graph, phone).nodes] == (COPIED if copied else COPIED[1:])
    assert [node.op for node in lower(graph, BASELINE).nodes] == COPIED[1:]


@pytest.mark.usefixtures("caches")
@pytest.mark.parametrize("price", [0.1, 10.0])
@pytest.mark.parametrize("phone", [False, True])
def test_tuning_takes_what_is_faster(price: float, phone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rule says. The predicted time is that of the dispatches that run."""

    def windows_cost(call: Call, way: Variant) -> float:
        pair = call.op == "q8ta_im2col" or call.inputs[1].shape[2:] == (1, 1)
        return by_estimate(call, way) * (price if pair else 1.0)

    graph = conv((1, 32, 20, 20), 32, 3)
    found, _ = tuned(graph, monkeypatch, windows_cost, target=replace(BASELINE, copies_windows=phone))
    ops = [step.node.op for step in found.plan.steps if step.node.op != "q8ta_clone"]
    assert ops == [node.op for node in found.graph.nodes] == (COPIED if price < 1 else COPIED[1:])
    assert found.predicted_ms(found.plan) <= found.predicted_ms(found.rules) * (1 + 1e-9)
