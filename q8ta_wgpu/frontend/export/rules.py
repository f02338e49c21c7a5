"""Decompositions of arithmetic for which torch has none, into operators of the table."""

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


def _fmod(x: Tensor, other: Tensor) -> Tensor:
    return x.sign() * torch.remainder(x.abs(), other.abs())


def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def _variance(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    dims = dim or list(range(x.dim()))
    distance = x - x.mean(dims, True)
    if correction == 0:
        return (distance * distance).mean(dims, keepdim)
    free = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return (distance * distance).sum(dims, keepdim) / free if free > 0 else NotImplemented


def _variance_and_mean(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = dim or list(range(x.dim()))
    return _variance(x, dims, correction=correction, keepdim=keepdim), x.mean(dims, keepdim)


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of boundaries below each element."""
    apart = x.unsqueeze(-1)
    counted = (apart >= boundaries if right else apart > boundaries).sum(-1)
    return counted.int() if out_int32 else counted


ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.fmod.Tensor: _fmod,
    _aten.clamp.Tensor: _clamp,
    _aten.var.correction: _variance,
    _aten.var_mean.correction: _variance_and_mean,
    _aten.bucketize.Tensor: _bucketize,
}
