"""Where the quantizer rounds: once for each int8 tensor that is stored, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import q8ta_wgpu as q8
from testbed.harness import stages_of
from tests.frontend.test_norms import norm
from tests.quantizing import INT8, Plain, conv, data


def stored(module: nn.Module, *shape: int) -> list[str]:
    """Each node of the int8 model with its stages."""
    x = data(*shape)
    model = q8.compile(q8.quantize(module.eval(), (x,), [x, x / 2], quantizer=INT8, progress=False))
    assert model.report().islands == ()
    return [f"{node.op} {stages_of(node)}".strip() for node in model.graph.nodes if node.op != "quantize"]


@pytest.mark.parametrize("activation", [torch.tanh, torch.sigmoid, F.silu, F.hardswish, F.gelu, F.mish, F.elu])
def test_an_activation_joins_its_convolution(activation: object) -> None:
    module = Plain(lambda s, x: s.b(activation(s.a(x))), a=conv(3, 4), b=conv(4, 3))  # type: ignore[operator]
    assert stored(module, 1, 3, 5, 5) == ["q8ta_conv2d curve requantize", "q8ta_conv2d scale"]


def test_an_addend_joins_the_last_convolution() -> None:
    module = Plain(lambda s, x: s.b(F.relu(s.a(x) + s.b(x))), a=conv(3, 3), b=conv(3, 3))
    assert stored(module, 1, 3, 5, 5) == [
        "q8ta_conv2d requantize",
        "q8ta_conv2d residual requantize",
        "q8ta_conv2d scale",
    ]
    later = Plain(lambda s, x: s.b(s.a(x) + torch.cat([x, x], 1)), a=conv(3, 6), b=conv(6, 3))
    assert "q8ta_conv2d residual requantize" in stored(later, 1, 3, 5, 5)


def test_a_gate_is_multiplied_in_the_dispatch_of_the_last_sum() -> None:
    """What is stored between is formed all the same; a gate for each channel alone is another dispatch."""
    gated = Plain(lambda s, x: s.c(F.silu(s.a(x)) * s.b(x)), a=nn.Linear(6, 8), b=nn.Linear(6, 8), c=nn.Linear(8, 3))
    wanted = ["q8ta_linear curve requantize", "q8ta_linear requantize mul", "q8ta_linear scale"]
    assert stored(gated, 2, 5, 6) == wanted
    excited = Plain(lambda s, x: s.b(s.a(x).sigmoid().mean((2, 3), True) * x), a=conv(4, 4), b=conv(4, 3))
    assert "q8ta_mul" in stored(excited, 1, 4, 5, 5)


def test_nothing_is_added_to_a_deep_convolution_before_it_is_rounded() -> None:
    """Its images are moved first."""
    module = Plain(lambda s, x: F.relu(s.a(x) + x), a=nn.Conv3d(3, 3, 3, padding=1))
    found = [text for text in stored(module, 1, 3, 4, 5, 5) if text.startswith("q8ta")]
    assert found == ["q8ta_conv2d requantize", "q8ta_add"]


def test_what_joins_only_one_reader() -> None:
    """A sum that something else reads is stored, and then its activation is a table."""
    module = Plain(lambda s, x: s.b(F.silu(y := s.a(x))) + y, a=conv(3, 3), b=conv(3, 3))
    assert stored(module, 1, 3, 5, 5)[0] == "q8ta_conv2d requantize"


def test_a_head_is_not_rounded() -> None:
    """Nor is what goes into a float operator alone."""
    module = Plain(lambda s, x: (s.a(x), F.relu(s.b(x))), a=conv(3, 4), b=conv(3, 4))
    assert stored(module, 1, 3, 5, 5) == ["q8ta_conv2d scale", "q8ta_conv2d requantize dequantize"]


def slopes(channels: int) -> nn.PReLU:
    """A slope for each channel, positive and negative."""
    module = nn.PReLU(channels)
    module.weight = nn.Parameter(torch.linspace(-0.3, 0.6, channels))
    return module


def test_chains_of_elementwise_operators_are_rounded_once() -> None:
    """Behind a sum or by themselves, between what is stored."""

    def forward(s: Any, x: torch.Tensor) -> object:
        y = s.first(s.a(x) + x)  # an addend, then slopes
        y = F.hardswish(y + y * torch.sigmoid(s.b(y.mean((2, 3), keepdim=True))))
        y = s.second(s.norm(torch.cat([x, x], 1) + torch.cat([y, y], 1)))
        y = s.third(s.other(F.max_pool2d(y, 2)))
        return s.c(y * (F.relu6(y + 2) / 6))

    module = Plain(
        forward, a=conv(4, 4), b=conv(4, 4), c=conv(8, 3), norm=norm(8), other=norm(8, seed=2),
        first=slopes(4), second=slopes(8), third=slopes(8),
    )  # fmt: skip
    found = [node for node in stored(module, 2, 4, 6, 6) if node not in ("cat", "max_pool2d", "q8ta_mean")]
    assert found == [
        "q8ta_conv2d residual slopes requantize",
        "q8ta_conv2d curve requantize",
        "q8ta_mul_chain residual curve requantize",
        "q8ta_add_chain slopes requantize",
        "q8ta_batch_norm slopes requantize table",
        "q8ta_conv2d scale",
    ]


def test_views_between_a_sum_and_what_joins_it() -> None:
    """Of a Conv1d, which is a Conv2d of images one row high; linear's slopes are of its outputs, not of tokens."""
    forms = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 1), slopes(4)
    rows = Plain(lambda s, x: s.b(s.p(s.a(x) + x)), a=forms[0], b=forms[1], p=forms[2])
    assert "q8ta_conv2d residual slopes requantize" in stored(rows, 2, 4, 9)
    tokens = Plain(lambda s, x: s.b(s.p(s.a(x))), a=nn.Linear(8, 4), b=nn.Linear(4, 3), p=slopes(4))
    assert stored(tokens, 5, 4, 8)[:2] == ["q8ta_linear requantize", "q8ta_batch_norm slopes requantize"]
    assert stored(tokens, 5, 8)[0] == "q8ta_linear slopes requantize"


def test_positions_repeated_for_a_batch_are_no_float_island() -> None:
    """A weighted sum takes in what has its own shape; what is repeated is added in int16, where a stream begins."""
    positions = nn.Parameter(torch.linspace(-1, 1, 40).reshape(1, 5, 8))
    module = Plain(lambda s, x: s.norm(s.a(x) + positions), a=nn.Linear(8, 8), norm=nn.LayerNorm(8))
    found = stored(module, 3, 5, 8)
    assert found == ["q8ta_linear requantize_int16", "q16ta_add", "q8ta_layer_norm", "dequantize"]
