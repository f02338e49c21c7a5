"""Masks on what a linear or convolution gives, read by softmax, maxima, argmax and topk: no mask is rounded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from testbed.noise import decibels
from tests.quantizing import INT8, Plain, data

LOW = -1e9


def beside(s: Any, scores: Tensor) -> Tensor:
    """Scores with one more that is learned, and masked by nothing, as attention with sinks has it."""
    return torch.cat([scores, s.bias.expand(4, 1, 8)], 1)


def and_one(mask: Tensor) -> Tensor:
    """A mask with one more place, which is never hidden."""
    return torch.cat([mask, torch.ones(4, 1, 1, dtype=torch.bool)], 1)


SOFTMAX: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda s, x, m: s.lin(x).masked_fill(~m, LOW).softmax(1),
    "masked_fill with -inf": lambda s, x, m: s.lin(x).masked_fill(~m, float("-inf")).softmax(1),
    "where": lambda s, x, m: torch.where(m, s.lin(x), LOW).softmax(1),
    "arithmetic": lambda s, x, m: (s.lin(x) + (1 - m.float()) * -1e4).softmax(1),
    "pooling": lambda s, x, m: s.lin(x).masked_fill(~m, LOW).softmax(1).transpose(1, 2) @ x,
    "conv1d": lambda s, x, m: s.conv(x.transpose(1, 2)).masked_fill(~m.transpose(1, 2), LOW).softmax(-1),
    "scaled later": lambda s, x, m: (s.lin(x).masked_fill(~m, LOW) / 3.0).softmax(1),
    "biased later": lambda s, x, m: (s.lin(x).masked_fill(~m, LOW) + s.bias).softmax(1),
    "of a factor": lambda s, x, m: torch.add(s.lin(x), (~m).float(), alpha=LOW).softmax(1),
    "a number for each output": lambda s, x, m: (s.lin(x) + s.hidden).softmax(-1),
    "one of numbers": lambda s, x, m: (s.lin(x) + (1 - (s.hidden == 0).float()) * -1e4).softmax(-1),
    "an input": lambda s, x, m: x.masked_fill(~m, LOW).softmax(1),
    "behind a sink": lambda s, x, m: torch.where(and_one(m), beside(s, s.lin(x)), LOW).softmax(1),
    "behind a sink, in numbers": lambda s, x, m: (beside(s, s.lin(x)) + (1 - and_one(m).float()) * LOW).softmax(1),
}
"""What softmax reads, as people write it: it is int8, and its scores are rounded without their mask."""

OTHERS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "topk": lambda s, x, m: s.lin(x).masked_fill(~m, LOW).topk(3, 1)[0],
    "max": lambda s, x, m: s.lin(x).masked_fill(~m, LOW).max(1)[0],
    "amax, then a linear": lambda s, x, m: s.out(s.lin(x).masked_fill(~m, float("-inf")).amax(1)),
    "exp": lambda s, x, m: s.lin(x).masked_fill(~m, LOW).exp(),
    "negated": lambda s, x, m: (h := s.lin(x).masked_fill(~m, LOW)).softmax(1) + (-h).softmax(1),
    "an output": lambda s, x, m: s.lin(x).masked_fill(~m, -1e4),
    "beside a sink": lambda s, x, m: beside(s, s.lin(x).masked_fill(~m, LOW)).softmax(1)[:, :-1],
    "beside a sink, with -inf": lambda s, x, m: beside(s, s.lin(x).masked_fill(~m, float("-inf"))).softmax(1)[:, :-1],
}
"""What reads masked logits in float."""


@functools.cache
def made(form: Callable[[Any, Tensor, Tensor], Tensor]) -> tuple[nn.Module, q8.Model, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    modules = {"lin": nn.Linear(16, 8), "out": nn.Linear(8, 8), "conv": nn.Conv1d(16, 8, 3, padding=1)}
    module = Plain(form, **modules).eval()
    module.register_buffer("bias", torch.linspace(-1, 1, 8))
    module.register_buffer("hidden", torch.tensor([0.0, LOW]).repeat(4))
    mask = torch.ones(4, 24, 1, dtype=torch.bool)
    mask[1, 9:] = mask[2, 5:] = mask[3, 20:] = False
    inputs = data(4, 24, 16), mask
    return module, q8.compile(q8.quantize(module, inputs, [inputs], quantizer=INT8, progress=False)), inputs


def ratio(module: nn.Module, inputs: tuple[Tensor, Tensor], found: Any) -> float:
    """Signal to noise of a result beside the module's, in dB."""
    decibel = decibels(module(*inputs).detach().numpy(), found)
    assert decibel is not None
    return decibel


@pytest.mark.parametrize("form", SOFTMAX)
def test_softmax_of_masked_logits_is_int8(form: str, device: Device) -> None:
    module, model, inputs = made(SOFTMAX[form])
    assert model.report().exact
    expected = q8.Session(model, "reference")(*inputs)
    assert ratio(module, inputs, expected) > 35.0
    with q8.Session(model, device) as session:
        np.testing.assert_array_equal(session(*inputs), expected)


@pytest.mark.parametrize("form", OTHERS)
def test_what_else_reads_masked_logits_reads_them_in_float(form: str) -> None:
    module, model, inputs = made(OTHERS[form])
    found = q8.Session(model, "reference")(*inputs)
    assert ratio(module, inputs, found) > 40.0


def test_argmax_of_masked_logits() -> None:
    module, model, inputs = made(lambda s, x, m: s.lin(x).masked_fill(~m, LOW).argmax(1))
    found = q8.Session(model, "reference")(*inputs)
    assert (found == module(*inputs).numpy()).mean() > 0.95


def test_sums_that_share_an_operand_take_no_time() -> None:
    """Each value is looked at once: 2^40 ways lead through 40 sums."""

    def doubled(s: Any, x: Tensor, m: Tensor) -> Tensor:
        y = s.lin(x)
        for _ in range(40):
            y = (y + y) * 0.5
        result: Tensor = y.masked_fill(~m, LOW).softmax(1)
        return result

    _, model, inputs = made(doubled)
    assert np.isfinite(q8.Session(model, "reference")(*inputs)).all()
