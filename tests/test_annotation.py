"""Where the quantizer rounds: once for each int8 tensor that is stored, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import q8ta_wgpu as q8
from tests.harness import stages_of
from tests.test_upstream_defects import Plain, conv, data


def stored(module: nn.Module, *shape: int) -> list[str]:
    """Each node of the int8 model with its stages."""
    x = data(*shape)
    model = q8.compile(q8.quantize(module.eval(), (x,), [x, x / 2], progress=False))
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


def test_what_joins_only_one_reader() -> None:
    """A sum that something else reads is stored, and then its activation is a table."""
    module = Plain(lambda s, x: s.b(F.silu(y := s.a(x)) + y), a=conv(3, 3), b=conv(3, 3))
    assert stored(module, 1, 3, 5, 5)[0] == "q8ta_conv2d requantize"


def test_a_head_is_not_rounded() -> None:
    """Nor is what goes into a float operator alone."""
    module = Plain(lambda s, x: (s.a(x), F.relu(s.b(x))), a=conv(3, 4), b=conv(3, 4))
    assert stored(module, 1, 3, 5, 5) == ["q8ta_conv2d scale", "q8ta_conv2d requantize dequantize"]
