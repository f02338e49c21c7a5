"""Masks that are inputs of a network: bools given as bools, and attention in which they leave elements out, in int8."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.device import Device
from tests import harness
from tests.attention_graphs import masked_softmax

FORMS = ("attention", "masked_fill", "where")


class Masked(nn.Module):
    """Attention to the tokens that a mask names, written as people write it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.qkv, self.form = nn.Linear(16, 48), form

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = mask[:, None, None, :]
        if self.form == "attention":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        if self.form == "where":
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        else:
            scores = scores.masked_fill(~mask, float("-inf"))
        y: Tensor = scores.softmax(-1) @ v
        return y


class Added(nn.Module):
    """A softmax of scores to which a choice is added: one that is 0 for some of the elements it takes, one that is
    larger than the bools by which it is made, and moved, or one behind which zeros are put."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(16, 11), form
        values = {"partial": torch.tensor([0.0, -3.0] * 5 + [0.0]), "moved": torch.zeros(11, 11)}
        self.bias = nn.Parameter(values.get(form, torch.zeros(11)))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        choice = torch.where(mask[:, None], self.bias, float("-inf"))
        if self.form == "padded":
            choice = F.pad(choice[:, :, :8], (0, 3))
        scores = self.linear(x)[:, None]
        y: Tensor = (scores + (choice.view(3, 1, 11, 11) if self.form == "moved" else choice[:, None])).softmax(-1)
        return y


def example() -> tuple[Tensor, Tensor]:
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, 7:] = mask[1, ::3] = False
    return torch.randn(3, 11, 16, generator=torch.Generator().manual_seed(0)), mask


@functools.cache
def quantized(form: str) -> tuple[nn.Module, q8.Model]:
    torch.manual_seed(1)
    module = Masked(form).eval()
    return module, q8.compile(q8.quantize(module, example(), [example()], progress=False))


@pytest.mark.parametrize("form", FORMS)
def test_masked_attention_is_int8(form: str) -> None:
    """What is masked changes no byte of what is not, and no scale."""
    module, model = quantized(form)
    assert "q8ta_masked_softmax" in {node.op for node in model.graph.nodes}
    assert model.report().exact
    x, mask = example()
    session = q8.Session(model, "reference")
    found, expected = torch.from_numpy(session(x, mask)), module(x, mask)
    assert (found - expected).abs().max() < 0.04 * expected.abs().max()
    other = x.clone()
    other[0, 7:] = 100.0
    np.testing.assert_array_equal(session(other, mask)[0, :, :7], found[0, :, :7])


@pytest.mark.parametrize("form", ["partial", "moved", "padded"])
def test_a_choice_that_is_no_mask_is_added(form: str) -> None:
    x, mask = example()
    module = Added(form).eval()
    model = q8.compile(q8.quantize(module, (x, mask), [(x, mask)], progress=False))
    found = torch.from_numpy(q8.Session(model, "reference")(x, mask))
    assert (found - module(x, mask)).abs().max() < 0.04


def test_bools_on_devices_and_in_files(device: Device, tmp_path: Path) -> None:
    """The reference's bytes; a row without a key is zeros, as torch has it. Files keep what an input is given as."""
    module, model = quantized("attention")
    x, mask = example()
    mask[2] = False
    expected = q8.Session(model, "reference")(x, mask)
    assert (expected[2] == 0).all()
    assert not module(x, mask)[2].any()
    model.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    assert "mask bool[3, 11]" in repr(loaded)
    with q8.Session(loaded, device) as session:
        np.testing.assert_array_equal(session(x, mask=mask.numpy()), expected)
    with pytest.raises(InputError, match=r"input 'mask' must be bool, found float32: write mask.astype\(bool\)"):
        session(x, mask.float())


@pytest.mark.parametrize(("shape", "masked"), [((2, 3, 5, 7), (2, 1, 1, 7)), ((6, 5, 18), (1, 5, 1))])
def test_masked_rows(shape: tuple[int, ...], masked: tuple[int, ...], device: Device) -> None:
    """Kernels and layouts, masks that repeat along any dimension: the reference's bytes. What is masked is 0."""
    graph, inputs = masked_softmax(shape, masked)
    (result,) = graph.outputs
    expected, whole = reference.run(graph, inputs)[result], np.broadcast_to(inputs["mask"], shape)
    assert (expected[whole == 0] == -128).all()
    assert (expected[whole == 1] > -128).any()
    for name, plan in list(harness.plans(graph, 0))[:: 4 if harness.sampled(device) else 2]:
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(found, expected, err_msg=name)
