"""Observers: modules that see the values of calibration and say in which range a value is stored.

An observer's `calculate_qparams` returns scale and zero point, as torchao expects. The default range of an activation
is the one that int8 represents with the least squared error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from q8ta_wgpu.quantization.ranges import OF_ZEROS, Peaks, Spread, best_range, farther, scales_of_weights

_AT_ONCE = 1 << 16
"""Values that are counted at a time. They and their bin numbers fit a core's cache, so counting takes a third of the
time."""


def observer_of(model: GraphModule, node: Any) -> Any:
    """The observer that a node of a prepared module calls. None for nodes that call something else."""
    found = model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None
    return found if hasattr(found, "calculate_qparams") else None


def in_memory_order(x: Tensor) -> Tensor:
    """The elements of a tensor in one dimension, as they lie in memory: what is transposed is not copied, which takes
    longer than to read it."""
    strides = x.stride()
    return x.permute(sorted(range(x.dim()), key=lambda dim: -strides[dim])).reshape(-1)


def _not_of_zeros(low: float, high: float, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero point of a range. Of zeros alone torchao would take the smallest scale of all, whose products with
    others are no normal numbers."""
    return (torch.full_like(scale, OF_ZEROS) if low == high == 0 else scale), zero


class RangeObserver(HistogramObserver):  # type: ignore[misc]
    """torchao's histogram observer with another search for the range.

    torchao moves the ends inwards step by step. Here all pairs of ends on a grid are compared. The squared error of a
    range has two parts: rounding costs a twelfth of a squared step for each value inside, clipping costs the squared
    distance to the end for each value outside. Zeros are exact in every range, so they are not counted.

    Attributes:
        clips: whether values are clipped where that lowers their squared error.
        peaks: the smallest and the largest value of each item of the calibration.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.zeros, self.clips, self.peaks = 0, True, Peaks()
        self._best: tuple[float, float] | None = None  # of what was met so far; every reader asks for it

    def forward(self, x: Tensor) -> Tensor:
        """Counts a batch; returns it. Raises RuntimeError, as torchao's observers do, at NaN and infinities."""
        if not x.numel():
            return x
        values = in_memory_order(x.detach())
        low, high = torch.aminmax(values)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError("a value that is not finite has no range")
        self.peaks.meet(float(low), float(high))
        self.zeros += int(np.count_nonzero(values.numpy() == 0))  # a third of torch's count_nonzero
        if self.min_val > self.max_val:  # nothing was counted before
            counts = self._counts(values, low, high)
        else:
            before = self.histogram, self.min_val, self.max_val
            low, high = torch.min(low, self.min_val), torch.max(high, self.max_val)
            counts = self._combine_histograms(*before, self._counts(values, low, high), low, high)
        for buffer, value in ((self.histogram, counts), (self.min_val, low), (self.max_val, high)):
            buffer.copy_(value)
        self._best = None
        return x

    def _counts(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The counts of torch.histc, without its threads: on busy cores these take ten milliseconds for 200 values."""
        if low == high:
            return torch.histc(x, self.bins, min=float(low), max=float(high))
        values, least, width = x.numpy(), low.numpy(), high.numpy() - low.numpy()
        found = np.zeros(self.bins + 1, np.int64)  # one more, for values on the upper end: they belong to the last bin
        for start in range(0, len(values), _AT_ONCE):
            bins = values[start : start + _AT_ONCE] - least
            bins /= width
            bins *= np.float32(self.bins)
            found += np.bincount(bins.astype(np.int64), minlength=self.bins + 1)
        found[-2] += found[-1]
        return torch.from_numpy(found[:-1]).float()

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        low, high = float(self.min_val), float(self.max_val)
        if not low < high:
            qparams: tuple[Tensor, Tensor] = super().calculate_qparams()
            return _not_of_zeros(low, high, *qparams)
        ends = self._best_range(low, high) if self.clips else (min(low, 0.0), max(high, 0.0))
        ends = farther(*ends, self.peaks, max(float(self.histogram.sum()) - self.zeros, 0.0))
        found: tuple[Tensor, Tensor] = self._calculate_qparams(
            *(torch.tensor(end, device=self.min_val.device) for end in ends)
        )
        return found

    def _best_range(self, low: float, high: float) -> tuple[float, float]:
        """The ends within low..high that cost the least squared error."""
        if self._best is None:
            self._best = best_range(self._not_zero(low, high), low, high, self.quant_max - self.quant_min)
        return self._best

    def _not_zero(self, low: float, high: float) -> NDArray[np.float64]:
        """The histogram from low to high without zeros."""
        counts: NDArray[np.float64] = self.histogram.double().cpu().numpy()
        if low <= 0.0 <= high:
            at = min(int(-low / (high - low) * self.bins), self.bins - 1)
            counts[at] = max(counts[at] - self.zeros, 0.0)
        return counts

    @property
    def spread(self) -> Spread:
        """That of the values that were met."""
        low, high = float(self.min_val), float(self.max_val)
        return Spread.of(self._not_zero(low, high), low, high) if low < high else Spread(1.0, high**2)


class RoomyObserver(MinMaxObserver):  # type: ignore[misc]
    """The range that calibration met, with room beyond it. For values in 16 bits, which have steps to spare.

    Attributes:
        spread: of the values that were met.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.spread = Spread()

    def forward(self, x: Tensor) -> Tensor:
        """Widens the range to a batch's; returns it."""
        values = in_memory_order(x.detach())
        self.spread.count += int(np.count_nonzero(values.numpy()))
        self.spread.squares += float(torch.linalg.vector_norm(values)) ** 2
        found: Tensor = super().forward(x)
        return found

    def reset_min_max_vals(self) -> None:
        """Forgets what was met."""
        super().reset_min_max_vals()
        self.spread = Spread()

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        if self.min_val > self.max_val:  # nothing was met, of which torchao warns
            nothing: tuple[Tensor, Tensor] = super().calculate_qparams()
            return nothing
        largest = max(-float(self.min_val), float(self.max_val), 0.0)
        end = torch.full_like(self.max_val, min(self.spread.reach(largest), torch.finfo(torch.float32).max))
        found: tuple[Tensor, Tensor] = self._calculate_qparams(-end, end)
        return _not_of_zeros(-largest, largest, *found)


class PerChannelWeightObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
    """torchao's observer of weights, which reads an unchanged weight once, though each call of a network brings it.

    The name must begin with PerChannel, or torchao drops the axis.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: tuple[Tensor, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Widens the range of each channel so that it holds this weight; returns the weight."""
        if self._seen is None or self._seen[0] is not x or self._seen[1] != x._version:
            super().forward(x)
            self._seen = x, x._version
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale of each output, and zeros."""
        scale, zero = super().calculate_qparams()
        largest = torch.maximum(-self.min_val, self.max_val).double().numpy()
        return torch.from_numpy(scales_of_weights(largest, self.quant_max)).reshape(scale.shape), zero


class ShareObserver(RangeObserver):
    """The range of shares, such as a softmax gives: it begins at 0. Steps are at most `largest`."""

    def __init__(self, largest: float, **options: Any) -> None:
        super().__init__(**options)
        self.largest = largest

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        scale, zero = super().calculate_qparams()
        return torch.clamp(scale, max=self.largest), torch.full_like(zero, self.quant_min)


class WholeObserver(RangeObserver):
    """Stores whole numbers exactly, with a scale of 1, where the range that was met has at most 256 of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.whole, self.low, self.high = True, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        """Counts a batch; returns it. Raises RuntimeError at NaN and infinities."""
        counted: Tensor = super().forward(x)
        self.whole = self.whole and bool(torch.equal(x, x.round()))
        self.low, self.high = min(self.low, int(x.min())), max(self.high, int(x.max()))
        return counted

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        scale, zero = super().calculate_qparams()
        first, last = self.quant_min - self.low, self.quant_max - self.high
        if not self.whole or first > last:
            return scale, zero
        unmet = self.quant_min if self.low == 0 else self.quant_max if self.high == 0 else 0
        return torch.ones_like(scale), torch.full_like(zero, min(max(unmet, first), last))
