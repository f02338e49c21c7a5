"""Importing pools, reductions, norms, softmax and products: a torch module, compiled, computes what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, UnsupportedError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs
from tests.importing import flat, imported
from tests.quantizing import INT8, Plain, check, data, ops

IMAGE = (2, 6, 9, 7)
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def trained(norm: nn.Module) -> nn.Module:
    """Gives a norm weights, and a batch norm statistics, that are not 0 and 1."""
    for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
        if tensor.is_floating_point():
            tensor.data = normal(*tensor.shape).abs() + 0.5 if name == "running_var" else normal(*tensor.shape)
    return norm


WEIGHT, BIAS, COLUMN, SQUARE = normal(7, 5), normal(5), normal(7), normal(7, 7)
MASK = normal(9, 9) > -1.0
MASK[:, 0] = True

FLOAT: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), IMAGE),
    "max_pool2d_default_stride": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "max_pool2d_ceil_dilated": (nn.MaxPool2d((2, 3), (3, 2), (0, 1), (2, 1), ceil_mode=True), IMAGE),
    "max_pool2d_no_tap": (nn.MaxPool2d(2, 1, 1, 4), (1, 5, 3, 3)),
    "max_pool2d_first_result": (lambda x: F.max_pool2d(x, 3, return_indices=True)[0], IMAGE),
    "max_pool2d_unbatched": (nn.MaxPool2d(2), IMAGE[1:]),
    "max_pool1d": (nn.MaxPool1d(3, 2, 1), (2, 5, 11)),
    "max_pool1d_unbatched": (nn.MaxPool1d(4, dilation=2), (5, 11)),
    "avg_pool2d": (nn.AvgPool2d(3, 2, 1), IMAGE),
    "avg_pool2d_excluding": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "avg_pool2d_ceil": (nn.AvgPool2d((4, 3), 3, (2, 1), ceil_mode=True), (2, 3, 9, 8)),
    "avg_pool2d_ceil_excluding": (nn.AvgPool2d(4, 3, 2, ceil_mode=True, count_include_pad=False), IMAGE),
    "avg_pool2d_override": (nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "avg_pool1d": (nn.AvgPool1d(3, 2, 1), (2, 5, 11)),
    "adaptive": (nn.AdaptiveAvgPool2d((4, 3)), IMAGE),
    "adaptive_global": (nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive_growing": (nn.AdaptiveAvgPool2d((13, None)), IMAGE),
    "adaptive_1d": (nn.AdaptiveAvgPool1d(4), (2, 5, 11)),
    "mean": (lambda x: x.mean(), IMAGE),
    "mean_hw": (lambda x: x.mean((2, 3)), IMAGE),
    "mean_keep": (lambda x: x.mean((-3, 0), keepdim=True), IMAGE),
    "mean_of_five": (lambda x: x.mean((1, 3)), (2, 3, 4, 5, 6)),
    "mean_of_five_keep": (lambda x: x.mean(1, keepdim=True), (2, 3, 4, 5, 6)),
    "amax_of_six": (lambda x: x.amax((0, 2, 4)), (2, 3, 2, 3, 5, 4)),
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), IMAGE),
    "amax": (lambda x: (x.amax(), x.amax(1), x.amax((2, 3), keepdim=True)), IMAGE),
    "amin": (lambda x: x.amin((0, 3)), IMAGE),
    "softmax": (lambda x: (F.softmax(x, 1), F.softmax(20 * x, -1)), IMAGE),
    "log_softmax": (lambda x: F.log_softmax(x, 1), IMAGE),
    "layer_norm": (trained(nn.LayerNorm((9, 7))), IMAGE),
    "layer_norm_plain": (nn.LayerNorm(7, elementwise_affine=False), IMAGE),
    "group_norm": (trained(nn.GroupNorm(3, 6)), IMAGE),
    "instance_norm": (trained(nn.InstanceNorm2d(6, affine=True)), IMAGE),
    "instance_norm_plain": (nn.InstanceNorm1d(5), (2, 5, 11)),
    "batch_norm": (trained(nn.BatchNorm2d(6)), IMAGE),
    "batch_norm_plain": (nn.BatchNorm2d(6, affine=False), IMAGE),
    "batch_norm_of_rows": (trained(nn.BatchNorm1d(7)), (5, 7)),
    "matmul": (lambda x: x @ x.transpose(-1, -2), IMAGE),
    "matmul_broadcast": (lambda x: x @ x[:1, :1].transpose(-1, -2), IMAGE),
    "matmul_five": (lambda x: x @ x[:, :1].transpose(-1, -2), (2, 3, 4, 5, 6)),
    "matmul_five_expanded": (lambda x: x @ x[0].transpose(-1, -2), (2, 3, 4, 5, 6)),
    "matmul_vectors": (lambda x: (x @ x[0], x[0] @ x.T, x[0] @ x[1]), (5, 7)),
    "matmul_constant": (lambda x: (x @ WEIGHT, x @ COLUMN), IMAGE),
    "matmul_constant_first": (lambda x: WEIGHT.T @ x.transpose(-1, -2), IMAGE),
    "mm": (lambda x: (torch.mm(x, WEIGHT), torch.mm(x, x.t())), (5, 7)),
    "addmm": (lambda x: (torch.addmm(BIAS, x, WEIGHT), torch.addmm(x, x, SQUARE)), (5, 7)),
    "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), (3, 4, 5)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, 2 * x, x - 1), IMAGE),
    "attention_causal": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.7), IMAGE),
    "attention_bool_mask": (lambda x: F.scaled_dot_product_attention(x, x, x, MASK), IMAGE),
    "attention_float_mask": (lambda x: F.scaled_dot_product_attention(x, x, x, x @ x.transpose(-1, -2)), IMAGE),
}


@pytest.mark.parametrize("name", FLOAT)
def test_float_operators_compute_what_torch_computes(name: str, vulkan: Device) -> None:
    function, shape = FLOAT[name]
    x = data(*shape)
    model = imported(function, x)
    with torch.no_grad():
        expected = flat(function(x))
    with q8.Session(model, vulkan) as session:
        on_device = flat(session(x))
    for found in (flat(q8.Session(model, "reference")(x)), on_device):
        for f, e in zip(found, expected, strict=True):
            assert f.shape == e.shape
            np.testing.assert_allclose(f, e, rtol=2e-5, atol=2e-5)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "indices": (lambda x: F.max_pool2d(x, 3, dilation=2, return_indices=True)[1].float(), "result 1"),
    "beta": (lambda x: torch.addmm(BIAS, x[0, 0], WEIGHT, beta=2), "beta"),
    "dropout": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "dropout_p"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(UnsupportedError, match=reason):
        imported(function, data(1, 6, 9, 7))


def test_products_with_constants_are_linear() -> None:
    for function in (lambda x: torch.addmm(BIAS, x, WEIGHT), lambda x: x @ WEIGHT):
        assert ops(imported(function, data(5, 7))) == ["linear"]


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), "max_pool2d"),
    "max_pool1d": (lambda x: F.max_pool1d(x.flatten(2), 3, 2, 1), "max_pool2d"),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), "q8ta_avg_pool2d"),
    "avg_pool2d_edges": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "q8ta_avg_pool2d",
    ),
    "avg_pool1d": (lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1), "q8ta_avg_pool2d"),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), "q8ta_adaptive_avg_pool2d"),
    "global": (lambda x: F.adaptive_avg_pool2d(x, 1), "q8ta_adaptive_avg_pool2d"),
    "mean": (lambda x: x.mean((2, 3)), "q8ta_mean"),
    "mean_channels": (lambda x: F.relu(x.mean(1, keepdim=True)), "q8ta_mean"),
    "sum": (lambda x: x.sum((0, 2)), "q8ta_sum"),
    "amax": (lambda x: x.amax((2, 3)), "amax"),
}


@pytest.mark.parametrize("name", FORMS)
def test_int8_forms_agree_with_torch(name: str, vulkan: Device) -> None:
    function, expected = FORMS[name]
    conv = nn.Conv2d(6, 5, 3, padding=1)
    model = check(Plain(lambda s, x: function(s.conv(x)), conv=conv), [data(*IMAGE)], vulkan)
    assert expected in ops(model)
    assert not model.report().float32


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((2, 3)), Plain(lambda s, x: x.mean(2))])
def test_multipliers_follow_the_input_size(pool: nn.Module, vulkan: Device) -> None:
    """After reshape the average divides by the new size, on the reference and the device alike."""
    module = Plain(lambda s, x: s.pool(s.conv(x)), conv=nn.Conv2d(6, 5, 3, padding=1), pool=pool)
    model = check(module, [data(*IMAGE)], vulkan).reshape((1, 6, 17, 13))
    x = data(1, 6, 17, 13)
    expected = flat(q8.Session(model, "reference")(x))[0]
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(flat(session(x))[0], expected)
    with torch.no_grad():
        np.testing.assert_allclose(expected, module(x).numpy(), atol=0.05)


def test_a_window_whose_taps_all_lie_in_the_padding_is_the_lowest_int8(vulkan: Device) -> None:
    attrs = {"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (4, 4), "ceil_mode": False}
    graph, inputs = op_graphs.int8_graph(OPS["max_pool2d"], Case(((1, 5, 3, 3),), attrs), op_graphs.SETTINGS[0])
    for _, plan in harness.plans(graph, 0):
        (found,) = harness.run_poisoned(graph, inputs, plan, vulkan)
        assert (found == -128).all()


@pytest.mark.parametrize("bias", [False, True])
def test_products_with_parameters_are_quantized(bias: bool, vulkan: Device) -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(normal(6, 13)), nn.Parameter(normal(13, 5))
            self.bias = nn.Parameter(normal(13))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.addmm(self.bias, x, self.first) if bias else torch.mm(x, self.first)
            return F.relu(y) @ self.second

    model = check(Products(), [data(9, 6)], vulkan)
    assert ops(model) == ["q8ta_linear", "q8ta_linear"]


def test_core_aten_addmm_of_a_permuted_weight_is_linear(vulkan: Device) -> None:
    module = nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Linear(13, 5)).eval()
    program = q8.quantize(module, (data(9, 6),), [data(9, 6)], quantizer=INT8, progress=False)
    model = q8.compile(program.run_decompositions())
    assert ops(model) == ["q8ta_linear", "q8ta_linear"]
    np.testing.assert_array_equal(
        flat(q8.Session(model, "reference")(data(9, 6)))[0],
        flat(q8.Session(q8.compile(program), "reference")(data(9, 6)))[0],
    )


def test_a_sum_that_could_pass_int32_stays_in_float() -> None:
    graph = Graph(inputs=["x"], outputs=["y"])
    shape = (1, 1, 2, (1 << 22) - 1)
    q = QParams(0.1, 3)
    graph.types |= {"x": TensorType(shape, INT8X4, q), "real": TensorType(shape), "sum": TensorType(())}
    graph.types["y"] = TensorType((), INT8X4, q)
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("mean", ("real",), "sum", {"dims": (0, 1, 2, 3), "keepdim": False}),
        Node("quantize", ("sum",), "y", {"lo": -128, "hi": 127}),
    ]
    assert run_passes(graph).notes == []
    graph.types["x"] = TensorType((2, *shape[1:]), INT8X4, q)
    graph.types["real"] = TensorType((2, *shape[1:]))
    assert "could pass int32" in run_passes(graph).notes[0]


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("max_pool2d", (1, 3, 4, 4), {"kernel": (5, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}),
        ("max_pool2d", (1, 3, 4, 4), {"kernel": (2, 2), "padding": (2, 0, 0, 0), "dilation": (1, 1)}),
        ("max_pool2d", (4, 4), {"kernel": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1)}),
        ("mean", (2, 3), {"dims": (2,), "keepdim": False}),
        ("mean", (2, 3), {"dims": (1, 1), "keepdim": False}),
        ("mean", (2, 3, 4, 5, 6), {"dims": (1,), "keepdim": False}),
        ("softmax", (2, 3), {"dim": 2}),
    ],
)
def test_wrong_calls_are_graph_errors(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    if op == "max_pool2d":
        attrs = {"stride": (1, 1), "ceil_mode": False, **attrs}
    with pytest.raises(GraphError):
        OPS[op].check((TensorType(shape, FLOAT32),), attrs)


def test_a_batch_norm_between_int8_values_becomes_int8() -> None:
    """Its negative and zero factors included."""
    generator = np.random.default_rng(5)
    x, y = QParams(0.03, -5), QParams(0.02, 9)
    graph = Graph(inputs=["x"], outputs=["y"])
    graph.types |= {name: TensorType(IMAGE) for name in ("real", "normal")}
    graph.types |= {"x": TensorType(IMAGE, INT8X4, x), "y": TensorType(IMAGE, INT8X4, y)}
    gamma: Array = np.array([-1.5, 0.0, 0.7, 2.0, -0.01, 1.0], np.float32)
    rest: list[Array] = [generator.normal(0, 0.5, 6), generator.normal(0, 0.5, 6), generator.uniform(0.3, 2, 6)]
    names = [graph.add_constant("c", a.astype(np.float32)) for a in (gamma, *rest)]
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("batch_norm", ("real", *names), "normal", {"eps": 1e-5}),
        Node("quantize", ("normal",), "y", {"lo": -128, "hi": 127}),
    ]
    fused = run_passes(graph)
    assert [node.op for node in fused.nodes] == ["q8ta_batch_norm"]
    values = {"x": generator.integers(-128, 128, IMAGE).astype(np.int8)}
    found, exact = (np.asarray(reference.run(g, values)["y"], int) for g in (fused, graph))
    assert np.abs(found - exact).max() <= 1
    assert (found == exact).mean() > 0.999


class MeanAdded(nn.Module):
    """A sum of all rows, and a number of no dimensions that is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 8)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        result: Tensor = self.linear(x) + other.mean()
        return result


def test_a_mean_of_everything_is_added(vulkan: Device) -> None:
    torch.manual_seed(0)
    inputs = data(3, 12), data(3, 12, seed=1)
    model = q8.compile(q8.quantize(MeanAdded().eval(), inputs, [inputs], quantizer=INT8, progress=False))
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(*inputs), q8.Session(model, "reference")(*inputs))
