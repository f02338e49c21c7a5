"""Operators of arithmetic, distances and order in terms of those of the table, where torch has no decomposition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    dims = list(range(x.dim())) if dim is None else dim
    if dtype is not None:
        return NotImplemented
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if abs(ord) == math.inf:
        return x.abs().amax(dims, keepdim) if ord > 0 else x.abs().amin(dims, keepdim)
    if ord == 0:
        return (x != 0).sum(dims, keepdim).to(x.dtype)
    return x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)


FEW = 25
"""Rows up to which torch computes distances by differences, unless it is told otherwise."""


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Between the rows of two matrices; Euclidean ones by products where torch does so too."""
    many = max(x.shape[-2], y.shape[-2]) > FEW if not compute_mode else compute_mode == 1
    if p == 2 and many:
        squares = (x * x).sum(-1, True) + (y * y).sum(-1, True).mT
        return (squares - 2 * (x @ y.mT)).clamp(min=0).sqrt()
    found: Tensor = _vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, [-1])
    return found


def _fmod(x: Tensor, other: Tensor) -> Tensor:
    return x.sign() * torch.remainder(x.abs(), other.abs())


def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def _randomized_relu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    return NotImplemented if training else torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def _round_to(x: Tensor, *, decimals: int) -> Tensor:
    factor = 10.0**decimals
    return (x * factor).round() * (1 / factor)


def _variance(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    dims = dim or list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    distance = x - x.mean(dims, True)
    free = max(count - (1 if correction is None else correction), 0)
    return (distance * distance).sum(dims, keepdim) / free if free else NotImplemented


def _variance_and_mean(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = dim or list(range(x.dim()))
    return _variance(x, dims, correction=correction, keepdim=keepdim), x.mean(dims, keepdim)


def _kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = (y.narrow(dim, k - 1, 1) for y in x.sort(dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kth_value(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _median_of_all(x: Tensor) -> Tensor:
    return _median(x.flatten(), 0)[0]


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many boundaries are below."""
    apart = x.unsqueeze(-1)
    counted = (apart >= boundaries if right else apart > boundaries).sum(-1)
    return counted.int() if out_int32 else counted


def _search(
    boundaries: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """The same among boundaries of each row."""
    if sorter is not None:
        return NotImplemented
    rows = boundaries if boundaries.dim() == 1 else boundaries.unsqueeze(-2)
    return _bucketize(x, rows, out_int32=out_int32, right=right or side == "right")


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear of one operand, whose results are the rows of a product with the other."""
    outputs, first, second = weight.shape
    rows = torch.nn.functional.linear(x, weight.permute(0, 2, 1).reshape(outputs * second, first))
    matrices = rows.reshape(*rows.shape[:-1], outputs, second)
    result: Tensor = (matrices @ y.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten._cdist_forward.default: _distances,
    _aten.fmod.Tensor: _fmod,
    _aten.clamp.Tensor: _clamp,
    _aten.rrelu.default: _randomized_relu,
    _aten.round.decimals: _round_to,
    _aten.var.correction: _variance,
    _aten.var_mean.correction: _variance_and_mean,
    _aten.median.dim: _median,
    _aten.median.default: _median_of_all,
    _aten.kthvalue.default: _kth_value,
    _aten.bucketize.Tensor: _bucketize,
    _aten.searchsorted.Tensor: _search,
    _aten.bilinear.default: _bilinear,
}
