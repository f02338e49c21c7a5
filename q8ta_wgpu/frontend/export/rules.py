"""Decompositions of arithmetic, distances and sorting for which torch has none, into operators of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


_ROWS_BY_DIFFERENCES = 25
"""The most rows for which torch computes distances from differences by default."""


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances between the rows of two matrices; Euclidean ones from products if torch does so too."""
    many = max(x.shape[-2], y.shape[-2]) > _ROWS_BY_DIFFERENCES if not compute_mode else compute_mode == 1
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


def _kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = (y.narrow(dim, k - 1, 1) for y in x.sort(dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The middle element along a dimension and its index: the second of three slices of the sorted elements, whose
    sizes follow from the number of elements."""
    below = (x.shape[dim] - 1) // 2
    parts = [size for size in (below, 1, x.shape[dim] - below - 1) if size]
    values, places = (torch.split(y, parts, dim)[1 if below else 0] for y in x.sort(dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median_of_all(x: Tensor) -> Tensor:
    return _median(x.flatten(), 0)[0]


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of boundaries below each element."""
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
    """The number of boundaries below each element, with separate boundaries for each row."""
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


def _correlated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """A convolution of images as the product of its weight with their windows."""
    count, _, *extents = x.shape
    outputs, _, *sides = weight.shape
    windows: Tensor = _aten.im2col.default(x, sides, dilation, padding, stride)
    axes = zip(extents, sides, stride, padding, dilation, strict=True)
    shape = [(size + 2 * around - apart * (side - 1) - 1) // step + 1 for size, side, step, around, apart in axes]
    parts = windows.reshape(count, groups, -1, windows.shape[-1])
    result: Tensor = (weight.reshape(groups, outputs // groups, -1) @ parts).reshape(count, outputs, *shape)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def _correlated_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    steps = (1, *stride), (0, *padding), (1, *dilation)
    return _correlated(x.unsqueeze(2), weight.unsqueeze(2), bias, *steps, groups).squeeze(2)


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = x @ weight.mT
    return result if bias is None else result + bias


_SUM, _MEAN, _MAX = range(3)
"""torch's numbers of the reductions of an embedding bag."""


def embedding_bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    mode: int = _SUM,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    even: bool = False,
    **_: Any,
) -> Tensor:
    """The result of torch.nn.functional.embedding_bag. Bags that are `even` are the rows of a matrix of indices."""
    shape = (offsets.numel(), -1) if even else (1, -1)
    indices = indices.reshape(shape)
    rows = torch.nn.functional.embedding(indices, weight)  # (bags, indices of a bag, width), or all in one
    counted = None if even else _inside(offsets, indices.numel(), include_last_offset)
    if padding_idx is not None:
        real = indices != padding_idx % weight.shape[0]
        counted = real if counted is None else counted & real
    if mode == _MAX:
        if counted is None:
            return rows.amax(1)
        largest = torch.where(counted.unsqueeze(-1), rows, weight.amin()).amax(1)
        return torch.where(counted.any(1, True), largest, 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(shape).unsqueeze(-1)
    if counted is None:
        return rows.mean(1) if mode == _MEAN else rows.sum(1)
    chosen = counted.to(rows.dtype)
    sums = (rows * chosen.unsqueeze(-1)).sum(1) if even else chosen @ rows[0]
    return sums / counted.sum(1, True).clamp(min=1) if mode == _MEAN else sums  # counts are exact integers


def _inside(offsets: Tensor, count: int, include_last: bool) -> Tensor:
    """Which indices of one list each bag has, (bags, indices) bools."""
    indices = torch.arange(count)
    if include_last:
        begins, ends = offsets[:-1], offsets[1:]
    else:
        begins, ends = offsets, torch.cat([offsets[1:], offsets.new_full((1,), count)])
    return (indices >= begins.unsqueeze(1)) & (indices < ends.unsqueeze(1))


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bags, and values that torch keeps for their gradients, which nothing reads."""
    padding = None if padding_idx < 0 else padding_idx
    bags = embedding_bags(weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding)
    return bags, offsets, offsets, offsets


AS_PRODUCTS: Mapping[Any, Callable[..., Tensor]] = {
    _aten.conv1d.default: _correlated_rows,
    _aten.conv2d.default: _correlated,
    _aten.linear.default: _multiplied,
}
"""Weighted sums as products of activations, for weights that the network computes, as in dynamic convolutions."""

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
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
}
