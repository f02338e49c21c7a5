"""Operators that programs write as several are one, in whatever spelling: rounded once, and known to what looks for
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.ir.graph import INT16X4, Graph, Node, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.plan.spellings import combine
from q8ta_wgpu.passes.plan.spellings import combined as found_by
from q8ta_wgpu.passes.plan.trial import Computed, trials
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.runtime.device import Device
from testbed.harness import stages_of
from tests.quantizing import INT8, Plain, check, conv, data, ops

Spelling = Callable[["Weights", Tensor], Tensor]


class Weights(nn.Module):
    """A function of a tensor, a weight and a bias of 16 channels."""

    def __init__(self, function: Spelling) -> None:
        super().__init__()
        self.function = function
        numbers = torch.Generator().manual_seed(3)
        self.w = nn.Parameter(torch.randn(16, generator=numbers))
        self.b = nn.Parameter(torch.randn(16, generator=numbers) * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _squares(x: Tensor, dim: int = -1) -> Tensor:
    return x.pow(2).mean(dim, keepdim=True)


def _distance(x: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    return x - x.mean(dim, keepdim=True)


def _channels(x: Tensor) -> Tensor:
    return x.view(1, -1, 1, 1)


RMS: dict[str, Spelling] = {
    "llama": lambda s, x: s.w * (x.float() * torch.rsqrt(_squares(x.float()) + 1e-6)).to(x.dtype),
    "gemma": lambda s, x: (x * torch.rsqrt(_squares(x) + 1e-6)) * (1.0 + s.w.float()),
    "weight first": lambda s, x: s.w * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
    "div": lambda s, x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * s.w,
    "power": lambda s, x: x * (_squares(x) + 1e-6).pow(-0.5) * s.w,
    "sum": lambda s, x: x * torch.rsqrt((x * x).sum(-1) / 16 + 1e-6)[..., None] * s.w,
    "norm": lambda s, x: x / (x.norm(2, dim=-1, keepdim=True) * 16**-0.5 + 1e-8) * s.w,
    "no weight": lambda s, x: x * torch.rsqrt(_squares(x) + 0.01) * 0.125,
    "weight behind": lambda s, x: F.rms_norm(x, (16,), eps=1e-6) * s.w,
    "length 1": lambda s, x: F.normalize(x, dim=-1),
    "scaled": lambda s, x: F.normalize(x, dim=-1) * 4 * s.w,
}

LAYER: dict[str, Spelling] = {
    "by parts": lambda s, x: (d := _distance(x)) / torch.sqrt(_squares(d) + 1e-5) * s.w + s.b,
    "var": lambda s, x: s.w * _distance(x) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-12) + s.b,
    "std": lambda s, x: s.w * _distance(x) / (x.std(-1, keepdim=True) + 1e-6) + s.b,
    "no weight": lambda s, x: _distance(x) * (x.var(-1, keepdim=True) + 1e-5).rsqrt(),
    "squares": lambda s, x: _distance(x) / (_squares(x) - x.mean(-1, keepdim=True) ** 2 + 1e-5).sqrt() + s.b,
    "modulated": lambda s, x: F.layer_norm(x, (16,)) * (1 + s.w) + s.b,
}

IMAGES: dict[str, tuple[list[str], Spelling]] = {
    "convnext": (
        ["permute", "q8ta_layer_norm", "permute"],
        lambda s, x: (
            _channels(s.w) * ((x - x.mean(1, True)) / torch.sqrt(_squares(x - x.mean(1, True), 1) + 1e-6))
            + _channels(s.b)
        ),
    ),
    "instance": (
        ["q8ta_group_norm"],
        lambda s, x: (
            _distance(x, (2, 3)) / (x.var((2, 3), keepdim=True) + 1e-5).sqrt() * _channels(s.w) + _channels(s.b)
        ),
    ),
    "one group": (["q8ta_group_norm"], lambda s, x: _distance(x, (1, 2, 3)) / x.std((1, 2, 3), keepdim=True)),
    "length 1": (["permute", "q8ta_rms_norm", "permute"], lambda s, x: F.normalize(x)),
}

CHANNELS: dict[str, tuple[list[str], tuple[int, ...], Spelling]] = {
    "rows": (["q8ta_table", "q8ta_batch_norm"], (3, 16), lambda s, x: x.tanh() * s.w + s.b),
    "an input less its mean": (["q8ta_quantize_channels"], (3, 16), lambda s, x: x - s.b),
    "images": (
        ["q8ta_quantize_channels"],
        (2, 16, 4, 4),
        lambda s, x: (x - s.b.view(-1, 1, 1)) / (_channels(s.w).abs() + 0.5),
    ),
    "tokens": (["view", "q8ta_quantize_channels", "view"], (2, 5, 16), lambda s, x: (x + s.b) * s.w * 0.5),
}

FUNCTIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "silu": ("silu", lambda x: x * torch.sigmoid(x)),
    "silu, div": ("silu", lambda x: x / (1 + torch.exp(-x))),
    "quick gelu": ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    "gelu": ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu, 6 digits": ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x * 0.707107))),
    "gelu by tanh": ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))),
    "gelu by factors": ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(x * 0.79788456 * (1 + 0.044715 * x * x)))),
    "hardswish": ("hardswish", lambda x: x * F.relu6(x + 3) / 6),
    "hardsigmoid": ("hardsigmoid", lambda x: torch.clamp(x + 3, 0, 6) / 6),
    "mish": ("mish", lambda x: x * torch.tanh(torch.log(1 + torch.exp(x)))),
    "softplus": ("softplus", lambda x: torch.log1p(torch.exp(x))),
    "softsign": ("softsign", F.softsign),
    "sigmoid": ("sigmoid", lambda x: 1 / (1 + torch.exp(-x))),
    "softmax": ("softmax", lambda x: (e := torch.exp(x - x.amax(-1, keepdim=True))) / e.sum(-1, keepdim=True)),
}


def quantized(function: Spelling, x: Tensor) -> q8.Model:
    """Its int8 model, exact and near the function."""
    module = Weights(function).eval()
    model = q8.compile(q8.quantize(module, (x,), [x, 0.7 * x], quantizer=INT8, progress=False))
    assert model.report().exact
    with torch.no_grad():
        wanted = module(x).numpy()
    error = q8.Session(model, "reference")(x.numpy()) - wanted
    assert 10 * np.log10((wanted**2).mean() / (error**2).mean()) > 38
    return model


@pytest.mark.parametrize("name", RMS)
def test_root_mean_square_norms(name: str) -> None:
    assert ops(quantized(RMS[name], data(2, 5, 16))) == ["q8ta_rms_norm"]


@pytest.mark.parametrize("name", LAYER)
def test_layer_norms(name: str) -> None:
    assert ops(quantized(LAYER[name], data(2, 5, 16) + 0.5)) == ["q8ta_layer_norm"]


@pytest.mark.parametrize("name", IMAGES)
def test_norms_of_images(name: str) -> None:
    wanted, function = IMAGES[name]
    assert ops(quantized(function, data(2, 16, 4, 4))) == wanted


@pytest.mark.parametrize("name", CHANNELS)
def test_a_factor_and_a_term_for_each_channel(name: str) -> None:
    """They are rounded once, and their parameters are not."""
    wanted, shape, function = CHANNELS[name]
    assert ops(quantized(function, data(*shape))) == wanted


def test_what_only_adds_to_a_value_or_masks_it_is_no_batch_norm() -> None:
    w, low = W[:5], torch.tensor([0, -1e9, 0, 0, -1e9])
    for function in (lambda x: x.flip(0) * 2 + w, lambda x: (x * 2 + low).softmax(1)):
        assert "batch_norm" not in combined(function)
    assert "batch_norm" not in combined(lambda x: x * (2 + EVERY) + w, 2, 4, 5)


def imported(function: Any, *shape: int) -> Any:
    module = Weights(lambda _, x: function(x)).eval()
    return import_float(Traceable(module, (data(*shape),)).graph()).graph


def combined(function: Any, *shape: int) -> list[str]:
    graph = imported(function, *(shape or (2, 5)))
    found_by(graph, channels=True)
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    op, function = FUNCTIONS[name]
    assert combined(function) == [op]


def test_one_of_several_is_rounded_once(device: Device) -> None:
    """Behind a convolution it joins the sum, alone it is a table."""
    module = Plain(lambda s, x: s.b(F.softsign(s.a(x * torch.sigmoid(x)))), a=conv(3, 4), b=conv(4, 3))
    model = check(module, [data(1, 3, 5, 5)], device)
    found = [f"{node.op} {stages_of(node)}".strip() for node in model.graph.nodes if node.op != "quantize"]
    assert found == ["q8ta_table", "q8ta_conv2d curve requantize", "q8ta_conv2d scale"]


def test_what_is_another_function_or_is_read_by_others_stays() -> None:
    for function in (
        lambda x: (x / (y := 1 + x.abs())) + y,
        lambda x: (x + 1) / (1 + x.abs()),
        lambda x: x / (2 + x.abs()),
        lambda x: x * torch.sigmoid(1.5 * x),
        lambda x: x * torch.sigmoid(x.flip(0)),
        lambda x: x / ((x * x).mean(-1, keepdim=True) + 1e-5),
        lambda x: x / (x.abs().mean(-1, keepdim=True) + 1e-5),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 0.1),
        lambda x: x / x.pow(2).mean(0, keepdim=True).sqrt(),
        lambda x: (r := x.pow(2).mean(-1, keepdim=True).sqrt()) + x / r,
        lambda x: F.softmax(x, -1) + F.softmax(x, 0),
    ):
        assert not {"softsign", "silu", "rms_norm", "layer_norm"} & set(combined(function))
    clamped = combined(lambda x: (x * torch.sigmoid(x)).clamp(-50, 50))
    assert clamped == ["silu", "clamp"]
    square = combined(lambda x: x / (x * x).mean(1).sqrt(), 4, 4)  # by columns, of which each is another row's
    assert "rms_norm" not in square


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_parameters_of_every_size(offset: float) -> None:
    """Those of the norm give what is written, on rows small and large; some channels have none."""
    graph = imported(lambda x: _distance(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * W + B, 2, 5, 64)
    one = graph.copy()
    combine(one)
    assert [node.op for node in one.nodes] == ["layer_norm"]
    for scale in (1e-4, 1e-2, 1.0, 1e3):
        x = {graph.inputs[0]: (data(2, 5, 64).numpy() + offset) * np.float32(scale)}
        (wanted,), (found,) = reference.run(graph, x).values(), reference.run(one, x).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * offset * np.abs(W.numpy()).max() + 1e-6)


W = data(64) * data(64, seed=2).mul(2).exp() * (data(64, seed=3) > -1)
EVERY = data(4, 5)
B = data(64, seed=4) * data(64, seed=5).mul(2).exp()


class Blocks(nn.Module):
    """Two blocks of a transformer without attention, with a norm of one's own."""

    def __init__(self, norm: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = norm
        self.weights = nn.ParameterList(torch.rand(12) + 0.5 for _ in range(3))
        self.embed, self.up, self.down = nn.Linear(5, 12), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for weight in self.weights[:2]:
            x = x + self.down(self.up(self.norm(x, weight)).relu())
        return self.norm(x, self.weights[2])


def test_a_stream_is_one_whatever_its_norms_are_written_as() -> None:
    """The same nodes, and as many values of 16 bits."""
    x, shapes = data(3, 7, 5), []
    for norm in (
        lambda x, w: F.rms_norm(x, (12,), w, 1e-6),
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        lambda x, w: w * (x.float() / (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()).to(x.dtype),
    ):
        model = q8.compile(q8.quantize(Blocks(norm).eval(), (x,), [x], quantizer=INT8, progress=False))
        graph = model.graph
        assert model.report().exact
        shapes.append([(node.op, graph.types[node.output].dtype, stages_of(node)) for node in graph.nodes])
    assert shapes[0] == shapes[1] == shapes[2]
    assert sum(dtype == INT16X4 for _, dtype, _ in shapes[0]) == 2


def test_nodes_are_computed_once_for_all_trials_they_are_part_of() -> None:
    """A chain took the square of the limit of nodes that are tried: 15 ms a node."""
    graph = Graph(["x"], ["d"], [Node("relu", (a,), b) for a, b in pairwise("xabcd")])
    graph.types = dict.fromkeys("xabcd", TensorType((2, 3)))
    computed, rewriter = Computed(), Rewriter(graph)
    positions = {node.output: place for place, node in enumerate(graph.nodes)}
    x = np.array([-1, 2], np.float32)
    long = next(t for t in trials(rewriter, positions, graph.nodes[3], computed) if t.source == "x")
    long(x)
    short = next(t for t in trials(rewriter, positions, graph.nodes[2], computed) if t.source == "x")
    assert short(x) is long.computed.of("x", x)["c"]
    assert short(x).tolist() == [0, 2]
    assert short(-x).tolist() == [1, 0]


def test_an_operator_that_is_skipped_stays_as_it_is_written() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softsign(), nn.Conv2d(4, 3, 1)).eval()
    x = data(1, 3, 5, 5)
    program = q8.quantize(module, (x,), [x], quantizer=q8.Quantizer(skip=["1"], precision="int8"), progress=False)
    assert {"abs", "div"} <= {node.op for node in q8.compile(program).graph.nodes}
