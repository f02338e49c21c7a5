"""As many bits as a value needs: which values are stored in 16 bits, or not rounded at all.

The yardstick is a simulation in which only inputs and weights of weighted sums are rounded, as they will be stored.
Tables of embeddings are not rounded in it, unless 4 bits were asked for. Where int8 everywhere is more than half a
decibel below the yardstick, values are widened: first those whose rounding makes the most noise for what 16 bits cost.
This ends where the module as it will be stored comes near the yardstick. Both are simulated on inputs of the
calibration.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate.always import always, beside_states, by_rows, of_few
from q8ta_wgpu.frontend.calibrate.flips import Flips
from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.held_back import ITEMS, HeldBack
from q8ta_wgpu.frontend.calibrate.need import SIGNS, Reading, needs, needs_apart
from q8ta_wgpu.frontend.calibrate.rounder import Rounder, on_steps, shares_in_steps
from q8ta_wgpu.frontend.calibrate.row_scales import round_rows
from q8ta_wgpu.frontend.calibrate.search import WITHIN, Search
from q8ta_wgpu.frontend.calibrate.simulate import (
    LastRuns,
    Run,
    Views,
    decibels,
    noise,
    same_weight,
    softmax,
    usual_noise,
)
from q8ta_wgpu.frontend.calibrate.state_precision import near_state, states_of
from q8ta_wgpu.frontend.calibrate.steps import (
    Step,
    cheap,
    ranked,
    traffic,
    unrounded,
    widths,
    with_choices,
)
from q8ta_wgpu.frontend.calibrate.stored import ROLES, Reads, Storage, Stored, Width, sums_weights
from q8ta_wgpu.frontend.calibrate.successive_calls import Calls
from q8ta_wgpu.frontend.calibrate.widen import widen
from q8ta_wgpu.frontend.nodes import source_of

_MOSTLY = 2.0
"""By what factor the yardstick's noise is larger with ranges of other inputs if most of it comes from clipping."""

_RARE = 3.0
"""By what factor the largest tenth of the errors raises the yardstick's noise if large errors are rare: other noise
would not be noticed beside them. The factor of normal errors is 1.7."""

_LARGE = 4e9
"""Bytes that a call moves, with what it computes, from which on a simulated run takes seconds. Then few runs are made,
with one kind of ranges, and noise is measured with half as many random signs."""

_KEPT = 2**30
"""Most bytes of values that are kept from one simulated run to the next."""

_NONE: Iterator[None] = itertools.repeat(None)

_SILENT = 1e-8
"""Noise to signal that no output notices, whatever the yardstick has."""

_BAD, _FAIR = 10**-1.5, 0.01
"""Noise to signal: 15 dB, which is too much whatever the yardstick has, and 20 dB, which is then wanted if 16 bits can
give it."""

_SHORT = 1.5
"""dB below the yardstick from which on a user is warned that 16 bits do not suffice."""

_FINE = 40.0
"""Signal to noise in dB from which on there is no warning."""

_POOR = 10.0
"""Signal to noise in dB below which a user is warned, whatever the yardstick has."""


@dataclass(frozen=True)
class Precision:
    """The choice of widths, and the signal to noise in dB of the output that is farthest below the yardstick; None
    where nothing was simulated, or no output has noise.

    Attributes:
        notes: a sentence for each value that is widened.
        unrounded: the names of values that are not rounded, and why.
        output: which output that is; empty if there is only one.
        yardstick: signal to noise of the yardstick.
        int8: signal to noise of int8 everywhere.
        predicted: signal to noise of the choice.
    """

    notes: tuple[str, ...] = ()
    unrounded: tuple[tuple[str, str], ...] = ()
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
        if self.predicted is None or self.yardstick is None:
            return ""
        if self.predicted >= max(min(self.yardstick - _SHORT, _FINE), _POOR):
            return ""
        way = "calibrate with inputs as in use, or leave layers in float: Quantizer(skip=[...]); compare names them"
        outputs = f"{self.output} is" if self.output else "the outputs are"
        found = (
            f"{outputs} predicted to keep {self.predicted:z.1f} dB of signal to noise on the inputs of the calibration"
            f", where rounding nothing but weights and what layers read leaves {self.yardstick:z.1f} dB"
        )
        return f"{found}: the network makes noise larger; {way}" if self.yardstick < _POOR else f"{found}; {way}"


class Precisions:
    """Simulates a calibrated module in float and as the yardstick, and chooses the widths of its values.

    It is made before weights are fitted to the calibration, and chooses after that.

    Args:
        observed: a module with observers that met the calibration.
        back: the items that are simulated.
        dynamic: whether the device chooses a scale for each row that a linear reads.

    Attributes:
        yardstick: the yardstick's noise to signal of each output, as `_noise_by_ranges` orders them.
        floats: the outputs of each item in float.
    """

    def __init__(self, observed: GraphModule, back: HeldBack, dynamic: bool = False) -> None:
        self.module, self._all_wide = observed, back.all_wide
        self.storage = Storage(observed)
        self._traffic = traffic(self.storage)
        self._large = self._traffic * max(1.0, len(back.items) / ITEMS) > _LARGE
        self._signs = SIGNS // 2 if self._large else SIGNS
        self._growth = back.growth
        self._ranges = back.ranges[-1:] if self._large else back.ranges
        self._weights: dict[Node, tuple[Tensor, Tensor]] = {}
        self.rounder = Rounder({}, self._weights)
        self._rounders = [self.rounder]
        self._clip_all_but(())
        rows = by_rows(self.storage) if dynamic else []
        self._by_rows = {stored for stored, _ in widths(rows)}
        self._own = back.own
        exact = Run(self.storage, self.storage.unrounded, same_weight, softmax).call
        self.calls = Calls(back.items, back.places, len(states_of(observed)), exact, back.floats)
        self.floats = self.calls.floats
        self.yardstick = self._noise_of_yardstick()
        if self._reaches_further():
            self._ranges = [*self._ranges, {}]
            self._clip_all_but(())
            self.yardstick = self._noise_of_yardstick()
        allowed = map(_allowed, self.yardstick, [*self.floats[0]] * 2 * len(self._rounders))
        self._allowed = [most if self._counts(i) else math.inf for i, most in enumerate(allowed)]
        lasting = itertools.compress(states_of(observed), self.calls.lasting)
        first = [*always(self.storage), *rows]
        known = widths(first)
        first += [step for step in self._choices() if step.reading not in known]
        known = widths(first)
        beside = beside_states(self.storage, itertools.chain(*itertools.starmap(near_state, lasting)))
        self._least = [step for step in beside if step.reading not in known]  # these may be left in float32
        self._least += of_few(self.storage, {**known, **widths(self._least)})
        self._always = [*first, *self._least]
        self._simulated: dict[frozenset[tuple[Reading, Width]], list[float]] = {}

    def is_worse(self) -> bool:
        """Whether some output of the yardstick has more noise than is allowed with the weights as they are now."""
        pairs = enumerate(zip(self._noise_of_sums(), self._allowed, strict=True))
        return any(ratio > allowed for i, (ratio, allowed) in pairs if self._is_whole(i))

    def choose(self) -> Precision:
        """Chooses widths and changes the module accordingly."""
        plain = predicted = self._noise({})
        first = len(plain) - len(self.floats[0])  # with ranges of other inputs no more is wanted than is allowed
        wanted = self._allowed[:first] + list(map(_wanted, self._allowed[first:], plain[first:], self.floats[0]))
        short = [i for i, ratio in enumerate(plain) if self._all_wide or ratio > wanted[i]]
        steps: list[Step] = []
        if short:
            outputs = sorted({i % len(self.floats[0]) for i in short})
            needed = needs(self.storage, self.rounder, self.calls, outputs, self._signs)
            known = widths(self._always)
            for reading in known.keys() - widths(self._least).keys():
                needed.pop(reading, None)
            every = [
                step for step in ranked(self.storage, self.rounder, needed) if known.get(step.reading) != step.width
            ]
            steps = [step for step in every if step.width == "int16"]
            if not self._all_wide:
                also = functools.partial(cheap, self.storage, every)
                search = Search(self._noise, wanted, self._allowed, self._traffic, self._large, also)
                steps = search.with_others(with_choices(every, search.enough(every)))
            predicted = self._noise(widths(steps))
        steps = [*self._always, *steps]
        last = {step.reading: step for step in steps}
        kept = [step for step in steps if last[step.reading] is step]
        judged = [i for i, allowed in enumerate(self._allowed) if i >= first and allowed < math.inf]
        worst = max(judged, key=lambda i: (plain if short else predicted)[i] / self._allowed[i], default=None)
        found = Precision.of(kept, math.inf if worst is None else wanted[worst])
        if worst is not None:
            ratios = (decibels(noise[worst]) for noise in (self.yardstick, plain, predicted))
            found = Precision(found.notes, found.unrounded, self._output(worst % len(self.floats[0])), *ratios)
        widen(self.module, self.storage, widths(steps))
        return found

    def _output(self, index: int) -> str:
        """The index of an output and the operator that computes it; empty if there is only one output."""
        if len(self.floats[0]) == 1:
            return ""
        (end,) = self.module.graph.find_nodes(op="output")
        results = [node for node in pytree.tree_leaves(end.args[0]) if isinstance(node, Node)]
        node = results[index]
        while node.op == "call_module":  # an observer
            (node,) = node.all_input_nodes
        place = source_of(node)
        return f"output {index} ({node.name}{f', {place}' if place else ''})"

    def _choices(self) -> list[Step]:
        """Leaves values unrounded from which choices follow, if these flip more often than in the yardstick."""
        allowed = self._allowed[-len(self.floats[0]) :]
        flips = Flips(self.storage, self.rounder, self.calls)
        return [unrounded(stored) for stored in flips.values(allowed, self._of_sums, self._weight_of_sums)]

    # --- what is simulated ---

    @functools.cached_property
    def _runs(self) -> LastRuns:
        """Values that are kept from one run to the next; none where states depend on earlier calls. It is made when
        weights no longer change."""
        keeps = not self._large and not states_of(self.module)
        return LastRuns(self.storage, len(self._rounders) * len(self.calls), int(_KEPT / self._growth) if keeps else 0)

    def _noise(self, chosen: Mapping[Reading, Width]) -> list[float]:
        """The noise of each output, as `_noise_by_ranges` orders it, with these values widened and those that always
        are. It is called when weights no longer change."""
        known = iter(self._runs.values) if chosen else _NONE  # one run alone needs none
        chosen = {**widths(self._always), **chosen}
        given = frozenset(chosen.items())
        if given in self._simulated:
            return self._simulated[given]

        def views(node: Node, value: Tensor) -> Views:
            stored = self.storage.values[node]
            widths = {role: chosen[stored, role] for role in ROLES if (stored, role) in chosen}
            seen = {reads: stored.width_for(reads, widths) for reads in stored.users[node].values()}
            made = {width: self.rounder.rounded(stored, value, width) for width in set(seen.values())}
            found = {reads: made[width] for reads, width in seen.items()}
            return self._rounded_by_rows(stored, found)

        def shares(node: Node, scores: Tensor) -> Tensor:
            return softmax(node, scores) if (node, "others") in chosen else shares_in_steps(scores)

        def weight(node: Node, value: Tensor, reader: Node) -> Tensor:
            finer = ((node, "products") in chosen and self.storage.transforms(reader)) or (
                (node, "others") in chosen and self.storage.looks_up(reader)
            )
            return value if finer else self._weight(node, value, reader)

        if known is not _NONE:
            self._runs.forget(chosen)
        self._simulated[given] = self._noise_by_ranges(views, weight, shares, known)
        return self._simulated[given]

    def _is_whole(self, i: int) -> bool:
        """Whether the noise at this index includes an output's largest errors. For each kind of ranges, the noise of
        all outputs without them comes first, and the noise with them second."""
        return bool(i // len(self.floats[0]) % 2)

    def _counts(self, i: int) -> bool:
        """Whether the noise at this index is limited. Noise without the largest errors is limited only where these
        make most of the whole noise."""
        return self._is_whole(i) or _RARE * self.yardstick[i] < self.yardstick[i + len(self.floats[0])]

    def _noise_of_sums(self) -> list[float]:
        """The noise of each output where only inputs and weights of sums are rounded. It is the lower one of two ways,
        without and with rounded tables of embeddings: weights may be fitted to rounded tables."""
        readings = ((node, user) for node in self.storage.weights for user in node.users)
        tables = not all(itertools.starmap(self._rounds, readings))
        ways = [self._weight_of_sums, self._weight] if tables else [self._weight]
        found = [self._noise_by_ranges(self._of_sums, way, softmax) for way in ways]
        return [min(ratios) for ratios in zip(*found, strict=True)]

    def _noise_of_yardstick(self) -> list[float]:
        """The least noise of each output with ranges that clip and with whole ones, which other quantizers use. Where
        whole ranges are better for an output, values that make more noise by clipping keep whole ranges."""
        clipped, clipping = self._noise_of_sums(), self.rounder
        self._clip_all_but(self.storage.stored)
        whole = self._noise_of_sums()
        worse = [i for i, (c, w) in enumerate(zip(clipped, whole, strict=True)) if c > WITHIN * w]
        if not worse:
            self._clip_all_but(())
            return clipped
        outputs = sorted({i % len(self.floats[0]) for i in worse})
        left, found = needs_apart(self.storage, [self.rounder, clipping], self.calls, outputs, self._signs)
        self._clip_all_but(stored for stored in self.storage.stored if _sum_of(stored, left) < _sum_of(stored, found))
        return list(map(min, clipped, whole, self._noise_of_sums()))

    def _reaches_further(self) -> bool:
        """Whether the simulated items exceed the ranges of all other items so far that this makes most of the
        yardstick's noise. Then ranges that include them are simulated as well: beside so much noise, other noise of the
        same size would be allowed."""
        if self._large or not self._ranges[-1]:
            return False
        rounders, self._rounders = self._rounders, [Rounder({}, self._weights, self.rounder.whole)]
        own = self._noise_of_sums()
        self._rounders, self.rounder = rounders, rounders[-1]
        return any(found > _MOSTLY * left for found, left in zip(self.yardstick, own, strict=True))

    def _clip_all_but(self, values: Iterable[Stored]) -> None:
        """Makes rounders that clip no range of these values, and may clip those of all others."""
        whole = frozenset(values)
        self._rounders = [Rounder(known, self._weights, whole) for known in self._ranges]
        self.rounder = self._rounders[-1]
        for stored in self.storage.stored:
            self.rounder.let_clip(stored)

    def _noise_by_ranges(
        self, views: Any, weight: Any, shares: Any, known: Iterator[dict[Node, Any] | None] = _NONE
    ) -> list[float]:
        """The noise of each output with these ways to round. For each kind of ranges: the noise of all outputs without
        their largest errors, then with them. `known` values are not computed again."""
        found: list[float] = []
        for rounder in self._rounders:
            self.rounder = rounder
            outputs = self._outputs(views, weight, shares, known)
            found += [*usual_noise(outputs, self.floats), *noise(outputs, self.floats)]
        return found

    def _outputs(
        self,
        views: Callable[[Node, Tensor], Views],
        weight: Callable[[Node, Tensor, Node], Tensor],
        shares: Callable[[Node, Tensor], Tensor],
        known: Iterator[dict[Node, Any] | None] = _NONE,
    ) -> list[list[Tensor]]:
        run = Run(self.storage, views, weight, shares)

        def call(item: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            return run.call(item, next(known))

        return [given for sequence in self.calls.sequences() for given in self.calls.outputs(call, sequence)]

    def _of_sums(self, node: Node, value: Tensor) -> Views:
        stored, found = self.storage.values[node], self.storage.unrounded(node, value)
        sums = Reads(frozenset({"sums"}))
        if sums in found:
            width = "int16" if stored in self._by_rows else stored.width
            own = self._by_itself(stored, node, value)
            found[sums] = self.rounder.rounded(stored, value, width) if own is None else own
        return self._rounded_by_rows(stored, found)

    def _by_itself(self, stored: Stored, node: Node, value: Tensor) -> Tensor | None:
        """An int8 value rounded at a scale of its own, if it shares its scale with others, as the operands of a cat do;
        else None. The yardstick gives each operand of a sum its own scale."""
        if stored.width != "int8" or stored in self._by_rows or node not in self._own:
            return None
        lows, highs = zip(*(self._own[each] for each in stored.nodes), strict=True)
        scale, _ = self.rounder.scale(stored, "int8")
        (low, high), whole = self._own[node], max(highs) - min(lows)
        if not 0 < high - low < whole:
            return None
        own = scale * (high - low) / whole
        zero = round(-128 - 255 * low / (high - low))
        return on_steps(value, torch.tensor(own), zero, -128, 127)

    def _rounded_by_rows(self, stored: Stored, found: dict[Reads, Tensor]) -> Views:
        """Rounds what linears read of a value once more, if each of its rows has a scale of its own."""
        sums = Reads(frozenset({"sums"}))
        if stored in self._by_rows and sums in found:
            found[sums] = round_rows(found[sums], self.rounder.scale(stored, "int16")[0])
        return found

    def _weight_of_sums(self, node: Node, value: Tensor, reader: Node) -> Tensor:
        return self._weight(node, value, reader) if self._rounds(node, reader) else value

    def _rounds(self, node: Node, reader: Node) -> bool:
        """Whether the yardstick rounds a weight: one of a sum, or one for which 4 bits were asked."""
        return sums_weights(reader) or isinstance(self.storage.weights[node], PerChannelGroupObserver)

    def _weight(self, node: Node, value: Tensor, reader: Node) -> Tensor:
        return self.rounder.weight(node, value, self.storage.weights[node])


def _sum_of(stored: Stored, need: Mapping[Reading, float]) -> float:
    """The noise of a value in all roles."""
    return sum(need.get((stored, role), 0.0) for role in ROLES)


def _allowed(ratio: float, output: Tensor) -> float:
    """The noise that an output may have if the yardstick has this much. For an output of integers both are shares of
    elements that differ, and as many more may differ as can be chance."""
    if not ratio:
        return math.inf
    chance = 0.0 if output.dtype.is_floating_point else ratio + 2 * math.sqrt(ratio / output.numel())
    return max(WITHIN * ratio, chance, _SILENT)


def _wanted(allowed: float, int8: float, output: Tensor) -> float:
    """The noise that an output should have, if 16 bits can give that. Where int8 leaves
    less than 15 dB, it is at most the noise of 20 dB."""
    return min(allowed, _FAIR) if int8 > _BAD and output.dtype.is_floating_point else allowed
