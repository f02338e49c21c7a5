"""Which values are stored in more than 8 bits, of all that may be: as few as leave little enough noise."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.simulate import Width
from q8ta_wgpu.frontend.calibrate.steps import NOTHING, Step, widths

_DECIBEL = 10**0.1
WITHIN = 10**0.05
"""How much more noise than the yardstick's is left: half a decibel, since other inputs lose more than those that are
simulated."""

_SPARE = 10**0.03
"""How much less noise than that is asked for where values are widened."""

_NEARLY = 10**0.03
"""How much more noise than with everything wide is left where the yardstick is out of reach."""

_PARTS, _ROUNDS = 8, 2
"""Parts of the values that are widened, each of which is tried in 8 bits again, and how often, in smaller parts."""

_FEW = 4
"""Parts that are tried where few runs are made, once."""

_SURE = 0.95
"""Of what may be left by the noise that was found, how much is left in the run that tells whether it was right."""

_DEAR = 0.05
"""Of what a network moves and computes, from which on widening costs time."""

_CLEAN = 1e-6
"""Noise to signal, 60 dB, below which float32 gains nothing over int16 that is worth other bytes on other devices."""


@dataclass(frozen=True)
class Search:
    """A search for steps that suffice.

    Attributes:
        noise: the noise of each output beside its signal, as a ratio of powers, with these values widened.
        wanted: how much noise each output should have.
        allowed: how much it may have where that is out of reach.
        traffic: what the network moves and computes, in bytes moved.
        few_runs: whether a simulation takes seconds.
        also: what will be taken besides the steps that are found, which a run may show to suffice at once.
    """

    noise: Callable[[Mapping[Reading, Width]], list[float]]
    wanted: Sequence[float]
    allowed: Sequence[float]
    traffic: float
    few_runs: bool
    also: Callable[[Sequence[Step]], Sequence[Step]] = lambda _: ()

    def enough(self, every: Sequence[Step]) -> list[Step]:
        """As many of these, from the first on, as have to be taken, without parts that turn out not to be needed, the
        dearest tried first: noise to first order says nothing of a value that a network divides by its own norm near
        zero. What costs as much as all the others, and not little, is needed where more than a decibel is lost
        without it; so is float32, unless 60 dB are left without. Where the yardstick is out of reach, as many are taken
        as come near to what all of them give."""
        limits = [wanted / _SPARE for wanted in self.wanted]
        steps = self._foreseen(every, limits) if self.few_runs else []
        if not steps:
            every, limits = self._within_reach(every)
            steps = self._first(every, limits)
        steps = self._needed(steps, limits)
        taken, floats = widths(steps), any(step.drifts for step in steps)
        exact = [step for step in every if step.reading in taken and not step.drifts]
        most = [max(_DECIBEL * _SPARE / WITHIN * limit, _CLEAN) for limit in limits]
        judged = [*exact, *self.also(exact)] if self.few_runs else exact  # the run that says what to predict
        return exact if floats and self._suffice(judged, most) else steps

    def _foreseen(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """The first ones whose gains are as large as what the noise is too much, and twice as many until they suffice,
        but what weighted sums read; none where all do not."""
        plain, others = self.noise({}), _read_by_others(every)
        excess = [noise - limit for noise, limit in zip(plain, limits, strict=True) if noise > limit]
        gained = itertools.accumulate(step.gain if math.isfinite(step.gain) else 0.0 for step in others)
        count = bisect.bisect_left(list(gained), sum(excess) / len(excess)) + 1 if excess else 1
        while count <= len(others):
            if self._suffice(others[:count], limits):
                return others[:count]
            count *= 2
        return []

    def _within_reach(self, every: Sequence[Step]) -> tuple[Sequence[Step], list[float]]:
        """What is to be chosen from, and how much noise may be left: without what weighted sums read, where that makes
        it worse by a decibel, since weights are fitted, and biases corrected, for what is read in 8 bits. Where few
        runs are made, that is asked only if all steps leave more noise than is wanted."""
        best, others = self.noise(widths(every)), _read_by_others(every)
        if not (self.few_runs and all(map(operator.le, best, self.wanted))):
            without = self.noise(widths(others))
            if any(ratio > _DECIBEL * other for ratio, other in zip(best, without, strict=True)):
                every, best = others, without
        reached = map(operator.le, best, self.wanted)
        within = [w if able else a for able, w, a in zip(reached, self.wanted, self.allowed, strict=True)]
        return every, [max(allowed / _SPARE, _NEARLY * ratio) for allowed, ratio in zip(within, best, strict=True)]

    def _first(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """As many as suffice, from the first on."""
        if self.few_runs:
            return self._nearly_first(every, limits)
        low, high = 0, len(every)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._suffice(every[:middle], limits) else (middle + 1, high)
        return list(every[:high])

    def _nearly_first(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """As many as suffice, or a few more: up to an eighth of all, or those that take a tenth of the noise away.

        Between two counts that were simulated, one that does not suffice and one that does, noise falls about as the
        gains of the steps say. The count where it falls to the limits is simulated next, and where that tells little,
        the one in the middle."""
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
        """These without parts without which they suffice. Where few runs are made, parts that cost nothing that anybody
        notices stay."""
        parts = _FEW if self.few_runs else _PARTS
        for _ in range(_ROUNDS if len(steps) > parts and not self.few_runs else 1):
            dearest = sorted(steps, key=lambda step: -step.cost)
            size = max(1, -(-len(steps) // parts))
            for part in (dearest[at : at + size] for at in range(0, len(dearest), size)):
                fewer, cost = [step for step in steps if step not in part], sum(step.cost for step in part)
                if self.few_runs and cost <= NOTHING * self.traffic:
                    continue
                dearer = cost > max(sum(step.cost for step in fewer), _DEAR * self.traffic)
                more = _DECIBEL * _SPARE / WITHIN if dearer else 1.0
                steps = fewer if self._suffice(fewer, [more * limit for limit in limits]) else steps
        return steps

    def _suffice(self, steps: Sequence[Step], limits: Sequence[float]) -> bool:
        return all(map(operator.le, self.noise(widths(steps)), limits))


def _share_left(limit: float, above: float, below: float) -> float:
    """How much of the noise between `below` and `above` may be left, from 0 to 1, for somewhat less than the limit."""
    return _SURE * min(1.0, max(0.0, limit - below) / (above - below)) if above > max(limit, below) else 1.0


def _count(every: Sequence[Step], low: int, high: int, share: float) -> int:
    """How many steps, between these counts, leave this share of what the steps between them gain."""
    gains = [step.gain if math.isfinite(step.gain) else 0.0 for step in every[low:high]]
    gained = itertools.accumulate(gains)
    wanted = (1 - share) * sum(gains)
    return next((low + i for i, gain in enumerate(gained, 1) if gain >= wanted and low + i < high), high - 1)


def _read_by_others(every: Sequence[Step]) -> list[Step]:
    """The readings of these that are not by weighted sums."""
    return [step for step in every if step.reading[1] != "sums"]
