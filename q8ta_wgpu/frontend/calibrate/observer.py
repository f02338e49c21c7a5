"""The range of an activation: the one that int8 represents with the least squared error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.calibrate.ranges import ROOM, Peaks, best_range, farther
from q8ta_wgpu.frontend.calibrate.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

_AT_ONCE = 1 << 16
"""Values that are counted at a time: with their places they stay in a core's cache, which takes a third of the time."""


def observer_of(model: GraphModule, node: Any) -> Any:
    """The observer that a node of a prepared module calls; None of others."""
    found = model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None
    return found if hasattr(found, "calculate_qparams") else None


class RangeObserver(HistogramObserver):  # type: ignore[misc]
    """torchao's histogram with another search: over all pairs of ends on a grid, not greedily from outside in.

    The squared error of a range is what rounding costs inside, a twelfth of a squared step each, and what clipping
    costs outside. Both follow from three running sums, so that all pairs take one array operation. Zeros, of which an
    activation may have many, are exact in every range and not counted.

    Attributes:
        clips: whether values are clipped where that lowers their squared error.
        peaks: the smallest and the largest value of each item of the calibration.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.zeros, self.clips, self.peaks = 0, True, Peaks()

    def forward(self, x: Tensor) -> Tensor:
        """Counts a batch; returns it. Raises RuntimeError, as torchao's observers do, at NaN and infinities."""
        if not x.numel():
            return x
        low, high = torch.aminmax(x.detach())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError("a value that is not finite has no range")
        self.peaks.meet(float(low), float(high))
        self.zeros += int(np.count_nonzero(x.detach().numpy() == 0))  # a third of torch's count_nonzero
        if self.min_val > self.max_val:  # as it begins
            counts = self._counts(x.detach(), low, high)
        else:
            before = self.histogram, self.min_val, self.max_val
            low, high = torch.min(low, self.min_val), torch.max(high, self.max_val)
            counts = self._combine_histograms(*before, self._counts(x.detach(), low, high), low, high)
        for kept, found in ((self.histogram, counts), (self.min_val, low), (self.max_val, high)):
            kept.copy_(found)
        return x

    def _counts(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """torch.histc's numbers. It shares 200 values among threads, which takes ten milliseconds on busy cores."""
        if low == high:
            return torch.histc(x, self.bins, min=float(low), max=float(high))
        values, least, width = x.numpy().reshape(-1), low.numpy(), high.numpy() - low.numpy()
        found = np.zeros(self.bins + 1, np.int64)  # what falls on the upper end belongs to the last one
        for start in range(0, len(values), _AT_ONCE):
            places = values[start : start + _AT_ONCE] - least
            places /= width
            places *= np.float32(self.bins)
            found += np.bincount(places.astype(np.int64), minlength=self.bins + 1)
        found[-2] += found[-1]
        return torch.from_numpy(found[:-1]).float()

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        low, high = float(self.min_val), float(self.max_val)
        if not low < high:
            qparams: tuple[Tensor, Tensor] = super().calculate_qparams()
            return qparams
        ends = self._best_range(low, high) if self.clips else (min(low, 0.0), max(high, 0.0))
        ends = farther(*ends, self.peaks, max(float(self.histogram.sum()) - self.zeros, 0.0))
        found: tuple[Tensor, Tensor] = self._calculate_qparams(
            *(torch.tensor(end, device=self.min_val.device) for end in ends)
        )
        return found

    def _best_range(self, low: float, high: float) -> tuple[float, float]:
        counts = self.histogram.double().cpu().numpy()
        if low <= 0.0 <= high:
            at = min(int(-low / (high - low) * self.bins), self.bins - 1)
            counts[at] = max(counts[at] - self.zeros, 0.0)
        return best_range(counts, low, high, self.quant_max - self.quant_min)


class RoomyObserver(MinMaxObserver):  # type: ignore[misc]
    """The range that was met, with room around it."""

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        found: tuple[Tensor, Tensor] = self._calculate_qparams(ROOM * self.min_val, ROOM * self.max_val)
        return found


class PerChannelWeightObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
    """torchao's, which looks at a tensor once: each call of a network gives it the same weight. torchao drops the axis
    unless the class is called PerChannel something."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: tuple[Tensor, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Widens the ranges of the channels to a weight's; returns it."""
        if self._seen is None or self._seen[0] is not x or self._seen[1] != x._version:
            super().forward(x)
            self._seen = x, x._version
        return x


class ShareObserver(RangeObserver):
    """The range of shares of a whole, from 0 on, in steps of at most `largest`, which hold any share there is."""

    def __init__(self, largest: float, **options: Any) -> None:
        super().__init__(**options)
        self.largest = largest

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        scale, zero = super().calculate_qparams()
        return torch.clamp(scale, max=self.largest), torch.full_like(zero, self.quant_min)


class WholeObserver(RangeObserver):
    """Whole numbers, each of which has a step of its own where int8 has as many steps as the range that was met."""

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
