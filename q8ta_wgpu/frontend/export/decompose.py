"""Decomposes operators that the table lacks into those it has, mostly by torch's own decompositions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram, default_decompositions

from q8ta_wgpu.frontend.export.modes import quietly
from q8ta_wgpu.frontend.export.pairs import pairs_of_complex
from q8ta_wgpu.frontend.export.resizing import RESIZING
from q8ta_wgpu.frontend.export.rules import ARITHMETIC
from q8ta_wgpu.frontend.export.tracing import torch_lock, traced
from q8ta_wgpu.importing.import_table import ATEN


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operators, complex tensors and composite operators, except for composites that the
    table has (linear, ...)."""
    with torch_lock(), quietly():  # torch warns about its own pytree classes
        result = traced(lambda: program.run_decompositions(table()))
        pairs_of_complex(result, table())
    return result


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions of operators that the operator table lacks."""
    return {op: rule for op, rule in dict(default_decompositions()).items() if str(op) not in ATEN} | _OURS


def own_rule(op: Any) -> Callable[..., Any]:
    """Our decomposition of a composite, which torch decomposes itself and about which it asks no table; else the
    operator itself."""
    composite = isinstance(op, torch._ops.OpOverload) and op._can_decompose()
    rule: Callable[..., Any] = _OURS.get(op, op) if composite else op
    return rule


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    if step != 1:  # each index takes its element of x or of src, which are concatenated
        indices = torch.arange(x.shape[dim])
        written = torch.arange(first, last, step)
        return torch.cat([x, src], dim).index_select(
            dim, indices.index_put([written], indices.numel() + torch.arange(written.numel()))
        )
    last = max(first, last)
    slices = [(x, 0, first), (src, 0, src.shape[dim]), (x, last, x.shape[dim])]
    return torch.cat([t.narrow(dim, start, stop - start) for t, start, stop in slices if stop > start], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Any:
    """torch's own writes by a mask, over every element of x."""
    index %= x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, index, index + 1)


def _identity(size: int, dtype: torch.dtype) -> Tensor:
    """torch.eye. torch's own decomposition of sizes from 256 on needs a range of uint16, which torch cannot compute."""
    indices = torch.arange(size)
    return (indices.unsqueeze(1) == indices).to(dtype)


def _col2im(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Sums overlapping windows by a transposed convolution. Its weights are 1 for the position of each element in its
    window."""
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
    weight = _identity(taps, x.dtype).reshape(taps, 1, *kernel_size).repeat(channels, 1, 1, 1)
    images = x.reshape(*x.shape[:-1], *grid)
    return torch.nn.functional.conv_transpose2d(images, weight, None, stride, padding, rest, channels, dilation)


def _unfold_backward(x: Tensor, input_sizes: Any, dim: int, size: int, step: int) -> Tensor:
    """Sums overlapping windows of one dimension in the same way: the overlap-add of istft."""
    windows = x.movedim(dim, -1)
    whole = windows.reshape(-1, *windows.shape[-2:])
    summed = torch.nn.functional.conv_transpose1d(whole, _identity(size, x.dtype).unsqueeze(1), stride=step)
    padded = torch.nn.functional.pad(summed, [0, input_sizes[dim] - summed.shape[-1]])
    return padded.reshape(*windows.shape[:-2], input_sizes[dim]).movedim(-1, dim)


def _copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(x.dtype).expand(x.shape)


def _full_like(x: Tensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.full(x.shape, fill_value, dtype=dtype or x.dtype)


def _empty(size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Zeros for memory that is written before it is read. Undefined values would be observed by calibration."""
    return torch.full(size, 0, dtype=dtype or torch.get_default_dtype())


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    x = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = x.shape[-2:]
    first = offset if offset >= 0 else -offset * columns
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    return x.flatten(-2).index_select(-1, first + torch.arange(count) * (columns + 1))


def _as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """as_strided of a tensor without gaps in memory: its elements as one row, indexed by the result's strides."""
    start: Any = 0 if storage_offset is None else storage_offset - x.storage_offset()
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    ordered = x.permute(order)
    if not _is_row(ordered.shape, ordered.stride()):
        return NotImplemented
    if _is_row(size, stride):
        whole = start == 0 and math.prod(size) == x.numel()
        return ordered.reshape(size) if whole else ordered.reshape(-1).narrow(0, start, math.prod(size)).view(size)
    indices = torch.arange(start, start + 1)
    for n, step in zip(size, stride, strict=True):
        indices = (indices.unsqueeze(-1) + torch.arange(n) * step).flatten()
    return ordered.reshape(-1).index_select(0, indices).view(size)


def _is_row(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements follow each other in memory, the last dimension first."""
    return all(n == 1 or step == math.prod(size[i + 1 :]) for i, (n, step) in enumerate(zip(size, stride, strict=True)))


def _one_hot(indices: Tensor, num_classes: int = -1) -> Any:
    if num_classes < 1:
        return NotImplemented
    return (_looked_up(indices, num_classes).unsqueeze(-1) == torch.arange(num_classes)).long()


def _looked_up(index: Tensor, size: int) -> Tensor:
    """Indices of `size` rows, looked up in a table of the rows' numbers. What reads them compares them with these, and
    would leave out an index that has no row, where torch raises. Inputs that are looked up are checked before a call.
    """
    found = torch.arange(size).index_select(0, index.reshape(-1))
    return found if index.dim() == 1 else found.reshape(index.shape)


MOST_WRITTEN = 16
"""The most elements along a dimension that a scatter may write. Each becomes a where."""


def _scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Any:
    """If several values are written to one index, the last one remains."""
    count, others = index.shape[dim], [d for d in range(x.dim()) if d != dim % x.dim()]
    if count > MOST_WRITTEN or any(index.shape[d] != x.shape[d] for d in others):
        return NotImplemented
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    here, index = torch.arange(x.shape[dim]).reshape(shape), _looked_up(index, x.shape[dim])
    for i in range(count):
        value = src.narrow(dim, i, 1) if isinstance(src, Tensor) else src
        x = torch.where(here == index.narrow(dim, i, 1), value, x)
    return x


def _added(index: Tensor, src: Tensor, size: int) -> Any:
    """Sums elements along the last dimension of `src` whose indices are equal. Floats are multiplied by a matrix of
    ones and zeros."""
    if index.numel() * size > MOST_COMPARED:
        return NotImplemented
    same = index.unsqueeze(-1) == torch.arange(size)
    if not src.is_floating_point():
        return torch.where(same, src.unsqueeze(-1), 0).sum(-2)
    here = same.to(src.dtype)
    return src @ here if index.dim() == 1 else (src.unsqueeze(-2) @ here).squeeze(-2)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    return _plus(x, dim, _looked_up(index.reshape(-1), x.shape[dim]), source, alpha)


def _plus(x: Tensor, dim: int, rows: Tensor, source: Tensor, alpha: float = 1) -> Any:
    """x plus what the elements of `source` with equal row numbers add up to. `rows` has the dimension `dim` last."""
    sums = _added(rows, source.movedim(dim, -1), x.shape[dim])
    return sums if sums is NotImplemented else torch.add(x, sums.movedim(-1, dim), alpha=alpha)


def _index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """index_put that accumulates along one dimension, as index_add."""
    named = [dim for dim, index in enumerate(indices) if index is not None]
    if not accumulate or len(named) != 1 or indices[named[0]].dim() != 1:
        return NotImplemented
    (dim,) = named
    shape = [len(indices[dim]) if d == dim else size for d, size in enumerate(x.shape)]
    rows = torch.arange(x.shape[dim])[indices[dim]]  # as _looked_up, but indices may count from the end
    return _plus(x, dim, rows, values.expand(shape))


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    beside = [d for d in range(x.dim()) if d != dim % x.dim()]
    if any(index.shape[d] != x.shape[d] for d in beside):
        return NotImplemented
    return _plus(x, dim, _looked_up(index.movedim(dim, -1), x.shape[dim]), src[tuple(slice(n) for n in index.shape)])


_REDUCTIONS: Mapping[str, tuple[Any, Callable[[Tensor], Any], Any]] = {
    "amax": (torch.amax, lambda src: src.amin(-1, keepdim=True).unsqueeze(-1), torch.maximum),
    "amin": (torch.amin, lambda src: src.amax(-1, keepdim=True).unsqueeze(-1), torch.minimum),
    "prod": (torch.prod, lambda src: 1, torch.mul),
}
"""Of each way to reduce: how elements are reduced, what changes nothing among them, and how two tensors are reduced."""


def _scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Any:
    """Reduces the elements that are written to one index, with that of x if `include_self`. In the place of those that
    are written to others stands one that changes nothing. What nothing is written to stays."""
    if reduce == "sum" and include_self:
        return _scatter_add(x, dim, index, src)
    beside = [d for d in range(x.dim()) if d != dim % x.dim()]
    if not x.dim() or not index.numel() or any(index.shape[d] != x.shape[d] for d in beside):
        return NotImplemented
    if index.numel() * x.shape[dim] > MOST_COMPARED:
        return NotImplemented
    own, src = x.movedim(dim, -1), src[tuple(slice(n) for n in index.shape)].movedim(dim, -1)
    rows = _looked_up(index.movedim(dim, -1), x.shape[dim])
    same = rows.unsqueeze(-1) == torch.arange(x.shape[dim])
    if reduce in _REDUCTIONS:
        reduced, nothing, of_two = _REDUCTIONS[reduce]
        found = reduced(torch.where(same, src.unsqueeze(-1), nothing(src)), -2)
        found = of_two(own, found) if include_self else found
    else:
        found, count = _added(rows, src, x.shape[dim]), same.sum(-2).to(src.dtype)
        found, count = (own + found, count + 1) if include_self else (found, count.clamp(min=1))
        if reduce == "mean":
            found = torch.div(found, count, rounding_mode=None if found.is_floating_point() else "floor")
    return torch.where(same.any(-2), found, own).movedim(-1, dim)


MOST_COMPARED = 1 << 24
"""The most pairs of indices that an index_add or a scatter_reduce may compare."""

_OURS = {
    **ARITHMETIC,
    **RESIZING,
    torch.ops.aten.diagonal.default: _diagonal,
    torch.ops.aten.as_strided.default: _as_strided,
    torch.ops.aten.one_hot.default: _one_hot,
    torch.ops.aten.index_add.default: _index_add,
    torch.ops.aten.index_put.default: _index_put,
    torch.ops.aten.scatter_add.default: _scatter_add,
    torch.ops.aten.scatter_reduce.two: _scatter_reduce,
    torch.ops.aten.scatter.value: _scatter,
    torch.ops.aten.scatter.src: _scatter,
    torch.ops.aten.full_like.default: _full_like,
    torch.ops.aten.empty.memory_format: _empty,
    torch.ops.aten.slice_scatter.default: _slice_scatter,
    torch.ops.aten.select_scatter.default: _select_scatter,
    torch.ops.aten.col2im.default: _col2im,
    torch.ops.aten.unfold_backward.default: _unfold_backward,
    torch.ops.aten.copy.default: _copy,
}
"""Decompositions of operators for which torch has none, or a worse one."""
