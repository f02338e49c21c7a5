"""Quantizer(skip=[...]) leaves modules in float."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from tests.quantizing import conv, data


def quantized(module: nn.Module, *skip: str) -> torch.export.ExportedProgram:
    x = data(2, 3, 8, 8)
    return q8.quantize(module.eval(), (x,), [x], q8.Quantizer(skip=list(skip)), progress=False)


def test_skip_names_a_module() -> None:
    """One of the user's module; another name is told the nearest paths, or the first ones where none is like it."""
    inner = nn.Sequential(nn.ReLU(), nn.Sequential(OrderedDict(depthwise=conv(4, 4))))
    network = nn.Sequential(conv(3, 4), inner, nn.ReLU())
    with pytest.raises(
        q8.InputError, match=r"skip names '1\.1\.depthwise_conv'.*nearest to it: '1\.1\.depthwise' .*norm"
    ):
        quantized(network, "0", "1.1.depthwise_conv")
    with pytest.raises(q8.InputError, match=r"skip names 'head'.*nearest to it: '0', '1', '1\.0', '1\.1'"):
        quantized(network, "head")
    with pytest.raises(q8.InputError, match=r"skip names 'head'.*: no module has a path"):
        quantized(conv(3, 4), "head")
    with pytest.raises(q8.InputError, match=r"skip=\['head'\]"):
        q8.Quantizer(skip="head")


def norm(channels: int) -> nn.BatchNorm2d:
    """With statistics, as after training."""
    module = nn.BatchNorm2d(channels).eval()
    module.running_var = torch.linspace(0.5, 2, channels)
    return module


def test_what_a_skipped_module_computes_has_no_bits_to_explain() -> None:
    """It was said that no such value is stored, and another one was named."""
    model = q8.compile(quantized(nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4)), "0", "1"))
    name = next(node.output for node in model.graph.nodes if node.op == "conv2d")
    with pytest.raises(q8.InputError, match=f"'{name}' has dtype float32 in this model, so no bits were decided"):
        model.explain(name)


@pytest.mark.parametrize(
    ("middle", "kept"),
    [
        ([nn.GELU()], {"gelu"}),
        ([nn.ReLU(), norm(4)], {"relu", "batch_norm"}),
        ([nn.MaxPool2d(2), nn.Softmax(1)], {"max_pool2d", "softmax"}),
    ],
)
def test_any_module_can_be_skipped(middle: list[nn.Module], kept: set[str]) -> None:
    """Its operators stay in float, and what they read is not rounded for them."""
    module = nn.Sequential(conv(3, 4), *middle, conv(4, 3)).eval()
    x = data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=[str(len(middle))]), progress=False)
    report = q8.compile(program).report()
    assert set(report.float32) == kept
    assert report.int8 == {"q8ta_conv2d (scale)": 2}
    rows = sorted(q8.compare(module, program, (x,)).layers, key=lambda layer: layer.place)
    assert [layer.module for layer in rows if not layer.output] == ["", str(len(middle))]


def test_skip_goes_through_a_file(tmp_path: Path) -> None:
    module, x = nn.Sequential(conv(3, 4), nn.GELU(), conv(4, 3)).eval(), data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=["1"]), progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    assert q8.compile(torch.export.load(tmp_path / "net.pt2")).report().float32 == {"gelu": 1}


@pytest.mark.parametrize("function", [nn.GELU, nn.ReLU])
def test_a_function_behind_a_view_can_be_skipped(function: Callable[[], nn.Module]) -> None:
    """Conv1d is a convolution and a view: an activation moves before the view, but not one in float."""
    module, x = nn.Sequential(nn.Conv1d(3, 4, 3), function(), nn.Conv1d(4, 3, 3)).eval(), data(1, 3, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=["1"]), progress=False)
    assert function.__name__.lower() in q8.compile(program).report().float32


class Spelled(nn.Module):
    """A norm or a gelu as many programs write it, which becomes one operator where it is not skipped."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "gelu":
            return 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("skip", [["1"], ["2"], ["1", "5"], ["0", "4"], ["3"]])
def test_a_network_in_which_other_operators_were_rewritten_is_compared(skip: list[str], tmp_path: Path) -> None:
    """`compare` rewrote those in skipped modules too, and found another program."""
    torch.manual_seed(0)
    spelled = [Spelled(kind) for kind in ("norm", "gelu", "norm", "gelu")]
    first, second, third, fourth = spelled
    module = nn.Sequential(nn.Linear(8, 8), first, second, nn.Linear(8, 8), third, fourth, nn.Linear(8, 4)).eval()
    x = data(4, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=skip), progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    compared = q8.compare(module, torch.export.load(tmp_path / "net.pt2"), (x,))
    assert min(layer.snr for layer in compared.layers if layer.output) > 25


def test_modules_that_compute_nothing_are_told_apart() -> None:
    """They cannot be skipped. A network of nothing else was quantized, though nothing of it is rounded."""
    module, x = nn.Sequential(nn.Identity(), conv(3, 4)).eval(), data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match=r"nearest to it: '1' .*Identity and Dropout compute nothing"):
        q8.quantize(module, (x,), [x], q8.Quantizer(skip=["0"]), progress=False)
    program = q8.quantize(module[0], (x,), [x], progress=False)
    assert "nothing of this network is rounded" in str(q8.compile(program).report())
