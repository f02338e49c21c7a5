"""Batch norms behind a cat go before it, where a sum takes them in and they keep the scale of their input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from testbed.harness import stages_of
from tests.frontend.test_annotation import slopes
from tests.frontend.test_norms import norm
from tests.quantizing import Plain, conv, data


def skip_connection() -> nn.Module:
    """What a decoder does: a convolution beside what is read elsewhere too, then norm and slopes by channel."""

    def forward(s: Any, x: Tensor) -> object:
        fine = torch.relu(s.a(x))
        y = s.act(s.norm(torch.cat([s.up(s.b(fine)), fine], 1)))
        return s.head(y)

    parts = {"b": nn.Conv2d(6, 4, 2, 2), "up": nn.ConvTranspose2d(4, 5, 2, 2), "head": conv(11, 3)}
    return Plain(forward, a=conv(3, 6), norm=norm(11), act=slopes(11), **parts)


def stages(module: nn.Module, x: Tensor, skip: Sequence[str] = ()) -> tuple[q8.Model, list[str]]:
    """The int8 model, whose results are those of float within int8's precision, and each node with its stages."""
    program = q8.quantize(module.eval(), (x,), [x], Quantizer(skip=skip, precision="int8"), progress=False)
    exact, model = module(x).detach(), q8.compile(program)
    found = torch.from_numpy(q8.Session(model, "reference")(x.numpy()))
    assert float(((found - exact) ** 2).mean()) < 2e-3 * float((exact**2).mean())
    assert len(q8.compare(module, program, (x,)).layers) > 3
    return model, [f"{node.op} {stages_of(node)}".strip() for node in model.graph.nodes if node.op != "quantize"]


def test_a_skip_connection() -> None:
    torch.manual_seed(0)
    module, x = skip_connection(), data(2, 3, 6, 6)
    model, found = stages(module, x)
    assert "q8ta_conv_transpose2d slopes requantize" in found
    assert "q8ta_batch_norm slopes requantize" in found
    assert found[-2:] == ["cat", "q8ta_conv2d scale"]
    cat = next(node for node in model.graph.nodes if node.op == "cat")
    joined = {model.graph.types[name].q for name in cat.inputs}
    fine = next(node for node in model.graph.nodes if node.op == "q8ta_batch_norm").inputs[0]
    assert len(joined) == 1
    assert model.graph.types[fine].q not in joined


def test_a_skipped_norm_stays_where_it_is() -> None:
    torch.manual_seed(0)
    model, found = stages(skip_connection(), data(2, 3, 6, 6), skip=["norm"])
    assert "batch_norm" in model.report().float32
    assert "q8ta_conv_transpose2d slopes requantize" not in found


def dense(s: Any, x: Tensor) -> object:
    """As in DenseNet: every input is read again, so that no sum takes its norm in."""
    first = s.a(x)
    second = s.b(F.relu(s.one(torch.cat([x, first], 1))))
    return s.head(F.relu(s.two(torch.cat([x, first, second], 1))))


def rows(s: Any, x: Tensor) -> object:
    """Joined below each other, not by channel."""
    return s.head(F.relu(s.one(torch.cat([s.a(x), s.b(x)], 2))))


@pytest.mark.parametrize(
    ("forward", "parts", "count"),
    [
        (dense, {"a": conv(4, 4), "b": conv(8, 4), "one": norm(8), "two": norm(12), "head": conv(12, 3)}, 2),
        (rows, {"a": conv(4, 4), "b": conv(4, 4), "one": norm(4), "head": conv(4, 3)}, 1),
    ],
)
def test_norms_that_no_sum_takes_in_stay(
    forward: Callable[..., object], parts: dict[str, nn.Module], count: int
) -> None:
    torch.manual_seed(0)
    _, found = stages(Plain(forward, **parts), data(1, 4, 4, 4))
    assert sum(node.startswith("q8ta_batch_norm") for node in found) == count
