"""First layers that read a float image: the bytes of quantize and the convolution, on every kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from q8ta_wgpu import arithmetic, reference
from q8ta_wgpu.ir import INT8X4, Array, Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.op import Case
from q8ta_wgpu.passes.fold_image import fold_image
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.verify import RUNNABLE, verify
from tests import harness

CONV = OPS["conv2d"]
IMAGES = [i for i, case in enumerate(CONV.cases) if case.shapes[0][1] <= 4 and case.attrs["groups"] == 1]
RANGE = {"lo": -101, "hi": 99}
"""Narrower than int8 and, in some settings, beside the zero point, which padding keeps."""


def with_quantize(index: int, setting: harness.Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """The graph of a case on a float image that holds NaN and infinities: a quantize and one int8 convolution."""
    case = CONV.cases[index]
    build = harness.epilogue_graph if after else harness.int8_graph
    graph, inputs = build(CONV, case, setting, *((after,) if after else ()))
    q = graph.types["x0"].q
    assert q is not None
    image = arithmetic.dequantize(inputs.pop("x0"), q)
    image += harness.rng(index, setting).uniform(-0.6, 0.6, image.shape).astype(np.float32) * np.float32(q.scale)
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -1e-40], np.float32)[: image.size]
    image.reshape(-1)[-special.size :] = special
    graph.inputs = ["image", *(name for name in graph.inputs if name != "x0")]
    graph.types["image"] = TensorType(image.shape)
    graph.nodes.insert(0, Node("quantize", ("image",), "x0", RANGE))
    return graph, {"image": image, **inputs}


def folded(graph: Graph) -> Graph:
    graph = graph.copy()
    fold_image(graph)
    graph.prune()
    verify(graph, RUNNABLE)
    return graph


@pytest.mark.parametrize("after", ["", *harness.EPILOGUES])
@pytest.mark.parametrize("index", IMAGES)
def test_every_kernel(index: int, after: str, device: Device, request: pytest.FixtureRequest) -> None:
    """0 values differ from quantize and convolution. Like test_epilogues, not every epilogue meets every tile."""
    every = request.config.getoption("--every-pair") or not after
    for setting in harness.settings_for(CONV, index):
        if setting.mode == "overflow" and after == "act":
            continue
        graph, inputs = with_quantize(index, setting, after)
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        fused = folded(graph)
        assert [node.op for node in fused.nodes] == ["q8ta_conv2d_image" + (f"_{after}" if after else "")]
        np.testing.assert_array_equal(reference.run(fused, inputs)[fused.outputs[0]], expected)
        for place, (name, plan) in enumerate(harness.plans(fused, index)):
            if not every and "direct" not in name and (place + index + len(after)) % 4:
                continue
            (found,) = harness.run_poisoned(fused, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name}, {setting}")


def _graph(x: Sequence[int], weight: Sequence[int], groups: int = 1) -> Graph:
    attrs = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": groups}
    case = Case((tuple(x), tuple(weight), (weight[0],)), attrs)
    graph, _ = harness.int8_graph(CONV, case, harness.SETTINGS[0])
    graph.types["image"] = TensorType(tuple(x))
    graph.inputs = ["image"]
    graph.nodes.insert(0, Node("quantize", ("image",), "x0", {"lo": -128, "hi": 127}))
    return graph


def test_what_is_left_as_it_is() -> None:
    """Many channels, groups, and an int8 image that something else reads as well."""
    many = _graph((1, 5, 6, 7), (4, 5, 3, 3))
    grouped = _graph((1, 4, 6, 7), (4, 2, 3, 3), groups=2)
    returned = _graph((1, 3, 6, 7), (4, 3, 3, 3))
    returned.outputs.append("x0")
    read_twice = _graph((1, 3, 6, 7), (4, 3, 3, 3))
    read_twice.types["real"] = TensorType((1, 3, 6, 7))
    read_twice.nodes.append(Node("dequantize", ("x0",), "real"))
    read_twice.outputs.append("real")
    for graph in (many, grouped, returned, read_twice):
        assert [node.op for node in folded(graph).nodes] == [node.op for node in graph.nodes]


def test_an_image_that_is_its_own_addend_is_left() -> None:
    graph = _graph((1, 3, 6, 7), (3, 3, 3, 3))
    q = graph.types["y"].q
    assert q is not None
    graph.types["z"] = TensorType((1, 3, 6, 7), INT8X4, q)
    sums = {
        "inner_lo": -128,
        "inner_hi": 127,
        "inner_zero": q.zero,
        "inner_multiplier": 1 << 14,
        "addend_multiplier": 1 << 14,
        "shift": 14,
    }
    node = graph.nodes[1]
    graph.nodes[1] = Node("q8ta_conv2d_sum", (*node.inputs, "x0"), "z", {**node.attrs, **sums})
    graph.outputs = ["z"]
    assert [node.op for node in folded(graph).nodes] == ["quantize", "q8ta_conv2d_sum"]
