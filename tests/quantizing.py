"""Small modules, quantized and compiled: what the tests of the way from torch to int8 share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.precision import Precision, Precisions
from q8ta_wgpu.runtime.device import Device
from testbed import sample
from testbed.blocks import conv as conv
from testbed.blocks import data as data
from testbed.harness import flat, parts
from testbed.pt2e import by_torchao
from tests import simulation

INT8 = Quantizer(precision="int8")
"""For tests of what is fused and how it is rounded: nothing is widened."""


class Plain(nn.Module):
    """A module from a function and its submodules."""

    def __init__(self, forward: Callable[..., object], **modules: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self, *inputs)


def around_conv(forward: Callable[..., Any] = lambda s, x: s.conv(x), **parts: nn.Module) -> nn.Module:
    """A module with a convolution of 3 channels to 4, `conv`, in evaluation mode."""
    return Plain(forward, **{"conv": conv(3, 4), **parts}).eval()


def check(
    module: nn.Module, inputs: Sequence[Tensor], device: Device, quantizer: Quantizer = INT8, islands: int = 0
) -> q8.Model:
    """Quantizes, compiles, runs; 0 mismatches with the reference, within a step of torch; returns the model."""
    model = check_on_host(module, inputs, quantizer, islands)
    check_on(device, model, inputs)
    return model


def check_on_host(
    module: nn.Module, inputs: Sequence[Tensor], quantizer: Quantizer = INT8, islands: int = 0
) -> q8.Model:
    """Quantizes and compiles; the reference is within a step of torch; returns the model. A class that inherits from
    ours annotates for torchao."""
    torch.manual_seed(0)
    module.eval()
    batches = [tuple(t * factor for t in inputs) for factor in (1.0, 0.7)]
    if type(quantizer) is Quantizer:
        program = q8.quantize(module, tuple(inputs), calibration=batches, quantizer=quantizer, progress=False)
    else:
        program = by_torchao(module, batches, quantizer)
    model = q8.compile(program)
    for c in simulation.compare(program, model, arrays_of(model, inputs)):
        assert c.holds, c
    report = model.report()
    assert len(report.islands) == islands, str(report)
    return model


def check_on(device: Device, model: q8.Model, inputs: Sequence[Tensor]) -> None:
    """Runs a model on a device in one of three tests: 0 mismatches with the reference."""
    if not sample.is_in_turn(os.environ["PYTEST_CURRENT_TEST"], sample.IN_THREE):
        return
    arrays = arrays_of(model, inputs)
    with q8.Session(model, device) as session:
        found = session(**arrays)
    expected = q8.Session(model, "reference")(**arrays)
    for f, e in zip(flat(found), flat(expected), strict=True):
        assert int((f != e).sum()) == 0


def arrays_of(model: q8.Model, inputs: Sequence[Tensor]) -> dict[str, Array]:
    return dict(zip(model.graph.inputs, (t.numpy() for t in inputs), strict=True))


def ops(model: q8.Model) -> list[str]:
    return [part for node in model.graph.nodes if node.op not in ("quantize", "dequantize") for part in parts(node)]


def choosing(monkeypatch: pytest.MonkeyPatch, choose: Callable[[Precisions], Precision]) -> None:
    """Lets a test choose the precisions, with all that the search for them has found when it begins."""
    monkeypatch.setattr(Precisions, "choose", choose)
