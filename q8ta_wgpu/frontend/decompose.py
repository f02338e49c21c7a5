"""Operators that the table lacks, in terms of those it has: torch's own decompositions."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram, default_decompositions

from q8ta_wgpu.frontend.recurrent import steps_untraced
from q8ta_wgpu.kernels import ATEN


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operators and without composites, but for those the table knows (linear, ...)."""
    with steps_untraced(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its pytree classes
        result: ExportedProgram = program.run_decompositions(table())
    return result


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """How operators decompose, but for those of the operator table."""
    return {op: rule for op, rule in dict(default_decompositions()).items() if str(op) not in ATEN} | _OURS


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    dims = list(range(x.dim())) if dim is None else dim
    if ord == 2 and dtype is None:
        return (x * x).sum(dims, keepdim).sqrt()
    if ord == 1 and dtype is None:
        return x.abs().sum(dims, keepdim)
    if ord == math.inf and dtype is None:
        return x.abs().amax(dims, keepdim)
    return NotImplemented


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    if step != 1:  # what stays and what is written lie side by side, and each place takes one of them
        places = torch.arange(x.shape[dim])
        written = torch.arange(first, last, step)
        return torch.cat([x, src], dim).index_select(
            dim, places.index_put([written], places.numel() + torch.arange(written.numel()))
        )
    last = max(first, last)
    parts = [(x, 0, first), (src, 0, src.shape[dim]), (x, last, x.shape[dim])]
    return torch.cat([t.narrow(dim, start, stop - start) for t, start, stop in parts if stop > start], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Any:
    index %= x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, index, index + 1)


def _col2im(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows are added up by a transposed convolution whose weights put each element of a window in its place."""
    if x.dim() == 2:
        return _col2im(x[None], output_size, kernel_size, dilation, padding, stride)[0]
    taps = math.prod(kernel_size)
    channels = x.shape[-2] // taps
    grid = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip(output_size, padding, dilation, kernel_size, stride, strict=True)
    ]
    rest = [
        size + 2 * p - d * (k - 1) - 1 - (n - 1) * s
        for size, p, d, k, s, n in zip(output_size, padding, dilation, kernel_size, stride, grid, strict=True)
    ]
    weight = torch.eye(taps, dtype=x.dtype).reshape(taps, 1, *kernel_size).repeat(channels, 1, 1, 1)
    images = x.reshape(*x.shape[:-1], *grid)
    return torch.nn.functional.conv_transpose2d(images, weight, None, stride, padding, rest, channels, dilation)


def _cubic(size: int, extent: int, factor: float | None, align_corners: bool) -> Tensor:
    """The weights of a cubic resize from `extent` to `size`, (size, extent): four taps, a = -0.75, as torch has it."""
    if align_corners:
        step = (extent - 1) / (size - 1) if size > 1 else 0.0
        place = torch.arange(size) * step
    else:
        step = 1.0 / factor if factor else extent / size
        place = (torch.arange(size) + 0.5) * step - 0.5
    first = place.floor()
    a, along = -0.75, torch.arange(extent)
    weights = torch.zeros(size, extent)
    for tap in (-1, 0, 1, 2):
        d = (place - first - tap).abs()
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * d * a - 4 * a
        column = (first + tap).clamp(0, extent - 1)
        weights = weights + torch.where(d <= 1, near, far)[:, None] * (column[:, None] == along)
    return weights


def _bicubic(x: Tensor, size: Any, align_corners: bool, factors: Any) -> Tensor:
    """Rows, then columns, as products with constant weights."""
    height, width = x.shape[-2:]
    rows = _cubic(size[0], height, factors[0], align_corners)
    columns = _cubic(size[1], width, factors[1], align_corners)
    return rows @ (x @ columns.t())


def _bicubic_of_factors(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Tensor:
    size = output_size or [math.floor(n * f) for n, f in zip(x.shape[-2:], scale_factors, strict=True)]
    return _bicubic(x, size, align_corners, scale_factors or (None, None))


def _bicubic_of_size(
    x: Tensor, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _bicubic(x, output_size, align_corners, (scales_h, scales_w))


def _copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(x.dtype).expand(x.shape)


def _full_like(x: Tensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.full(x.shape, fill_value, dtype=dtype or x.dtype)


def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def _round_to(x: Tensor, *, decimals: int) -> Tensor:
    factor = 10.0**decimals
    return (x * factor).round() * (1 / factor)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of a quotient, half a turn further where x is negative; an axis by itself where x is 0."""
    turned = torch.where(x < 0, torch.where(y < 0, -math.pi, math.pi), 0.0)
    axis = y.sign() * (math.pi / 2)
    return torch.where(x == 0, axis, (y / torch.where(x == 0, 1.0, x)).atan() + turned)


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


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    x = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = x.shape[-2:]
    first = offset if offset >= 0 else -offset * columns
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    return x.flatten(-2).index_select(-1, first + torch.arange(count) * (columns + 1))


def _kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = (y.narrow(dim, k - 1, 1) for y in x.sort(dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kth_value(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _one_hot(places: Tensor, num_classes: int = -1) -> Any:
    if num_classes < 1:
        return NotImplemented
    return (places.unsqueeze(-1) == torch.arange(num_classes)).long()


MOST_WRITTEN = 16
"""Elements along a dimension that a scatter may write, each of which is a choice of its own."""


def _scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Any:
    """What is written last stays."""
    count, others = index.shape[dim], [d for d in range(x.dim()) if d != dim % x.dim()]
    if count > MOST_WRITTEN or any(index.shape[d] != x.shape[d] for d in others):
        return NotImplemented
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    here = torch.arange(x.shape[dim]).reshape(shape)
    for i in range(count):
        value = src.narrow(dim, i, 1) if isinstance(src, Tensor) else src
        x = torch.where(here == index.narrow(dim, i, 1), value, x)
    return x


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many boundaries are below."""
    apart = x.unsqueeze(-1)
    counted = (apart >= boundaries if right else apart > boundaries).sum(-1)
    return counted.int() if out_int32 else counted


_OURS = {
    torch.ops.aten.clamp.Tensor: _clamp,
    torch.ops.aten.round.decimals: _round_to,
    torch.ops.aten.atan2.default: _atan2,
    torch.ops.aten.var.correction: _variance,
    torch.ops.aten.var_mean.correction: _variance_and_mean,
    torch.ops.aten.diagonal.default: _diagonal,
    torch.ops.aten.median.dim: _median,
    torch.ops.aten.kthvalue.default: _kth_value,
    torch.ops.aten.one_hot.default: _one_hot,
    torch.ops.aten.scatter.value: _scatter,
    torch.ops.aten.scatter.src: _scatter,
    torch.ops.aten.bucketize.Tensor: _bucketize,
    torch.ops.aten.full_like.default: _full_like,
    torch.ops.aten.linalg_vector_norm.default: _vector_norm,
    torch.ops.aten.slice_scatter.default: _slice_scatter,
    torch.ops.aten.select_scatter.default: _select_scatter,
    torch.ops.aten.col2im.default: _col2im,
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.upsample_bicubic2d.vec: _bicubic_of_factors,
    torch.ops.aten.upsample_bicubic2d.default: _bicubic_of_size,
}
"""What torch has no decomposition for."""
