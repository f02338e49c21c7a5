"""Attention of modules in int8: what it becomes, with what masks and biases, and its bytes on every device."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.int8 import MASKED
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from tests.quantizing import INT8


def test_a_scale_of_zero_is_one() -> None:
    """Every value has the same weight then."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, scale=0.0)

    x = torch.randn(2, 5, 8)
    model = q8.compile(q8.quantize(Mean().eval(), (x,), [x], quantizer=INT8, progress=False))
    found = q8.Session(model, "reference")(x)
    np.testing.assert_allclose(found, np.broadcast_to(x.mean(1, keepdim=True).numpy(), found.shape), atol=0.05)


class Encoder(nn.Module):
    """A layer of torch's own encoder, whose attention is scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 48, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


class Weights(nn.Module):
    """Attention that also gives its weights: torch scales the queries and multiplies batches of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.attention(x, x, x)
        return y, weights


class Windows(nn.Module):
    """Attention in windows as Swin has it: a bias, then a mask of -100 for some windows, added behind views."""

    bias: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.register_buffer("bias", torch.randn(1, 2, 9, 9))
        mask = torch.zeros(3, 9, 9)
        mask[1, :4, 4:] = mask[1, 4:, :4] = mask[2, ::2, 1::2] = -100.0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(6, 9, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * 0.25) @ k.transpose(-2, -1) + self.bias
        scores = scores.view(2, 3, 2, 9, 9) + self.mask.unsqueeze(1).unsqueeze(0)
        y: Tensor = (scores.view(6, 2, 9, 9).softmax(-1) @ v).transpose(1, 2).reshape(6, 9, 32)
        return y


class Causal(nn.Module):
    """An attention to what came before, and one with a mask of bools, whose heads share keys and values."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("mask", torch.rand(11, 11) > 0.3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        k, v = k[:, :1], v[:, :1]
        return nn.functional.scaled_dot_product_attention(y, k, v, attn_mask=self.mask, enable_gqa=True)


class Scores(nn.Module):
    """softmax(scores(q kᵀ)) v of one linear's queries, keys and values, with a linear behind."""

    def __init__(self, scores: Callable[[Tensor], Tensor], value: float = 1.0, keys: int = 7) -> None:
        super().__init__()
        self.qkv, self.out, self.scores, self.value, self.keys = (
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            scores,
            value,
            keys,
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = self.scores(q @ k[:, : self.keys].mT * 0.25).softmax(-1)
        y: Tensor = self.out(weights @ (v[:, : self.keys] * self.value))
        return y


class Squared(nn.Module):
    """Weights times themselves."""

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ x.mT).softmax(-1)
        return weights @ weights


LOW = torch.tensor([[0.0]] * 4 + [[-1e9]] * 3)
"""A mask by which rows have nothing but numbers beside which float32 loses scores."""

WHOLE = {
    "a factor of values": (lambda: Scores(lambda s: s, value=0.5), (), 1, 0),
    "a bias of one element": (lambda: Scores(lambda s: s + torch.tensor([2.5])), (), 1, 0),
    "a bias of one key": (lambda: Scores(lambda s: s + torch.full((7, 1), 3.0), keys=1), (), 1, 0),
    "rows of nothing else": (lambda: Scores(lambda s: s + LOW), (), 0, 2),
    "a result that stays in float": (lambda: Scores(lambda s: s), ("out",), 0, 1),
    "weights times themselves": (Squared, (), 0, 2),
}


@pytest.mark.parametrize(("module", "skip", "attentions", "products"), WHOLE.values(), ids=WHOLE)
def test_its_products_are_int8(
    module: Callable[[], nn.Module], skip: tuple[str, ...], attentions: int, products: int
) -> None:
    """As one operator, or where that has no such form as operators of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole, x = module().eval(), torch.randn(2, 7, 16)
        model = q8.compile(
            q8.quantize(whole, (x,), [x], quantizer=q8.Quantizer(skip=skip, precision="int8"), progress=False)
        )
    kinds = Counter(node.op for node in model.graph.nodes)
    assert (kinds["q8ta_attention"], kinds["q8ta_matmul"]) == (attentions, products), model.report()
    found, expected = q8.Session(model, "reference")(x.numpy()), whole(x).detach().numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_one_key_without_a_part_leaves_zeros(device: Device) -> None:
    whole, x = Scores(lambda s: s + torch.full((7, 1), MASKED), keys=1).eval(), torch.randn(2, 7, 16)
    model = q8.compile(q8.quantize(whole, (x,), [x], quantizer=INT8, progress=False))
    expected = q8.Session(model, "reference")(x.numpy())
    np.testing.assert_allclose(expected, np.broadcast_to(whole.out.bias.detach(), expected.shape), atol=0.01)
    with q8.Session(model, device) as session:
        np.testing.assert_array_equal(session(x.numpy()), expected)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Encoder": (Encoder, (2, 13, 32)),
    "Weights": (Weights, (2, 13, 32)),
    "Windows": (Windows, (6, 9, 32)),
    "Causal": (Causal, (2, 11, 16)),
}


@functools.cache
def quantized(name: str) -> tuple[Tensor, torch.export.ExportedProgram, q8.Model]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, shape = MODULES[name]
        x = torch.randn(shape)
        program = q8.quantize(module().eval(), (x,), calibration=[x], quantizer=INT8, progress=False)
    return x, program, q8.compile(program)


@pytest.mark.parametrize("name", MODULES)
def test_torchs_attention_is_whole_int8(name: str, device: Device) -> None:
    x, program, model = quantized(name)
    report = model.report()
    assert report.float32 == {}, str(report)
    assert report.exact
    kinds = Counter(node.op for node in model.graph.nodes)
    assert kinds["q8ta_table"] == 0, "a factor before or behind a product is part of its rounding"
    given = 1 if name == "Weights" else 0  # weights that are given out are an int8 tensor
    assert (kinds["q8ta_softmax"], kinds["q8ta_matmul"]) == (given, 2 * given)
    assert kinds["q8ta_attention"] == {"Causal": 2, "Weights": 0}.get(name, 1)
    expected = harness.flat(q8.Session(model, "reference")(x.numpy()))
    with q8.Session(model, device) as session:
        found = harness.flat(session(x.numpy()))
    assert [int((f != e).sum()) for f, e in zip(found, expected, strict=True)] == [0] * len(expected)
    for simulated, e in zip(
        harness.flat([t.detach().numpy() for t in _tuple(program.module()(x))]), expected, strict=True
    ):
        assert np.abs(simulated - e).max() <= 0.05 * np.abs(simulated).max()


def test_the_shares_of_many_keys_are_kept() -> None:
    """In steps of 1/256 the weights of 577 keys would be none, and nothing would be left of the values."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            """(1, n, 16) → (1, 2, n, 8)."""
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    module, x, other = Attention().eval(), *torch.randn(2, 1, 577, 16)
    model = q8.compile(q8.quantize(module, (x,), [x], quantizer=INT8, progress=False))
    with torch.no_grad():
        expected = module(other)
    noise = torch.from_numpy(q8.Session(model, "reference")(other)) - expected
    assert expected.square().sum() > 1000 * noise.square().sum()


class Padded(nn.Module):
    """Attention to the tokens that a mask names, an input: numbers to add, or bools."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = mask[:, None, None, :]
        if mask.dtype == torch.bool:
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-2, -1) / 8**0.5 + (1.0 - mask) * -1e30
        y: Tensor = scores.softmax(-1) @ v
        return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_mask_may_be_an_input(dtype: torch.dtype) -> None:
    """Products stay int8, with scales that no mask has widened; what is masked plays no part."""
    torch.manual_seed(0)
    x, mask = torch.randn(2, 7, 16), torch.tensor([[1] * 5 + [0] * 2, [1] * 7]).to(dtype)
    module = Padded().eval()
    program = q8.quantize(module, (x, mask), [(x, mask)], quantizer=INT8, progress=False, unsupported="torch")
    made = q8.compile(program, unsupported="torch", device="reference")
    (piece,) = made.pieces
    assert dtype == torch.bool or not made.report().torch
    kinds = Counter(node.op for node in piece.model.graph.nodes)
    assert (kinds["q8ta_attention"], kinds["q8ta_matmul"]) == ((1, 0) if dtype == torch.bool else (0, 2))
    with torch.no_grad():
        found, expected = made(x, mask), module(x, mask)
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()
    other = x.clone()
    other[0, 5:] = 0.0
    assert torch.equal(made(other, mask)[0, :, :5], found[0, :, :5])


def _tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs
