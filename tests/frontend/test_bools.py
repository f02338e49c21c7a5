"""Bools and integers of a network, which a graph holds as numbers: what torch computes, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from tests.quantizing import Plain, data

MASK = torch.tensor([1, 0, 0, 1, 0, 1, 0, 1], dtype=torch.bool)
LOWER = torch.ones(5, 5, dtype=torch.bool).tril(-1)


class Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def related(x: Tensor) -> Tensor:
    """Attention to what a product says: a mask of bools that is computed."""
    return F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., :4] @ x[..., :4].mT > -0.5)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a constant of bools": lambda x: (MASK & (x > 0), (x > 0) == MASK, torch.logical_or(x > 0, MASK), x + MASK),
    "a constant of integers": lambda x: (x * torch.arange(8), x > torch.arange(8)),
    "bits": lambda x: (~x.argmax(1), x.argmax(1) & x.argmin(1), x.argmax(1) | 5, 6 ^ x.argmin(1), x.argmin(1) << 3),
    "bits of floats and bools": lambda x: (
        (x * 9).clamp(-99, 99).long() & 13,
        (x > 0).long() << x.argmax(1, True),
        ~(x > 0),
    ),
    "a sum of bools": lambda x: x * ((x > -1) + (x < 1)),
    "zeros like": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "the place of all": lambda x: (x.argmax(keepdim=True), x.argmin()),
    "fold of one": lambda x: F.fold(x.flatten(0, 1)[:8, :6], (3, 4), (2, 2)),
    "a computed mask": related,
    "rows without keys": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=LOWER),
}


def example() -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_computes_it(name: str) -> None:
    x, module = example(), Module(FUNCTIONS[name])
    found = q8.Session(q8.compile(torch.export.export(module, (x,))), "reference")(x)
    expected = module(x)
    for ours, theirs in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_a_computed_mask_widens_no_scale() -> None:
    """What it masks is far below the scores: a range of both would leave them one step."""
    x, module = example(), Module(related).eval()
    program = q8.quantize(module, (x,), [x], progress=False)
    found = q8.Session(q8.compile(program), "reference")(x)
    assert np.abs(found - module(x).numpy()).max() <= 0.05


COMPARED: dict[str, Callable[[Tensor], Tensor]] = {
    "greater": lambda y: y > 0,
    "far up": lambda y: y > 0.2,
    "least": lambda y: y >= 0.05,
    "filled": lambda y: y.masked_fill(y < 0, 0.0) + 1,
    "sign": lambda y: y.sign(),
    "counted": lambda y: (y - 0.1 > 0).float(),
}


@pytest.mark.parametrize("precision", ["auto", "int8", "int16"])
@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_right_behind_a_layer(name: str, precision: Literal["auto", "int8", "int16"]) -> None:
    """They joined the layer as a curve, which shows no jump: one in six was wrong, and above 0.05 all were False."""
    torch.manual_seed(0)
    layers = {"first": nn.Conv2d(3, 16, 3, padding=1), "last": nn.Conv2d(16, 4, 1)}
    module = Plain(lambda m, x: COMPARED[name](m.last(m.first(x).relu())), **layers).eval()
    items = [data(1, 3, 16, 16, seed=i) for i in range(8)]
    program = q8.quantize(module, (items[0],), items, q8.Quantizer(precision=precision), progress=False)
    with torch.no_grad():
        wanted = module(items[0]).float().numpy()
        session = q8.Session(q8.compile(program), "reference")
        assert (np.abs(np.float32(session(items[0])) - wanted) > 0.1).mean() < 0.04
