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

from q8ta_wgpu.kernels import ATEN


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operators and without composites, but for those the table knows (linear, ...)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its pytree classes
        result: ExportedProgram = program.run_decompositions(_table())
    return result


@functools.cache
def _table() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
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
    if step != 1:
        return NotImplemented
    first, last, _ = slice(start, end).indices(x.shape[dim])
    last = max(first, last)
    parts = [(x, 0, first), (src, 0, src.shape[dim]), (x, last, x.shape[dim])]
    return torch.cat([t.narrow(dim, start, stop - start) for t, start, stop in parts if stop > start], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Any:
    index %= x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, index, index + 1)


def _col2im(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows are added up by a transposed convolution whose weights put each element of a window in its place."""
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


def _copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(x.dtype).expand(x.shape)


_OURS = {
    torch.ops.aten.linalg_vector_norm.default: _vector_norm,
    torch.ops.aten.slice_scatter.default: _slice_scatter,
    torch.ops.aten.select_scatter.default: _select_scatter,
    torch.ops.aten.col2im.default: _col2im,
    torch.ops.aten.copy.default: _copy,
}
"""What torch has no decomposition for."""
