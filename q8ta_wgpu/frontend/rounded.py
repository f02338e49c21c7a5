"""Values as they are rounded, the calls that read them, and how an error of one changes the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from q8ta_wgpu.ir.graph import QParams

_AT_ONCE = 1 << 16
"""The number of products that are summed in float32; such sums are added up in float64."""


class Noted(torch.autograd.Function):
    """Gives a value as it is. In the backward pass it notes by how much an error of the value would change the outputs,
    to first order."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, note: Callable[[float], None], error: Tensor) -> Tensor:
        """The value."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(error)
        ctx.note = note
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient; zeros where it is not finite, as behind a root of negative elements that a where leaves out:
        autograd multiplies its slope, NaN, by 0."""
        if gradient is not None:
            if not math.isfinite(gradient.sum()):
                gradient = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
            (error,) = ctx.saved_tensors
            change = _dot(gradient, error)
            if not math.isfinite(change):  # of a root of negative elements that a where leaves out
                change = _dot(gradient, torch.nan_to_num(error, 0.0, 0.0, 0.0))
            ctx.note(change)
        return gradient, None, None


def _dot(a: Tensor, b: Tensor) -> float:
    """The sum of products of two tensors' elements. Slices are summed in float32 and added up in float64: a sum of many
    float32 numbers is inexact, and one in float64 would first write all products to memory."""
    pairs = zip(*(torch.split(x.reshape(-1), _AT_ONCE) for x in (a, b)), strict=True)
    return sum(float(torch.dot(*pair)) for pair in pairs)


def rounded(value: Tensor, q: QParams) -> Tensor:
    """Float32 values on the steps of a scale. They have the bits of fake_quantize, which takes eight times as long."""
    low, high = q.range
    if not math.isfinite(value.sum()):  # of a quotient of what was rounded to zeros
        value = torch.nan_to_num(value, 0.0, math.inf, -math.inf)
    scale = torch.tensor(q.scale)
    steps = value.mul(scale.reciprocal()).round_().clamp_(low - q.zero, high - q.zero)
    return steps.add_(0.0).mul_(scale)  # -0 becomes 0, as whole numbers have it


def within_range(target: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with the indices of elements that it reads clamped to those that there are."""
    match target, args:
        case (("aten.gather.default" | "aten.index_select.default"), (Tensor() as x, int(dim), Tensor() as at, *rest)):
            return x, dim, at.clamp(0, x.shape[dim] - 1), *rest
        case "aten.index.Tensor", (Tensor() as x, [*indices]):
            pairs = zip(indices, x.shape, strict=False)  # masks were refused: how much they give depends on the data
            return x, [at if at is None else at.clamp(-rows, rows - 1) for at, rows in pairs]
        case "aten.embedding.default", (Tensor() as table, Tensor() as at, *rest):
            return table, at.clamp(0, len(table) - 1), *rest
        case _:
            return args
