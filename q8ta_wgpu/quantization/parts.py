"""The noise of outputs: how far they are from exact ones, as ratios of powers, part by part.

One ratio over boxes of hundreds and scores of 0 to 1 says nothing about the scores, nor does one over items of all
sizes say anything about small items. So an output is judged

* as a whole;
* by what was joined to make it, such as boxes and scores (`passes/plan/joins.py` says which elements are whose);
* by its channels (dimension 1, and the last one but of images), its items (dimension 0), and the channels of each item,
  where the largest of them are more than thirty times as large as the smallest: those of like size are one part, in
  which each counts as much as another.

What takes the place of masked elements is no signal in any of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.tuned import FILL, GOOD, NUMBERS, SEVERAL

APART = GOOD**-0.5
"""By what factor channels or items differ at least in size if a ratio over all of them hides the small ones: good noise
of all is as large as these."""

_NOTHING = 2.0**-24
"""The size of channels or items, relative to the largest, up to which they may be what float32 leaves of zeros."""

_LARGE = 1e4
"""A number that takes the place of others is negative, as for logits that are not allowed, or at least as large as
masks are written in float16."""

_LEAST = 1e-300
"""What a signal without power counts as."""


@dataclass(frozen=True)
class Part:
    """A part of an output, to say which one it is.

    Attributes:
        output: the index of the output.
        name: what part it is, as "channels of size 0.02"; empty of a whole output.
        kind: "whole", "joined", or what is of like size in it, as "channels".
        is_float: whether the output holds floats, not integers or bools.
        count: how many numbers an item has of the output.
        is_silent: whether all of it is zeros.
    """

    output: int
    name: str
    kind: str
    is_float: bool
    count: int
    is_silent: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the network itself tells it from others, as a whole output, or what was joined to make it."""
        return self.kind in ("whole", "joined")


class Judge:
    """Judges outputs by their parts, which follow from the exact outputs.

    Args:
        exact: of each item (call) its outputs, arrays of any shapes and dtypes. Dimension 0 may be a batch.
        origins: for each output None, or which value each of its elements was moved from: integers that broadcast to
            the output, and the names of the values that they count. Outputs of other sizes are not judged by it.

    Attributes:
        parts: all parts, those of the first output first; of each output the whole comes first.
    """

    def __init__(
        self, exact: Sequence[Sequence[Array]], origins: Sequence[tuple[Array, Sequence[str]] | None] = ()
    ) -> None:
        each = list(zip(*exact, strict=True))
        known = [*origins, *[None] * len(each)][: len(each)]
        self._outputs = [_Output(values, origin) for values, origin in zip(each, known, strict=True)]
        self.parts = [
            Part(i, name, way.kind, output.is_float, int(output.exact[0].size), not signals[way.parts[name]].any())
            for i, output in enumerate(self._outputs)
            for way, signals in zip(output.ways, output.signals, strict=True)
            for name in way.names
        ]

    def noise(self, found: Sequence[Sequence[Array]]) -> list[float]:
        """The noise of each part relative to its signal, as a ratio of powers over all items. Of channels, and of items
        of like size, it is the mean of their ratios. For outputs of integers or bools, the share of elements that
        differ.

        Args:
            found: of each item its outputs, as inexact as they are, in the shapes of the exact ones.
        """
        pairs = zip(self._outputs, zip(*found, strict=True), strict=True)
        ratios = (ratio for output, given in pairs for ratio in output.noise(given))
        return [ratio if math.isfinite(ratio) else math.inf for ratio in ratios]

    def weights(self, limits: Mapping[int, float]) -> list[list[Array]]:
        """How much the squared error of each element counts: squared errors times weights add up to the noise of some
        parts, each relative to a limit, by the index of the part.

        Returns:
            For each item, for each output, an array that broadcasts to the output.
        """
        by_output = [
            output.weights({self.parts[i].name: most for i, most in limits.items() if self.parts[i].output == place})
            for place, output in enumerate(self._outputs)
        ]
        return [list(item) for item in zip(*by_output, strict=True)]


def noise(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> list[float]:
    """The noise of whole outputs, as `Judge.noise` gives it."""
    judge = Judge(exact)
    return [r for part, r in zip(judge.parts, judge.noise(found), strict=True) if part.kind == "whole"]


def decibels(ratio: float) -> float:
    """The signal-to-noise ratio in dB, at most 120, from the ratio of noise to signal."""
    return min(120.0, -10 * math.log10(max(ratio, 1e-30))) if ratio < math.inf else -300.0


def are_apart(x: Array) -> bool:
    """Whether the items of a batch, or the channels of each item, differ so much in size that an output of this kind
    would be judged by them. Of rows of numbers these are the rows: a number alone is no channel."""
    ways = _alike([x.astype(np.float64) ** 2], [np.ones(x.shape, bool)]) if np.issubdtype(x.dtype, np.floating) else []
    return any(way.kind.startswith(("items", "channels of items")) for way in ways)


def fill_of(values: Sequence[Array]) -> float | None:
    """The number that takes the place of masked elements in a value, by its values in several items: two elements or
    more have it, and it is far from all others. None if there is none."""
    values = [x for x in values if x.size and np.issubdtype(x.dtype, np.floating)]
    if not values:
        return None
    least, most = min(float(x.min()) for x in values), max(float(x.max()) for x in values)
    for fill, far in ((least, least < 0), (most, most >= _LARGE)):
        # Most values have their extreme once, which is found without a copy.
        if not far or sum(int(np.count_nonzero(x == fill)) for x in values) < 2:
            continue
        others = [x[x != fill] for x in values]
        largest = max((float(np.abs(x).max()) for x in others if x.size), default=0.0)
        if 0 < FILL * largest < abs(fill):
            return fill
    return None


class _Output:
    """One output in all items, and the ways to take it apart."""

    def __init__(self, exact: Sequence[Array], origins: tuple[Array, Sequence[str]] | None) -> None:
        self.exact, self._is_scalar = [np.atleast_1d(x) for x in exact], exact[0].ndim == 0
        self.is_float = bool(np.issubdtype(exact[0].dtype, np.floating))
        self.fill = fill_of(exact) if self.is_float else None
        self.ways = [_Way("whole", [np.zeros((1,) * x.ndim, np.int64) for x in self.exact], {"": np.zeros(1, int)})]
        powers = [self._squares(x, np.zeros((), x.dtype)) for x in self.exact]
        if self.is_float:
            counts = [self._counted(x) for x in self.exact]
            self.ways += _joined(self.exact, origins)
            self.ways += _alike(powers, counts)
        signals = powers if self.is_float else [np.ones(x.shape) for x in self.exact]
        self.signals = [way.sums(signals) for way in self.ways]

    def _counted(self, exact: Array) -> Array:
        """Which elements are signal: not those that are masked."""
        return np.ones(exact.shape, bool) if self.fill is None else np.asarray(exact != self.fill)

    def _squares(self, exact: Array, found: Array) -> Array:
        """Squared errors, float64."""
        if self.fill is None:
            return np.asarray((found.astype(np.float64) - exact) ** 2)
        errors = np.zeros(exact.shape)
        return np.subtract(found, exact, out=errors, where=self._counted(exact), dtype=np.float64) ** 2

    def _errors(self, found: Sequence[Array]) -> list[Array]:
        pairs = [(x, y.reshape(x.shape)) for x, y in zip(self.exact, found, strict=True)]
        return [self._squares(x, y) if self.is_float else np.asarray(x != y, np.float64) for x, y in pairs]

    def noise(self, found: Sequence[Array]) -> list[float]:
        errors, ways = self._errors(found), zip(self.ways, self.signals, strict=True)
        return [ratio for way, signals in ways for ratio in way.ratios(way.sums(errors), signals)]

    def weights(self, limits: Mapping[str, float]) -> list[Array]:
        """The sum of the weights of parts, for each item, relative to limits by their names."""
        found = [np.zeros(()) for _ in self.exact]
        for way, signals in zip(self.ways, self.signals, strict=True):
            for name in set(way.names).intersection(limits):
                found = [a + w / limits[name] for a, w in zip(found, way.weights(name, signals), strict=True)]
        if self.fill is not None:
            found = [w * self._counted(x) for w, x in zip(found, self.exact, strict=True)]
        return [w.reshape(()) for w in found] if self._is_scalar else found


@dataclass
class _Way:
    """One way to take an output apart. Its elements belong to members, whose ratios are averaged over a part.

    Attributes:
        kind: as of `Part`.
        member: for each item the number of each element's member, an array that broadcasts to the output.
        parts: by the name of a part, the numbers of its members.
    """

    kind: str
    member: Sequence[Array]
    parts: dict[str, Array]

    @property
    def names(self) -> Sequence[str]:
        return list(self.parts)

    def sums(self, values: Sequence[Array]) -> Array:
        """The sum of values over each member."""
        count = 1 + max(int(x.max()) for x in self.member)
        found = np.zeros(count)
        for x, value in zip(self.member, values, strict=True):
            alike = tuple(axis for axis, size in enumerate(x.shape) if size == 1)
            found += np.bincount(x.reshape(-1), value.sum(alike).reshape(-1), count)
        return found

    def ratios(self, sums: Array, signals: Array) -> list[float]:
        """The ratio of each part."""
        return [float(np.mean(sums[own] / np.maximum(signals[own], _LEAST))) for own in self.parts.values()]

    def weights(self, name: str, signals: Array) -> list[Array]:
        """For each item, how much a squared error counts in a part's ratio."""
        own, each = self.parts[name], np.zeros(len(signals))
        each[own] = 1 / np.maximum(signals[own], _LEAST) / len(own)
        return [each[x] for x in self.member]


def _joined(exact: Sequence[Array], origins: tuple[Array, Sequence[str]] | None) -> list[_Way]:
    """An output by the values that were joined to make it."""
    if origins is None:
        return []
    numbers, names = origins
    present = np.unique(numbers)
    fits = all(x.ndim == numbers.ndim and np.broadcast_shapes(x.shape, numbers.shape) == x.shape for x in exact)
    if len(present) < 2 or not fits:
        return []
    member = np.searchsorted(present, numbers)
    parts = {names[number]: np.array([i]) for i, number in enumerate(present)}
    return [_Way("joined", [member] * len(exact), parts)]


def _channel_axes(rank: int) -> set[int]:
    """The dimensions that may count channels: dimension 1, and the last one, which counts columns of an image."""
    return {axis for axis in (1, rank - 1) if 0 < axis < rank and (axis, rank) != (3, 4)}


_MEMBERS: Mapping[str, Callable[[int], set[tuple[int, ...]]]] = {
    "channels": lambda rank: {(axis,) for axis in _channel_axes(rank)},
    "items": lambda rank: {(0,)} if rank > 1 else set(),
    "channels of items": lambda rank: {(0, axis) for axis in _channel_axes(rank) if rank > 2},
}
"""What may be judged apart: the dimensions that count it in an output of a rank."""


def _alike(powers: Sequence[Array], counts: Sequence[Array]) -> list[_Way]:
    """An output by channels, items and channels of items of like size; none of those that are all of like size, or have
    too few values."""
    rank = powers[0].ndim
    ways = [(kind, dims) for kind, found in _MEMBERS.items() for dims in sorted(found(rank))]
    found = list[_Way]()
    for kind, dims in ways:
        shapes = [tuple(size if axis in dims else 1 for axis, size in enumerate(x.shape)) for x in powers]
        if 0 not in dims and len(set(shapes)) > 1:
            continue
        begins = itertools.accumulate([0, *(math.prod(shape) if 0 in dims else 0 for shape in shapes)])
        member = [begin + np.arange(math.prod(s)).reshape(s) for begin, s in zip(begins, shapes, strict=False)]
        way = _Way(kind if dims[-1] < 2 else f"{kind} along dimension {dims[-1]}", member, {})
        values = way.sums([x.astype(np.float64) for x in counts])
        sizes = np.sqrt(way.sums(powers) / np.maximum(values, 1))
        order = [i for i in np.argsort(-sizes, kind="stable") if sizes[i] > _NOTHING * sizes.max()]
        if order and values[order].min() >= len(dims) * SEVERAL and sizes[order[0]] > APART * sizes[order[-1]]:
            way.parts = {_said(way.kind, own, sizes): np.array(own) for own in _bands(sizes, values, order)}
            found.append(way)
    return found


def _bands(sizes: Array, values: Array, order: Sequence[int]) -> list[list[int]]:
    """Members in order of their sizes, those together that are of like size. Parts of few values are joined to the
    larger ones before them."""
    bands = [[order[0]]]
    for i in order[1:]:
        few = values[bands[-1]].sum() < NUMBERS
        if few or sizes[bands[-1][0]] <= APART * sizes[i]:
            bands[-1].append(i)
        else:
            bands.append([i])
    if len(bands) > 1 and values[bands[-1]].sum() < NUMBERS:
        bands[-2:] = [bands[-2] + bands[-1]]
    return bands


def _said(kind: str, own: Sequence[int], sizes: Array) -> str:
    """The name of members of like size."""
    return f"{kind} of size {float(np.sqrt(np.mean(sizes[list(own)] ** 2))):.2g}"
