"""Rounds values and weights as the observers of a calibrated module ask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver
from q8ta_wgpu.frontend.calibrate.stored import LIMITS, Stored
from q8ta_wgpu.kernels.attention.attention import COARSE
from q8ta_wgpu.quantization.stored import Width


def known_scales(observed: GraphModule) -> dict[tuple[str, bool], tuple[float, int]]:
    """Scale and zero point of each observer of whole tensors by what it has met so far. Keys are the target of the
    observer's calls and whether its range may clip values."""
    found: dict[tuple[str, bool], tuple[float, int]] = {}
    observer: Any
    for name, observer in observed.named_children():
        if hasattr(observer, "calculate_qparams") and getattr(observer, "ch_axis", -1) < 0:
            for clips in (False, True) if isinstance(observer, RangeObserver) else (True,):
                observer.clips = clips
                scale, zero = observer.calculate_qparams()
                found[name, clips] = float(scale), int(zero)
    return found


class Rounder:
    """Rounds values as observers ask, each observer asked once.

    Args:
        known: scales and zero points, as of `known_scales`, that are used instead of those that an observer gives now.
        weights: weights and their rounded values, which are kept here; several rounders may share them.
        whole: values whose ranges clip nothing; also an attribute.
    """

    def __init__(
        self,
        known: Mapping[tuple[str, bool], tuple[float, int]],
        weights: dict[Node, tuple[Tensor, Tensor]],
        whole: frozenset[Stored] = frozenset(),
    ) -> None:
        self._known, self.whole = known, whole
        self._found: dict[tuple[Stored, Width], tuple[float, int]] = {}
        # As tensors: one takes as long to make as a small value to round.
        self._scales: dict[tuple[Stored, Width], Tensor] = {}
        self._weights = weights

    def scale(self, stored: Stored, width: Width) -> tuple[float, int]:
        """Scale and zero point of values at a width."""
        if (stored, width) not in self._found:
            met = str(stored.nodes[0].target), self.let_clip(stored)
            if width == stored.width and met in self._known:
                self._found[stored, width] = self._known[met]
            else:
                scale, zero = (stored.observer if width == stored.width else stored.wide).calculate_qparams()
                self._found[stored, width] = float(scale), int(zero)
        return self._found[stored, width]

    def let_clip(self, stored: Stored) -> bool:
        """Tells an observer whether the range of its values may clip; returns that."""
        if not isinstance(stored.observer, RangeObserver):
            return True
        stored.observer.clips = stored not in self.whole
        return stored.observer.clips

    def rounded(self, stored: Stored, value: Tensor, width: Width) -> Tensor:
        """A value as it is stored at a width."""
        if width == "float32" or value.dtype != torch.float32:
            return value
        scale, zero = self.scale(stored, width)
        if (stored, width) not in self._scales:
            self._scales[stored, width] = torch.tensor(scale)
        if not math.isfinite(value.sum()):  # of a quotient of what was rounded to zeros
            value = torch.nan_to_num(value, 0.0, math.inf, -math.inf)
        return on_steps(value, self._scales[stored, width], zero, *LIMITS[width])

    def weight(self, node: Node, value: Tensor, observer: Any) -> Tensor:
        """A weight on the steps of its channels."""
        before, rounded = self._weights.get(node, (None, value))
        if before is None or before.data_ptr() != value.data_ptr():  # of the same parameter each run detaches another
            rounded = on_channels_steps(value, observer)
            self._weights[node] = value, rounded
        return rounded


def on_steps(value: Tensor, scale: Tensor, zero: int, low: int, high: int) -> Tensor:
    """Finite float32 values, rounded to steps from `low` to `high`. The result has the bits of torch's fake_quantize,
    which takes eight times as long. `scale` is float32 and is broadcast."""
    steps = value.mul(scale.reciprocal()).round_().clamp_(low - zero, high - zero)
    return steps.add_(0.0).mul_(scale)  # -0 becomes 0, as whole numbers have it


def on_channels_steps(weight: Tensor, observer: Any) -> Tensor:
    """A weight rounded as its observer says."""
    if isinstance(observer, PerChannelGroupObserver):
        return observer.rounded(weight)
    scale, _ = observer.calculate_qparams()  # symmetric
    shape = [-1 if axis == observer.ch_axis else 1 for axis in range(weight.dim())]
    return on_steps(weight, scale.float().reshape(shape), 0, observer.quant_min, observer.quant_max)


def shares_in_steps(scores: Tensor) -> Tensor:
    """The shares of an attention as kernels compute them from its scores: distances from the largest score of a row are
    rounded to steps, and so are the weights that follow from them."""
    largest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)  # finite where all are masked
    weights = (scores - largest).mul_(COARSE.steps).round_().mul_(1 / COARSE.steps).exp_().mul_(COARSE.levels).round_()
    return weights.div_(weights.sum(-1, keepdim=True).clamp(min=1.0))
