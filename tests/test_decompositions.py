"""Operators that become others of the table when a program is imported: what torch computes, by the reference.

All of them are one program, since exporting takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import q8ta_wgpu as q8
from tests.importing import flat, imported

BOUNDS = torch.tensor([-1.0, 0.0, 0.5])
ROWS = torch.arange(2)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 1::2] = x[..., :-1:2]
    y[y > 1] = 0.25
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "any and all": lambda x: ((x > 1).any(), (x > 1).any(1), (x > -1).all(-1, keepdim=True), x.bool().all((0, 2))),
    "infinities": lambda x: (torch.isfinite(1 / x.relu()), torch.logsumexp(x, 1), torch.nan_to_num(x / x.relu())),
    "to a number": lambda x: (torch.maximum(x, torch.tensor(0.1)), torch.clamp(x, x[:, :1], x[:, 1:2].abs())),
    "rounded": lambda x: (torch.round(x, decimals=1), x // 0.75, torch.div(x, x.abs() + 1, rounding_mode="floor")),
    "remainders": lambda x: (x % 0.75, torch.fmod(x, -1.5), torch.remainder(x, x.abs() + 0.5)),
    "remainders of large numbers": lambda x: (torch.fmod(x * 1e6, 0.7), torch.remainder(x * 1e6, x.abs() + 0.5)),
    "powers": lambda x: (2.0**x, torch.exp2(x), x.abs().add(1).log2(), x.abs().add(1).log10(), F.logsigmoid(x)),
    "angles": lambda x: (torch.atan2(x, x.flip(1)), torch.atan2(x.relu(), x.flip(2).relu())),
    "spread": lambda x: (x.var(1), x.std((2, 3), unbiased=False), torch.var_mean(x, (0, 2), keepdim=True)),
    "order": lambda x: (x.median(1), x.kthvalue(2, -1, keepdim=True)),
    "diagonals": lambda x: (x.diagonal(1, 2, 3), x.diagonal(-1, 1, 3), x[0, 0].trace()),
    "written": _written,
    "deep windows": lambda x: (
        F.local_response_norm(x, 3),
        F.max_pool3d(x, (2, 3, 2), padding=1),
        F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool3d(x, (2, 1, 1), divisor_override=3),
    ),
    "places": lambda x: (
        F.one_hot(x.argmax(1), 5),
        torch.zeros_like(x).scatter(1, x.topk(2, 1).indices, 1.0),
        torch.zeros_like(x).scatter(3, x.argsort(3), x),
        torch.bucketize(x, BOUNDS),
        torch.bucketize(x, BOUNDS, right=True),
    ),
    "indices": lambda x: (
        x[ROWS, x[:, :, 0, 0].argmax(1)],
        x[:, :, x[0, 0].argmax(0), -x[0, 1].argmin(0)],
        x[x[:, 0, 0].argmax(0) - 1, :, x[0, 0].argmax(0) - 3],
    ),
    "integers": lambda x: (
        (x.argmax(1) * 3 + 1) // 2,
        (x > 0).sum(1),
        x.argmax().float() * x,
        (x * 3).long(),
        x.int() % 3,
    ),
}


@pytest.fixture(scope="module")
def found() -> tuple[Tensor, Any]:
    x = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(0))
    model = imported(lambda x: {name: function(x) for name, function in FUNCTIONS.items()}, x)
    return x, q8.Session(model, "reference")(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_computes_it(name: str, found: tuple[Tensor, Any]) -> None:
    """Values, and dtypes as the user sees them."""
    x, outputs = found
    for ours, theirs in zip(flat(outputs[name]), flat(FUNCTIONS[name](x)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "reached"),
    [
        (lambda x: x.argmax(1) * 9_999_999, "39999996"),
        (lambda x: (x > 0).sum() * 1_000_000, "240000000"),
        (lambda x: (5 - x.argmax(3)).abs() * (1 << 22), "20971520"),
        (lambda x: x.argmax(1) ** 13, "67108864"),
        (lambda x: x.max(1).indices * 9_999_999, "39999996"),
        (lambda x: x.topk(2, 1).indices * 9_999_999, "39999996"),
    ],
)
def test_integers_beyond_float32_are_refused(function: Callable[[Tensor], Tensor], reached: str) -> None:
    """They would be rounded: the most they may reach is named."""
    with pytest.raises(q8.UnsupportedError, match=rf"integers may reach {reached}.*exact up to 16777216"):
        imported(function, torch.randn(2, 5, 4, 6))


def test_floats_that_are_added_up_as_integers_are_refused() -> None:
    """torch cuts them first."""
    with pytest.raises(q8.UnsupportedError, match=r"write x.long\(\).cumsum\(dim\)"):
        imported(lambda x: x.cumsum(1, dtype=torch.int64), torch.randn(2, 5))
