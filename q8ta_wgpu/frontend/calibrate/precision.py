"""As many bits as a value needs: which values are stored in 16 bits, or not rounded at all.

The yardstick is a simulation in which only inputs and weights of weighted sums are rounded. Where int8 everywhere is
more than half a decibel below the yardstick, values are widened: first those whose rounding makes the most noise for
what 16 bits cost. This ends where the module as it will be stored comes near the yardstick. Both are simulated on
inputs of the calibration.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate.by_rules import ByRules, beside_states, by_rows, decisions
from q8ta_wgpu.frontend.calibrate.held_back import HeldBack
from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.search import Search
from q8ta_wgpu.frontend.calibrate.simulated_noise import SimulatedNoise
from q8ta_wgpu.frontend.calibrate.state_precision import near_state, states_of
from q8ta_wgpu.frontend.calibrate.steps import Step, cheap, ranked, traffic, widths, with_choices
from q8ta_wgpu.frontend.calibrate.stored import Storage
from q8ta_wgpu.frontend.calibrate.widen import widen
from q8ta_wgpu.frontend.nodes import source_of
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.quantization.limits import allowed, low_signal, wanted, worst
from q8ta_wgpu.quantization.parts import Part, decibels
from q8ta_wgpu.quantization.stored import Width

_RARE = 3.0
"""By what factor the largest tenth of the errors raises the yardstick's noise if large errors are rare: other noise
would not be noticed beside them. The factor of normal errors is 1.7."""


@dataclass(frozen=True)
class Precision:
    """The choice of widths, and the signal to noise in dB of the output that is farthest below the yardstick; None
    where nothing was simulated, or no output has noise.

    Attributes:
        notes: a sentence for each value that is widened.
        unrounded: the names of values that are not rounded, and why.
        decisions: why each value is stored as it is.
        output: which output that is; empty if there is only one.
        yardstick: signal to noise of the yardstick.
        int8: signal to noise of int8 everywhere.
        predicted: signal to noise of the choice.
    """

    notes: tuple[str, ...] = ()
    unrounded: tuple[tuple[str, str], ...] = ()
    decisions: tuple[Decision, ...] = ()
    output: str = ""
    yardstick: float | None = None
    int8: float | None = None
    predicted: float | None = None

    @staticmethod
    def of(steps: Sequence[Step], wanted: float = math.inf) -> Precision:
        """The choice of steps. `wanted`: the noise to signal that the outputs should have."""
        notes = tuple(step.note(wanted) for step in steps)
        return Precision(notes, tuple((step.made.name, step.reason) for step in steps if step.width == "float32"))

    @property
    def warning(self) -> str:
        """A warning about low signal to noise; empty if there is no reason for one."""
        return low_signal(self.output, self.predicted, self.yardstick, ": Quantizer(skip=[...])")


class Precisions:
    """Chooses the widths of a calibrated module's values by the noise that simulated runs find.

    It is made before weights are fitted to the calibration, and chooses after that.

    Args:
        observed: a module with observers that met the calibration.
        back: the items that are simulated.
        dynamic: whether the device chooses a scale for each row that a linear reads.

    Attributes:
        storage: of the module.
        simulated: the noise that the yardstick and choices of widths leave.
    """

    def __init__(self, observed: GraphModule, back: HeldBack, dynamic: bool = False) -> None:
        self.module, self._all_wide = observed, back.all_wide
        self.storage = Storage(observed)
        rows = by_rows(self.storage) if dynamic else []
        self.simulated = SimulatedNoise(self.storage, back, {step.reading[0] for step in rows})
        self._parts = self.simulated.judge.parts
        most = map(allowed, self.simulated.yardstick, itertools.cycle(self._parts))
        self._allowed = [limit if self._counts(i) else math.inf for i, limit in enumerate(most)]
        lasting = itertools.compress(states_of(observed), self.simulated.calls.lasting)
        of_rules = ByRules(self.storage)
        self._matched, self._predicted = of_rules.matched, dict[Reading, float]()
        first = [*of_rules.first, *rows]
        known = widths(first)
        beside = beside_states(self.storage, itertools.chain(*itertools.starmap(near_state, lasting)))
        self._least = [step for step in beside if step.reading not in known]  # these may be left in float32
        known = {**known, **widths(self._least)}
        self._least += [step for step in of_rules.least if step.reading not in known]
        self._always = [*first, *self._least]

    def is_worse(self) -> bool:
        """Whether some output of the yardstick has more noise than is allowed with the weights as they are now."""
        pairs = enumerate(zip(self.simulated.of_sums(), self._allowed, strict=True))
        return any(ratio > allowed for i, (ratio, allowed) in pairs if self._is_whole(i))

    def choose(self) -> Precision:
        """Chooses widths and changes the module accordingly."""
        plain = predicted = self._noise({})
        first = len(plain) - len(self._parts)  # with ranges of other inputs no more is wanted than is allowed
        limits = self._allowed[:first] + list(map(wanted, self._allowed[first:], plain[first:], self._parts))
        short = [i for i, ratio in enumerate(plain) if self._all_wide or ratio > limits[i]]
        steps: list[Step] = []
        if short:
            steps = self._beyond_always(sorted({i % len(self._parts) for i in short}), limits)
            predicted = self._noise(widths(steps))
        steps = [*self._always, *steps]
        last = {step.reading: step for step in steps}
        kept = [step for step in steps if last[step.reading] is step]
        at = worst(self._parts, self._allowed[first:], predicted[first:], plain[first:])
        found = Precision.of(kept, math.inf if at is None else limits[first + at])
        if at is not None:
            ratios = (decibels(noise[first + at]) for noise in (self.simulated.yardstick, plain, predicted))
            found = Precision(found.notes, found.unrounded, (), self._said(self._parts[at]), *ratios)
        most = 1.0 if at is None else limits[first + at]
        noise = {reading: min(ratio / most, 1e30) for reading, ratio in self._predicted.items()}
        record = decisions(self.storage, kept, self._matched, noise)
        widen(self.module, self.storage, widths(steps))
        return replace(found, decisions=record)

    def _beyond_always(self, parts: Sequence[int], wanted: Sequence[float]) -> list[Step]:
        """The steps beyond those that are always taken: as few as bring the noise of these parts to what is wanted,
        or all steps to 16 bits if that was asked for."""
        needed, known = self.simulated.needs(parts), widths(self._always)
        self._predicted = dict(needed)
        for reading in known.keys() - widths(self._least).keys():
            needed.pop(reading, None)
        every = ranked(self.storage, self.simulated.rounder, needed)
        every = [step for step in every if known.get(step.reading) != step.width]
        if self._all_wide:
            return [step for step in every if step.width == "int16"]
        also, few_runs = functools.partial(cheap, self.storage, every), self.simulated.is_large
        search = Search(self._noise, wanted, self._allowed, traffic(self.storage), few_runs, also)
        return search.with_others(with_choices(every, search.enough(every)))

    def _said(self, part: Part) -> str:
        """Which output, and which part of it; empty if there is only one output, and it is judged as a whole."""
        (end,) = self.module.graph.find_nodes(op="output")
        results = [node for node in pytree.tree_leaves(end.args[0]) if isinstance(node, Node)]
        several = len(self.simulated.calls.floats[0]) > 1
        if not several:
            return f"{part.name} of the output" if part.name else ""
        node = results[part.output]
        while node.op == "call_module":  # an observer
            (node,) = node.all_input_nodes
        place = source_of(node)
        output = f"output {part.output} ({node.name}{f', {place}' if place else ''})"
        return f"{part.name} of {output}" if part.name else output

    def _noise(self, chosen: Mapping[Reading, Width]) -> list[float]:
        """The noise of each output with these values widened and those that always are."""
        keeps = bool(chosen)  # the run without a choice may be the only one
        return self.simulated.of_widths({**widths(self._always), **chosen}, keeps)

    def _is_whole(self, i: int) -> bool:
        """Whether the noise at this index includes a part's largest errors. For each kind of ranges, the noise of all
        parts without them comes first, and the noise with them second."""
        return bool(i // len(self._parts) % 2)

    def _counts(self, i: int) -> bool:
        """Whether the noise at this index is limited. Noise without the largest errors is limited only where these
        make most of the whole noise."""
        yardstick = self.simulated.yardstick
        return self._is_whole(i) or _RARE * yardstick[i] < yardstick[i + len(self._parts)]
