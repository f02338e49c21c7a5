"""First layers that read a float image: the bytes of quantize and the convolution, on every kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.errors import DeviceError, GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, TensorType
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Add
from q8ta_wgpu.kernels.product import gemm
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.fold_producers import fold_image
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.session import Session
from testbed import epilogue_graphs, harness, insides, op_graphs
from testbed.sample import EVERYTHING, in_turn

CONV = OPS["conv2d"]
SINGLE = Structure(0)
IMAGES = [i for i, case in enumerate(CONV.cases) if case.shapes[0][1] <= 4 and case.attrs["groups"] == 1]
RANGE = {"lo": -101, "hi": 99}
"""Narrower than int8 and, in some settings, beside the zero point, which padding keeps."""


def with_quantize(index: int, setting: op_graphs.Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """The graph of a case on a float image that holds NaN and infinities: a quantize and one int8 convolution."""
    case = CONV.cases[index]
    build = epilogue_graphs.epilogue_graph if after else op_graphs.int8_graph
    graph, inputs = build(CONV, case, setting, *((after,) if after else ()))
    q = graph.types["x0"].q
    assert q is not None
    image = arithmetic.dequantize(inputs.pop("x0"), q)
    image += op_graphs.rng(index, setting).uniform(-0.6, 0.6, image.shape).astype(np.float32) * np.float32(q.scale)
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -1e-40], np.float32)[: image.size]
    image.reshape(-1)[-special.size :] = special
    graph.inputs = ["image", *(name for name in graph.inputs if name != "x0")]
    graph.types["image"] = TensorType(image.shape)
    graph.nodes.insert(0, Node("quantize", ("image",), "x0", RANGE))
    return graph, {"image": image, **inputs}


def graphs() -> Iterator[Graph]:
    """The folded graph of every case with every epilogue."""
    for index in IMAGES:
        for after in ("", *epilogue_graphs.EPILOGUES):
            yield folded(run_passes(with_quantize(index, op_graphs.SETTINGS[0], after)[0]))


def folded(graph: Graph) -> Graph:
    graph = graph.copy()
    fold_image(graph, SOFTWARE)
    graph.prune()
    verify(graph, RUNNABLE)
    return graph


@pytest.mark.parametrize(
    ("index", "after"),
    [(i, after) for i in IMAGES for after in ("", *in_turn(epilogue_graphs.epilogues_of(CONV, i), i, 3))],
)
def test_every_kernel(index: int, after: str, device: Device) -> None:
    """0 values differ from quantize and convolution. Each epilogue meets one case in three and one tile of it, rounding
    a third of the tiles."""
    for setting in op_graphs.settings_for(CONV, index):
        if setting.mode == "overflow" and "curve" in after:
            continue
        graph, inputs = with_quantize(index, setting, after)
        expected = reference.run(graph, inputs)[graph.outputs[0]]
        fused = folded(graph)
        (node,) = fused.nodes
        stages = " ".join(stage for stage in after.split() if stage != "pixel_shuffle") or "requantize"
        assert (node.op, harness.stages_of(node)) == ("q8ta_conv2d_image", stages)
        np.testing.assert_array_equal(reference.run(fused, inputs)[fused.outputs[0]], expected)
        for place, (name, plan) in enumerate(harness.plans(fused, index)):
            turn = place + index + len(after)
            if not EVERYTHING and "direct" not in name and turn % (len(gemm.TILES) if after else 3):
                continue
            (found,) = harness.run_poisoned(fused, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name}, {setting}")


def _graph(x: Sequence[int], weight: Sequence[int], groups: int = 1, stride: int = 1) -> Graph:
    """A quantize and a convolution, whose result's scale is that of a small image."""
    attrs = {"stride": (stride, stride), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": groups}
    small = (1, x[1], *(min(size, 16) for size in x[2:]))
    graph, _ = op_graphs.int8_graph(CONV, Case((small, tuple(weight), (weight[0],)), attrs), op_graphs.SETTINGS[0])
    graph.types["image"] = TensorType(small)
    graph.inputs = ["image"]
    graph.nodes.insert(0, Node("quantize", ("image",), "x0", {"lo": -128, "hi": 127}))
    return Model(graph, SINGLE).reshape(tuple(x)).graph


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
    q = graph.types.pop("y").q
    assert q is not None
    graph.types["z"] = TensorType((1, 3, 6, 7), INT8X4, q)
    node = graph.nodes[1]
    stages = (*node.attrs["epilogue"].stages, Add(-128, 127, q.zero, 1 << 14, 1 << 14, 14))
    graph.nodes[1] = Node("q8ta_conv2d", (*node.inputs, "x0"), "z", {**node.attrs, "epilogue": Epilogue(stages)})
    graph.outputs = ["z"]
    assert [node.op for node in folded(graph).nodes] == ["quantize", "q8ta_conv2d"]


def test_an_image_is_folded_where_that_pays() -> None:
    """By device and size, as measured: a large image is quantized once, by a dispatch of its own."""
    small, large = _graph((1, 3, 224, 224), (32, 3, 3, 3), stride=2), _graph((16, 3, 224, 224), (32, 3, 3, 3))
    lavapipe = replace(SOFTWARE, shuffles=True)
    for graph, target, count in (
        (small, BASELINE, 1),
        (large, BASELINE, 2),
        (large, SOFTWARE, 1),
        (small, lavapipe, 1),
        (large, lavapipe, 1),
        (_graph((1, 3, 224, 224), (64, 3, 7, 7), stride=2), lavapipe, 2),
        (_graph((1, 1, 224, 224), (64, 1, 7, 7), stride=2), lavapipe, 1),
        (_graph((1, 5, 6, 7), (4, 5, 3, 3)), BASELINE, 2),
    ):
        for policy in POLICIES:
            lowered = lower(graph, target)
            plan = sync_layouts(lowered, target, policy)
            assert len(plan.steps) - len(plan.transitions) == count
            assert len(build(lowered, target, plan).dispatches) == len(plan.steps)
    dispatch = harness.program_of(small).dispatches[0]
    assert dispatch.macs == 112 * 112 * 32 * 27
    assert [node.op for node in small.nodes] == ["quantize", "q8ta_conv2d"]


@pytest.mark.parametrize("layouts", POLICIES)
def test_a_session_folds_and_tunes(
    layouts: str, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = _graph((2, 3, 11, 9), (6, 3, 3, 3), stride=2)
    x = np.random.default_rng(0).normal(0, 3, (2, 3, 11, 9)).astype(np.float32)
    model = Model(graph, SINGLE)
    expected = Session(model, "reference")(x)
    with Session(model, device, layouts=layouts, tune=device.timestamps) as session:
        (dispatch,) = session.program.dispatches
        assert dispatch.kernel.startswith("q8ta_conv2d_image.")
        np.testing.assert_array_equal(session(x), expected)


def test_a_folded_model_is_reported_and_kept(tmp_path: Path) -> None:
    """A file may hold the folded form as well: it computes in int8, and its input is a border."""
    graph = with_quantize(0, op_graphs.SETTINGS[0], "requantize dequantize")[0]
    fused = Model(folded(graph), SINGLE)
    report = fused.report()
    assert report.int8 == {"q8ta_conv2d_image (requantize -> dequantize)": 1}
    assert (report.float32, report.islands, report.borders, report.exact) == ({}, (), 2, True)
    fused.save(tmp_path / "image.q8ta")
    x = np.random.default_rng(0).normal(0, 3, graph.types["image"].shape).astype(np.float32)
    loaded = q8.load(tmp_path / "image.q8ta")
    expected = Session(Model(graph, SINGLE), "reference")(x)
    np.testing.assert_array_equal(Session(loaded, "reference")(x), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x_lo": 9, "x_hi": 8}, "the range x_lo..x_hi is empty, found 9..8"),
        ({"groups": 3}, "do not fit the weight"),
        ({"x_zero": -129}, "attribute x_zero must be in"),
        ({"x_scale": 0.0}, "attribute x_scale must be in"),
        ({"x_zero": 17}, "must be the zero point 17 times the sums of the weights"),
    ],
)
def test_wrong_attributes(wrong: dict[str, object], message: str) -> None:
    graph = folded(_graph((1, 3, 6, 7), (6, 3, 3, 3)))
    graph.nodes[0] = replace(graph.nodes[0], attrs={**graph.nodes[0].attrs, **wrong})
    with pytest.raises(GraphError, match=re.escape(message)):
        verify(graph, RUNNABLE)


def test_too_many_channels() -> None:
    graph = folded(_graph((1, 4, 6, 7), (6, 4, 3, 3)))
    weight = graph.nodes[0].inputs[1]
    graph.types["image"] = TensorType((1, 5, 6, 7))
    graph.constants[weight] = np.zeros((6, 5, 3, 3), np.int8)
    graph.types[weight] = TensorType((6, 5, 3, 3), "int8")
    with pytest.raises(GraphError, match="at most 4 channels in one group, found 5 channels in 1 groups"):
        verify(graph, RUNNABLE)


def test_int8_is_refused_without_the_contract(vulkan: Device) -> None:
    """Also where no value is int8: an image goes in, floats come out."""
    graph = folded(with_quantize(0, op_graphs.SETTINGS[0], "scale")[0])
    assert all(t.dtype != INT8X4 for t in graph.types.values())
    other = insides.like(vulkan, contract="quantize of 1.0 gives 7, the contract 3")
    with pytest.raises(DeviceError, match="cannot run int8 models"):
        Session(Model(graph, SINGLE), other)
