"""Ranges of values that calibration met: those that int8 and int16 represent with the least squared error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import INT16X4, SMALLEST_SCALE, Array, QParams
from q8ta_wgpu.ir.op import FLOAT_MAX
from q8ta_wgpu.passes.plan.storage import INT16, SLICE, WHOLE, Storage
from q8ta_wgpu.quantization.tuned import FEW, PEAKS, ROOM, WORTH

OF_ZEROS = 2.0**-30
"""The scale of what calibration met as zeros alone."""

LEAST_SPAN = SMALLEST_SCALE * 2.0**18
"""The largest magnitude of a value that has a scale of 16 bits, a normal float32, and room beyond what was met."""

_FAR_BELOW = 2.0**-64
"""The smallest scale of an output's weights, relative to the largest. Weights of zeros have it, so that products with
other scales stay normal float32 numbers."""

LARGEST_WEIGHT = 127
"""Steps of the largest weight of an output."""

_CANDIDATES = 64
"""Ends tried on each side."""

_TRIED = 16
"""Ranges, the best by the estimate, whose error is computed: an estimate knows no zero point."""

_BINS, _PARTS = 2048, 16
"""Bins in which values are counted, and into how many parts each is split where values reach further."""

_AT_ONCE = 1 << 16
"""Values that are counted at a time. They and their bin numbers fit a core's cache, so counting takes a third of the
time."""

_FARTHEST = 0.5
"""How far beyond what was met ends are tried, in its span."""


@dataclass
class Spread:
    """How far from zero values lie.

    Attributes:
        count: how many values are not zero.
        squares: the sum of their squares.
    """

    count: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, counts: Array, low: float, high: float) -> Spread:
        """That of values that are counted in equal bins of low..high."""
        middles = low + (np.arange(len(counts)) + 0.5) / len(counts) * (high - low)
        return cls(float(counts.sum()), float(counts @ middles**2))

    def reach(self, largest: float) -> float:
        """How far from zero 16 bits should hold values of which calibration met those up to `largest`.

        Of n normal numbers the largest is sqrt(2 ln n) deviations from zero. The room is ROOM for them. Up to as much
        again is left where few values are far larger than the others, as among squares and quotients: one that is
        clipped makes more noise than all that are rounded. Of few values the largest tells less, and the room is ROOM
        times as large.
        """
        if not 0.0 < self.squares < math.inf:
            return ROOM * largest
        normal = math.sqrt(2 * math.log(max(self.count, 2.0)) * self.squares / self.count)
        room = ROOM * largest / normal * (ROOM if self.count < FEW else 1.0)
        return largest * min(max(room, ROOM), ROOM**2)


class Peaks:
    """The smallest and the largest value of each item of a calibration, whatever number of tensors of it are met: all
    that share a scale.

    Attributes:
        of_items: the ends of each item.
    """

    def __init__(self) -> None:
        self.of_items: list[tuple[float, float]] = []
        self._ended = True

    def meet(self, low: float, high: float) -> None:
        """Widens the ends of the current item to those of one more tensor."""
        if not self._ended:
            lowest, highest = self.of_items.pop()
            low, high = min(low, lowest), max(high, highest)
        self.of_items.append((low, high))
        self._ended = False

    def end_item(self) -> None:
        """Lets what is met next belong to another item."""
        self._ended = True


class Range:
    """The values that were met, counted in equal bins from the smallest to the largest.

    Zeros, of which an activation may have many, are exact in every range and do not count.

    Args:
        storage: how the values will be stored. Of those in 16 bits only the number and the squares are summed.
        norm: the root of the sum of squares of an array.

    Attributes:
        low, high: the smallest and the largest value.
        whole: whether all were whole numbers, where they may be stored as such.
        peaks: the smallest and the largest value of each item.
        zeros: how many values were zero.
    """

    def __init__(self, storage: Storage, norm: Callable[[Array], float] = lambda x: float(np.linalg.norm(x))) -> None:
        self.storage, self._norm = storage, norm
        self.low, self.high = float("inf"), float("-inf")
        self.whole, self.peaks, self.zeros = storage == WHOLE, Peaks(), 0
        self._counts = np.zeros(_BINS)
        self._spread = Spread() if storage == INT16 else None
        self._best: tuple[float, float] | None = None

    @property
    def count(self) -> float:
        """How many values were met that are not zero."""
        return max(float(self._counts.sum()) - self.zeros, 0.0)

    def meet(self, x: Array) -> None:
        """Counts finite float32 values."""
        if not x.size:
            return
        x = in_memory_order(x)
        low, high = x.min(), x.max()
        self.peaks.meet(float(low), float(high))
        if self._spread is not None:
            self._spread.count += int(np.count_nonzero(x))
            self._spread.squares += self._norm(x) ** 2
        else:
            self._count(x, min(low, np.float32(self.low)), max(high, np.float32(self.high)))
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))

    def _count(self, x: Array, low: np.float32, high: np.float32) -> None:
        if float(high) - float(low) > FLOAT_MAX:  # no_scale says so
            return
        if self.low <= self.high and (float(low), float(high)) != (self.low, self.high):
            self._counts = _in_wider_bins(self._counts, np.float32(self.low), np.float32(self.high), low, high)
        self._counts += _counted(x, low, high)
        self.zeros += x.size - int(np.count_nonzero(x))
        self.whole = self.whole and bool((x == np.rint(x)).all())
        self._best = None

    def stored(self, storage: Storage) -> QParams:
        """Scale and zero point of a storage that shares none."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        if storage == INT16:
            return QParams(_scale(min(self._reach(), FLOAT_MAX), (2**16 - 1) / 2), 0, INT16X4)
        if self.low < self.high:
            low, high = farther(*self._best_range(), self.peaks, self.count)
        if storage == SLICE:
            return QParams(_scale(max(-low, high), 255 / 2), 0)
        if isinstance(storage, QParams):
            return QParams(min(_scale(high, 255), storage.scale), -128)
        if storage == WHOLE and self.whole:
            least, most = -128 - int(min(self.low, 0)), 127 - int(max(self.high, 0))
            if least <= most:
                unmet = -128 if self.low >= 0 else 127 if self.high <= 0 else 0
                return QParams(1.0, min(max(unmet, least), most))
        first, last = np.float32(low), np.float32(high)
        scale = _scale(last - first, 255)
        return QParams(scale, int(np.clip(-128 - np.rint(first / np.float32(scale)), -128, 127)))

    def _reach(self) -> float:
        """How far from zero 16 bits should hold values."""
        largest, spread = max(-self.low, self.high, 0.0), self._spread
        if spread is None:
            alike = self.low >= self.high
            spread = Spread(1.0, self.high**2) if alike else Spread.of(self._not_zero(), self.low, self.high)
        return spread.reach(largest)

    def _best_range(self) -> tuple[float, float]:
        if self._best is None:
            self._best = best_range(self._not_zero(), self.low, self.high, 255)
        return self._best

    def _not_zero(self) -> Array:
        """The counts without zeros."""
        counts = self._counts.copy()
        if self.low <= 0.0 <= self.high:
            at = min(int(-self.low / (self.high - self.low) * _BINS), _BINS - 1)
            counts[at] = max(counts[at] - self.zeros, 0.0)
        return counts


def in_memory_order(x: Array) -> Array:
    """The elements of an array in one dimension, as they lie in memory: what is transposed is not copied, which takes
    longer than to read it."""
    order = sorted(range(x.ndim), key=lambda dim: -x.strides[dim])
    return np.asarray(x.transpose(order).reshape(-1))


def no_scale(low: float, high: float) -> str:
    """Why float32 has no scale for a range: it is too close to zero, or too wide. Empty where it has one."""
    most = max(-low, high)
    if high - low > FLOAT_MAX:
        return (
            f"goes from {low:.2g} to {high:.2g} in the calibration, a wider range than float32 holds: bound it (clamp)"
        )
    if not 0 < most < LEAST_SPAN:
        return ""
    return (
        f"is at most {most:.2g} in the calibration, and float32 has no scale for values below {LEAST_SPAN:.2g}: "
        "multiply by a number before, and divide by it later"
    )


def scales_of_weights(largest: Array, steps: int) -> Array:
    """The float32 scales of outputs, by their largest weights, of which each is so many steps."""
    most = float(largest.max(initial=0.0))
    floor = max(most * _FAR_BELOW / steps, SMALLEST_SCALE) if most else OF_ZEROS
    return np.maximum(largest / steps, floor).astype(np.float32)


def _scale(span: float | np.float32, steps: float) -> float:
    """The float32 scale by which so many steps cover a span."""
    return max(float(np.float32(span) / np.float32(steps)), SMALLEST_SCALE) if span else OF_ZEROS


def _counted(x: Array, low: np.float32, high: np.float32) -> Array:
    """How many values lie in each bin from low to high."""
    found = np.zeros(_BINS + 1, np.int64)  # one more, for values on the upper end: they belong to the last bin
    if low == high:
        found[_BINS // 2] = x.size
        return found[:-1]
    for start in range(0, len(x), _AT_ONCE):
        bins = x[start : start + _AT_ONCE] - low
        bins /= high - low
        bins *= np.float32(_BINS)
        found += np.bincount(bins.astype(np.int64), minlength=_BINS + 1)
    found[-2] += found[-1]
    return np.asarray(found[:-1])


def _in_wider_bins(counts: Array, first: np.float32, last: np.float32, low: np.float32, high: np.float32) -> Array:
    """Counts in bins from `first` to `last`, in bins from low to high. Each bin is taken for several narrow ones."""
    if first == last:
        return np.asarray(_counted(np.full(1, first), low, high) * counts.sum())
    count = _BINS * _PARTS
    step = (last - first) / np.float32(count)
    middles = np.linspace(first, last, count + 1, dtype=np.float32)[:-1] + np.float32(0.5) * step
    edges = np.linspace(low, high, _BINS + 1, dtype=np.float32)
    places = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, _BINS - 1)
    return np.bincount(places, np.repeat(counts / _PARTS, _PARTS), _BINS)


def best_range(counts: Array, low: float, high: float, steps: int) -> tuple[float, float]:
    """The ends, each on its side of zero, with the least squared error of values counted in equal bins of [low, high]
    that are clipped to them and rounded to `steps` equal steps between them."""
    width = (high - low) / len(counts)
    x = low + width * (np.arange(len(counts)) + 0.5)
    sums = [np.concatenate(([0.0], np.cumsum(counts * x**power))) for power in range(3)]
    share = np.arange(1, _CANDIDATES + 1) / _CANDIDATES
    lows, highs = (np.sort(end * share) if end else np.zeros(1) for end in (min(low, 0.0), max(high, 0.0)))

    def clipped(part: list[Array], end: Array) -> Array:
        n, first, second = part
        return np.asarray(second - 2 * end * first + end**2 * n)

    below = [s[np.clip(np.rint((lows - low) / width).astype(int), 0, len(counts))] for s in sums]
    above = [s[np.clip(np.rint((highs - low) / width).astype(int), 0, len(counts))] for s in sums]
    clipping = clipped(below, lows)[:, None] + clipped([s[-1] - a for s, a in zip(sums, above, strict=True)], highs)
    inside = above[0] - below[0][:, None]
    step = (highs - lows[:, None]) / steps
    estimate = (clipping + inside * step**2 / 12).reshape(-1)
    best = np.argsort(estimate)[:_TRIED]
    errors = [_error(counts, x, lows[i // len(highs)], step.reshape(-1)[i], steps) for i in best]
    whole = _error(counts, x, lows.min(), (highs.max() - lows.min()) / steps, steps)
    if whole <= WORTH * min(errors):
        return float(lows.min()), float(highs.max())
    row, column = divmod(int(best[np.argmin(errors)]), len(highs))
    return float(lows[row]), float(highs[column])


def farther(low: float, high: float, peaks: Peaks, count: float) -> tuple[float, float]:
    """The ends of a range, farther out where other inputs are likely to be, unless values are clipped there.

    Args:
        low, high: the ends.
        peaks: of the items that were met.
        count: how many values were met that are not zero.
    """
    if len(peaks.of_items) < PEAKS:
        return low, high
    lows, highs = zip(*peaks.of_items, strict=True)
    each, span = count / len(lows), max(highs) - min(lows)
    above = _beyond(highs, each, span) if high >= max(highs) else 0.0
    below = _beyond([-end for end in lows], each, span) if low <= min(lows) else 0.0
    return low - below, high + above


def _beyond(peaks: Sequence[float], each: float, span: float) -> float:
    """How far a range should reach beyond the largest value that was met, for the least squared error over other
    items.

    Of n items the next one has the largest value with a chance of 1/(n + 1), which is farther by some amount b, as far
    as the largest values lie apart: their tail is taken for exponential. So a range that reaches t farther clips 2 b^2
    exp(-t/b) / (n + 1) of squared error, and each of its steps is coarser.

    Args:
        peaks: the largest value of each item.
        each: how many values an item has that are not zero.
        span: from the smallest to the largest value that was met.
    """
    found = sorted(peaks, reverse=True)
    if found[0] <= 0:
        return 0.0
    count = PEAKS // 4
    apart = sum((i + 1) * (found[i] - found[i + 1]) for i in range(count)) / count
    if apart <= 0:
        return 0.0
    farther = np.linspace(0, _FARTHEST, _CANDIDATES) * span
    rounding = each * ((span + farther) / 255) ** 2 / 12
    clipping = 2 * apart**2 * np.exp(-farther / apart) / (len(found) + 1)
    return float(farther[np.argmin(rounding + clipping)])


def _error(counts: Array, x: Array, low: float, step: float, steps: int) -> float:
    """The squared error of the range with its zero point rounded."""
    zero = np.rint(low / step)
    return float(counts @ (np.clip(np.rint(x / step), zero, zero + steps) * step - x) ** 2)
