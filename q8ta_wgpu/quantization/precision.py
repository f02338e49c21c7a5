"""As many bits as a value needs: which values of a float graph are stored in 16 bits, or not rounded at all.

The yardstick is a run in which only inputs and weights of weighted sums are rounded. The rules (rules.py) say which
values are wider in any case. Where some output then has more than half a decibel more noise than the yardstick, values
are widened one after the other, first those whose rounding makes the most noise for what more bits cost, until it has
not.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from q8ta_wgpu.ir.decision import in_bits
from q8ta_wgpu.ir.op import FLOAT_MAX
from q8ta_wgpu.kernels.attention.attention import COARSE, FINE
from q8ta_wgpu.quantization import rules
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.limits import allowed, low_signal, wanted, worst
from q8ta_wgpu.quantization.matches import is_recurrent
from q8ta_wgpu.quantization.parts import Part, decibels
from q8ta_wgpu.quantization.predicted import noise_of_each
from q8ta_wgpu.quantization.runner import Runner, TracedRunner
from q8ta_wgpu.quantization.simulated import Simulated, by_rows
from q8ta_wgpu.quantization.steps import Costs, Step, reads_int16, widths
from q8ta_wgpu.quantization.stored import Choice, Reading, Shares, Table, Width
from q8ta_wgpu.quantization.tuned import CLEAN, NOTHING, SPARE, WITHIN

RUNS = 40
"""The most runs that tell apart which values make noise."""


_WHY_STEPS = "since whole numbers follow from it"
"""Why noise asks for more bits of what steps are taken from."""


def _too_few(width: Width) -> str:
    """Why noise asks for more than a width."""
    return f"since {in_bits(width)} are too few"


def _noticed(noise: Mapping[Reading, float]) -> set[Reading]:
    """The readings without those that all together make next to nothing of the noise that is wanted."""
    order = sorted(noise, key=noise.__getitem__)
    sums = itertools.accumulate(noise[reading] for reading in order)
    return {reading for reading, made in zip(order, sums, strict=True) if made > NOTHING}


@dataclass(frozen=True)
class Precision:
    """The choice of widths, and the signal to noise in dB of the output that is farthest below the yardstick; None
    where nothing was simulated, or no output has noise.

    Attributes:
        steps: the values that are widened, and why.
        output: which output that is; empty if there is only one.
        yardstick: signal to noise of the yardstick.
        int8: signal to noise by the rules alone.
        predicted: signal to noise of the choice.
        matched: the steps that rules asked for.
        noise: what was predicted that each reading makes in the width that the rules give it, relative to what outputs
            should have at most.
    """

    steps: tuple[Step, ...] = ()
    output: str = ""
    yardstick: float | None = None
    int8: float | None = None
    predicted: float | None = None
    matched: Mapping[Reading, Sequence[Step]] = field(default_factory=dict)
    noise: Mapping[Reading, float] = field(default_factory=dict)

    @property
    def chosen(self) -> Choice:
        """The widths of readings."""
        return widths(self.steps)

    def warning(self, skipping: str) -> str:
        """A warning about low signal to noise; empty if there is no reason for one. `skipping`: how the user leaves
        layers in float."""
        return low_signal(self.output, self.predicted, self.yardstick, skipping)


def least(calibration: Calibration) -> Precision:
    """The choice of widths where 8 bits were asked for: wider are only values that have no others."""
    values = calibration.values
    matched = rules.matched(values, Costs(values), (rules.ASKED,))
    return Precision((*rules.deciding(matched), *by_rows(values)), matched=matched)


@dataclass
class Precisions:
    """Chooses the widths of a calibrated graph's values.

    Args:
        calibration: which has met all items.
        runner: runs some of them.
    """

    calibration: Calibration
    runner: Runner

    def __post_init__(self) -> None:
        self.values = self.calibration.values
        self.costs = Costs(self.values)
        self.matched = rules.matched(self.values, self.costs)
        self.rules = [*rules.deciding(self.matched), *by_rows(self.values)]
        self.predicted: dict[Reading, float] = {}
        self._known = widths(self.rules)
        self._go_on = {step.reading for step in self.rules if step.rule in rules.MAY_GO_ON}
        last_word = self._known.keys() - self._go_on
        self._free = [reading for reading in self.values.readings if reading not in last_word]
        self.simulated = Simulated(self.calibration, self.runner)
        self.noise, self.judge = self.simulated.noise, self.simulated.judge

    def wide(self) -> Precision:
        """All that may be stored in int16 is. Fourier transforms stay in float32, since 8 bits spoil their weights."""
        wide = (
            step
            for step in self._every(self._free)
            if step.width == "int16" or self.values.is_transformed(step.reading)
        )
        every = [replace(step, rule="asked for", reason="since 16 bits were asked for") for step in wide]
        return Precision((*self.rules, *every), matched=self.matched)

    def choose(self) -> Precision:
        """Chooses widths by the noise of the items that are run."""
        return replace(self._chosen(), matched=self.matched, noise=self.predicted)

    def _chosen(self) -> Precision:
        yardstick = self.simulated.yardstick()
        plain = self.noise(self._known)
        parts = self.judge.parts
        most = list(map(allowed, yardstick, itertools.cycle(parts)))
        limits = list(map(wanted, most, plain, itertools.cycle(parts)))
        taken, predicted = list(self.rules), plain
        if any(found > limit for found, limit in zip(plain, limits, strict=True)):
            taken += self._enough(limits, most)
            predicted = self.noise(widths(taken))
        last = {step.reading: step for step in taken}
        kept = tuple(step for step in taken if last[step.reading] is step)
        first = len(plain) - len(parts)
        if (at := worst(parts, most[first:], predicted[first:])) is None:
            return Precision(kept)
        least, int8, found = (decibels(each[first + at]) for each in (yardstick, plain, predicted))
        return Precision(kept, self._said(parts[at]), least, int8, found)

    def _said(self, part: Part) -> str:
        """Which output, and which part of it; empty if there is only one output, and it is judged as a whole."""
        names = self.simulated.results
        if len(names) == 1:
            return f"{part.name} of the output" if part.name else ""
        name = names[part.output]
        made = self.values.producers.get(name)
        place = f", {made.source}" if made is not None and made.source else ""
        output = f"output {part.output} ({name}{place})"
        return f"{part.name} of {output}" if part.name else output

    def _enough(self, wanted: Sequence[float], allowed: Sequence[float]) -> list[Step]:
        """The steps beyond the rules that bring the noise of each output to what is wanted."""
        self.predicted = self._measured(wanted)
        noticed = _noticed(self.predicted)
        every = self._every(noticed)
        best = self.noise({**self._known, **widths(every)})
        if any(low > want for low, want in zip(best, wanted, strict=True)):  # noise may be none to first order alone
            every = self._every(noticed | self._go_on)
            best = self.noise({**self._known, **widths(every)})
        limits = [
            want / SPARE if low <= want / SPARE else max(most, WITHIN * low)
            for low, want, most in zip(best, wanted, allowed, strict=True)
        ]
        steps = self._exact(self._first(every, limits), limits)
        cheap = self._cheap([*self.rules, *steps])
        left = self.noise({**self._known, **widths(steps)})
        most = [WITHIN * max(limit, noise) for limit, noise in zip(limits, left, strict=True)]
        return [*steps, *cheap] if self._suffice([*steps, *cheap], most) else steps

    def _cheap(self, taken: Sequence[Step]) -> list[Step]:
        """Other steps that together cost next to nothing. They are worth that, since other inputs reach further than
        those of the calibration, and int16 has room for them."""
        left, done, found = self.costs.unnoticed, widths(taken), list[Step]()
        for step in sorted(self._every(self._free), key=lambda step: step.cost):
            reaches = step.reading[1] == "others" and not isinstance(step.reading[0], Shares)  # of these all are met
            fits = step.width == "int16" and reaches and self.costs.is_exact(step.reading)
            if fits and step.reading not in done and step.cost <= left:
                found.append(replace(step, rule="cheap", reason="since that costs next to nothing"))
                left -= step.cost
        return found

    def _measured(self, wanted: Sequence[float]) -> dict[Reading, float]:
        """The noise that each reading's rounding makes, relative to what is wanted."""
        if isinstance(self.runner, TracedRunner):
            found = self._traced(self.runner, wanted)
        else:
            known = {r: width if r in self._go_on else "float32" for r, width in self._known.items()}
            found = noise_of_each(self._free, lambda c: self.noise({**known, **c}, rounds=False), wanted, RUNS)
        return {reading: min(noise, FLOAT_MAX) for reading, noise in found.items()}

    def _traced(self, runner: TracedRunner, wanted: Sequence[float]) -> dict[Reading, float]:
        """The same by gradients. What takes steps has none: a run tells by how much the noise falls without all such
        roundings."""
        plain = self.noise(self._known)
        short = [(i, most) for i, (found, most) in enumerate(zip(plain, wanted, strict=True)) if found > most]
        count = len(self.judge.parts)
        limits = {i % count: most for i, most in short}
        traced: list[Reading] = [(s, role) for s, role in self._free if role != "steps"]
        qs = [s if isinstance(s, Shares) else s.q(self._known.get((s, role), s.width)) for s, role in traced]
        roundings = [[(edge, q) for edge in s.edges(role)] for (s, role), q in zip(traced, qs, strict=True)]
        graph, weights = self.calibration.quantized(), self.judge.weights(limits)
        each = runner.noise_of_each(graph, roundings, weights)
        noise: dict[Reading, float] = dict(zip(traced, each, strict=True))
        if choices := [reading for reading in self._free if reading[1] == "steps"]:
            without = self.noise({**self._known, **dict.fromkeys(choices, "float32")})
            gain = max((min(plain[i], FLOAT_MAX) - without[i]) / most for i, most in short)
            noise |= dict.fromkeys(choices, max(gain, 0.0))
        return noise

    def _every(self, readings: Collection[Reading]) -> list[Step]:
        """All steps of some of the readings about which no rule has the last word, ordered by what they gain for their
        cost, the largest first."""
        found: list[Step] = []
        for reading in (each for each in self._free if each in readings):
            amount, narrow = self.predicted.get(reading, 0.0), self._known.get(reading, reading[0].width)
            for width, left in self._widths(reading):
                why = _WHY_STEPS if reading[1] == "steps" else _too_few(narrow)
                found.append(Step(reading, width, self.costs.of(reading, width), "", why, amount, amount * (1 - left)))
                amount, narrow = amount * left, width
        return sorted(found, key=lambda step: -step.gain / step.cost)

    def _widths(self, reading: Reading) -> list[tuple[Width, float]]:
        """The widths above 8 bits that a reading may have, and the share of its noise that each leaves."""
        stored, role = reading
        found: list[tuple[Width, float]] = []
        if reading in self._known:
            return [("float32", 0.0)]
        if isinstance(stored, Table):
            return found if stored.fixed else [("int16", 0.0)]
        if isinstance(stored, Shares):
            return [("int16", (COARSE.steps / FINE.steps) ** 2)]
        if stored.is_exact or is_recurrent(self.values, stored):
            return found
        readers = self.values.readers_of(stored, role)
        narrow = stored.width == "int8" and role != "steps" and not self.values.is_transformed(reading)
        if narrow and (role == "others" or all(map(reads_int16, readers))):
            found.append(("int16", (stored.q("int16").scale / stored.q("int8").scale) ** 2))
        return found if role == "sums" else [*found, ("float32", 0.0)]

    def _first(self, every: Sequence[Step], limits: Sequence[float]) -> list[Step]:
        """The smallest number of first steps that suffices, as far as a few runs tell."""
        low, high = 0, len(every)
        while low < high:
            middle = (low + high) // 2
            if self._suffice(every[:middle], limits):
                high = middle
            else:
                low = middle + 1
        return list(every[:high])

    def _exact(self, steps: list[Step], limits: Sequence[float]) -> list[Step]:
        """These steps in int16 where that loses less than a decibel, or leaves 60 dB: float32 then gains
        nothing that would justify results that differ between devices."""
        drifts = [step for step in steps if step.width == "float32" and step.reading[1] != "steps"]
        wide = {step.reading for step in drifts}
        narrow = [s for s in self._every(wide) if s.width == "int16"]
        exact = list({s.reading: s for s in (*narrow, *(s for s in steps if s not in drifts))}.values())
        return (
            exact
            if drifts and self._suffice(exact, [max(WITHIN * SPARE * limit, CLEAN) for limit in limits])
            else steps
        )

    def _suffice(self, steps: Sequence[Step], limits: Sequence[float]) -> bool:
        found = self.noise({**self._known, **widths(steps)})
        return all(ratio <= limit for ratio, limit in zip(found, limits, strict=True))
