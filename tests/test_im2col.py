"""im2col and a 1x1 convolution give the bytes of the convolution they replace, on the reference and on the device."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.im2col import use_im2col
from q8ta_wgpu.passes.layout_sync.plan import sync_layouts
from q8ta_wgpu.runtime.device import Device
from tests import harness

CONV = OPS["conv2d"]
WINDOWS = [i for i, c in enumerate(CONV.cases) if c.attrs["groups"] == 1 and np.prod(c.shapes[1][2:]) > 1]


@pytest.mark.parametrize(("index", "epilogue"), [(i, e) for i in WINDOWS for e in ("", *harness.epilogues_of(i))])
def test_same_bytes(index: int, epilogue: str, vulkan: Device) -> None:
    case, setting = CONV.cases[index], harness.SETTINGS[index % 3]
    make = harness.epilogue_graph if epilogue else lambda op, case, setting, _: harness.int8_graph(op, case, setting)
    graph, inputs = make(CONV, case, setting, epilogue)
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    rewritten = use_im2col(graph)
    verify(rewritten, RUNNABLE)
    assert [node.op for node in rewritten.nodes] == ["im2col", "q8ta_conv2d"]
    assert [node.op for node in graph.nodes] == ["q8ta_conv2d"], "the graph given is left alone"
    np.testing.assert_array_equal(reference.run(rewritten, inputs)[graph.outputs[0]], expected)
    (found,) = harness.run_poisoned(rewritten, inputs, None, vulkan)
    np.testing.assert_array_equal(found, expected)


def test_the_product_reads_words() -> None:
    """Both nodes run in 4C, im2col by words and the convolution as a tiled product, with no copy between them."""
    graph, _ = harness.int8_graph(CONV, CONV.cases[14], harness.SETTINGS[0])
    plan = sync_layouts(use_im2col(graph), BASELINE)
    kernels = [step.variant.kernel.name for step in plan.steps]
    assert kernels[0] == "im2col.words"
    assert len(kernels) == 2
    assert kernels[1].startswith("q8ta_conv2d.pw_")


def test_what_is_not_picked_or_has_no_window_stays() -> None:
    pointwise, _ = harness.int8_graph(CONV, CONV.cases[2], harness.SETTINGS[0])
    grouped, _ = harness.int8_graph(CONV, CONV.cases[5], harness.SETTINGS[0])
    window, _ = harness.int8_graph(CONV, CONV.cases[0], harness.SETTINGS[0])
    for graph in (pointwise, grouped):
        assert [node.op for node in use_im2col(graph).nodes] == ["q8ta_conv2d"]
    assert [node.op for node in use_im2col(window, lambda node: False).nodes] == ["q8ta_conv2d"]
