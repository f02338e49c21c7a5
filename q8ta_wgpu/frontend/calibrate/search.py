"""Chooses which values are stored in more than 8 bits: as few as possible, so that the outputs' noise is small enough.

A step widens one value for readers of one role. Steps are sorted: those that gain most for their cost come first.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.steps import Step, widths
from q8ta_wgpu.quantization.limits import SPARE, WITHIN
from q8ta_wgpu.quantization.steps import NOTHING
from q8ta_wgpu.quantization.stored import Width

_DECIBEL = 10**0.1
_NEARLY = 10**0.03
"""The noise that is allowed where the yardstick is out of reach, relative to the noise with every value widened."""

_GROUPS, _ROUNDS = 8, 2
"""At the end, groups of widened values are tried in 8 bits again: the number of groups in a round, and the number of
rounds. Groups of a later round are smaller."""

_FEW = 4
"""The number of groups if few runs are made, in one round."""

_DOUBTED = 10.0
"""By what factor predicted gains may be too large."""

_BRIEF = 1e8
"""The bytes that a network moves up to which a run takes so little time that none is spared."""

_SURE = 0.95
"""The predicted noise of steps that are simulated next, relative to the limit: a little less than is allowed."""

_DEAR = 0.05
"""The share of a network's traffic that takes noticeable time."""

_CLEAN = 1e-6
"""Noise to signal, 60 dB. Below it float32 gains nothing over int16 that would justify results that differ between
devices."""


@dataclass(frozen=True)
class Search:
    """A search for the fewest steps that suffice.

    Attributes:
        noise: a function of the values that are widened: the noise of each output relative to its signal, as a ratio of
            powers.
        wanted: the noise that each output should have.
        allowed: the noise that it may have if that is out of reach.
        traffic: what the network moves and computes, in bytes moved.
        few_runs: whether a simulation takes seconds.
        also: a function of the steps that are found: others that will be taken with them. A run with both may show at
            once that they suffice.
    """

    noise: Callable[[Mapping[Reading, Width]], list[float]]
    wanted: Sequence[float]
    allowed: Sequence[float]
    traffic: float
    few_runs: bool
    also: Callable[[Sequence[Step]], Sequence[Step]] = lambda _: ()

    def enough(self, every: Sequence[Step]) -> list[Step]:
        """The steps that are taken.

        The fewest first steps that suffice are found. Then groups of them that are not needed are left out, the most
        expensive first: predicted gains may be wrong, for example of a value that is divided by its own norm near zero.

        A group that costs as much as all other steps together, and noticeable time, is left out unless that loses more
        than a decibel. Steps to float32 are left out if 60 dB remain. If the yardstick is out of reach, as many steps
        are taken as come close to the result of all.
        """
        limits = [wanted / SPARE for wanted in self.wanted]
        steps = self._foreseen(every, limits) if self.few_runs else []
        if not steps:
            every, limits = self._within_reach(every)
            steps = self._first(every, limits)
        steps = self._needed(steps, limits)
        taken, floats = widths(steps), any(step.drifts for step in steps)
        exact = [step for step in every if step.reading in taken and not step.drifts]
        most = [max(_DECIBEL * SPARE / WITHIN * limit, _CLEAN) for limit in limits]
        judged = [*exact, *self.also(exact)] if self.few_runs else exact  # this run also gives the prediction
        return exact if floats and self._suffice(judged, most) else steps

    def with_others(self, steps: list[Step]) -> list[Step]:
        """These steps and the others, without slices of the others that make half a decibel more noise than is wanted,
        and than these steps leave. (Int8 stores exactly what int16 may round, such as an input of one number that
        calibration met once.)"""
        others = self.also(steps)
        if self._suffice([*steps, *others], [WITHIN * wanted for wanted in self.wanted]):
            return [*steps, *others]
        left = self.noise(widths(steps))
        most = [WITHIN * max(wanted, noise) for wanted, noise in zip(self.wanted, left, strict=True)]
        least = -(-len(others) // (_FEW if self.few_runs else _GROUPS))
        waiting = [others]
        while waiting:
            part = waiting.pop()
            if self._suffice([*steps, *part], most):
                steps = [*steps, *part]
            elif len(part) > least:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
        return steps

    def _foreseen(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """The first steps whose predicted gains add up to the noise in excess of the limits; twice as many until they
        suffice. Values that weighted sums read are left out. Empty if not even all of the steps suffice."""
        plain, others = self.noise({}), _read_by_others(every)
        excess = [noise - limit for noise, limit in zip(plain, limits, strict=True) if noise > limit]
        gained = itertools.accumulate(map(_gain, others))
        count = bisect.bisect_left(list(gained), sum(excess) / len(excess)) + 1 if excess else 1
        while count <= len(others):
            if self._suffice(others[:count], limits):
                return others[:count]
            count *= 2
        return []

    def _within_reach(self, every: Sequence[Step]) -> tuple[Sequence[Step], list[float]]:
        """The steps to choose from, and the limits of the noise.

        Steps of values that weighted sums read may make the noise worse, since weights and biases are fitted to 8 bits.
        They are left out where that costs a decibel. If few runs are made, this is tested only if all steps together
        leave more noise than is wanted.
        """
        best, others = self.noise(widths(every)), _read_by_others(every)
        if not (self.few_runs and all(map(operator.le, best, self.wanted))):
            without = self.noise(widths(others))
            if any(ratio > _DECIBEL * other for ratio, other in zip(best, without, strict=True)):
                every, best = others, without
        reached = map(operator.le, best, self.wanted)
        within = [w if able else a for able, w, a in zip(reached, self.wanted, self.allowed, strict=True)]
        return every, [max(allowed / SPARE, _NEARLY * ratio) for allowed, ratio in zip(within, best, strict=True)]

    def _first(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """The smallest number of first steps that suffices."""
        if self.few_runs:
            return self._nearly_first(every, limits)
        low, high = 0, len(every)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._suffice(every[:middle], limits) else (middle + 1, high)
        return list(every[:high])

    def _nearly_first(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """A number of first steps that suffices, or a few more: up to an eighth of all, or those that remove a tenth of
        the noise.

        Between two counts that were simulated, one that does not suffice and one that does, noise falls roughly as the
        gains of the steps predict. The count at which it reaches the limits is simulated next, or the middle one if
        that excludes little.
        """
        low, high, near = 0, len(every), max(1, len(every) // (2 * _FEW))
        above, below = self.noise({}), self.noise(widths(every))
        if all(map(operator.le, above, limits)):
            return []
        tenths = [(most - least) / 10 for most, least in zip(above, below, strict=True)]
        foretold = True
        while high - low > near:
            share = min(map(_share_left, limits, above, below))
            count = _count(every, low, high, share) if foretold else (low + high) // 2
            found = self.noise(widths(every[:count]))
            if not all(map(operator.le, found, limits)):
                low, above = count, found
            elif any(limit < noise + tenth for limit, noise, tenth in zip(limits, found, tenths, strict=True)):
                return list(every[:count])
            else:
                high, below = count, found
            foretold = not foretold
        return list(every[:high])

    def _needed(self, steps: list[Step], limits: Sequence[float]) -> list[Step]:
        """These steps without groups that are not needed. Of a network whose runs take time, groups that are said to
        gain far more than can be spared are not tried. If few runs are made, groups of negligible cost stay."""
        groups = _FEW if self.few_runs else _GROUPS
        for _ in range(_ROUNDS if len(steps) > groups and not self.few_runs else 1):
            dearest = sorted(steps, key=lambda step: -step.cost)
            size = max(1, -(-len(steps) // groups))
            for group in (dearest[at : at + size] for at in range(0, len(dearest), size)):
                fewer, cost = [step for step in steps if step not in group], sum(step.cost for step in group)
                if self.few_runs and cost <= NOTHING * self.traffic:
                    continue
                dearer = cost > max(sum(step.cost for step in fewer), _DEAR * self.traffic)
                more = _DECIBEL * SPARE / WITHIN if dearer else 1.0
                most = [more * limit for limit in limits]
                if self.traffic > _BRIEF and sum(map(_gain, group)) > _DOUBTED * self._spare(steps, most):
                    continue
                steps = fewer if self._suffice(fewer, most) else steps
        return steps

    def _spare(self, steps: Sequence[Step], limits: Sequence[float]) -> float:
        """The most by which the noise of an output may rise with these steps."""
        ends = zip(limits, self.noise(widths(steps)), strict=True)
        return max((limit - noise for limit, noise in ends if limit < math.inf), default=math.inf)

    def _suffice(self, steps: Sequence[Step], limits: Sequence[float]) -> bool:
        return all(map(operator.le, self.noise(widths(steps)), limits))


def _share_left(limit: float, above: float, below: float) -> float:
    """The share (0 to 1) of the way from `below` to `above` at which the noise is a little less than the limit."""
    return _SURE * min(1.0, max(0.0, limit - below) / (above - below)) if above > max(limit, below) else 1.0


def _count(every: Sequence[Step], low: int, high: int, share: float) -> int:
    """The number of steps, from `low` to `high`, whose predicted gains leave this share of what all of them gain."""
    gains = [_gain(step) for step in every[low:high]]
    gained = itertools.accumulate(gains)
    wanted = (1 - share) * sum(gains)
    return next((low + i for i, gain in enumerate(gained, 1) if gain >= wanted and low + i < high), high - 1)


def _gain(step: Step) -> float:
    """What a step is said to gain; 0 if nothing was predicted."""
    return step.gain if math.isfinite(step.gain) else 0.0


def _read_by_others(every: Sequence[Step]) -> list[Step]:
    """The steps whose values are read by other nodes than weighted sums."""
    return [step for step in every if step.reading[1] != "sums"]
