"""The noise of a network's outputs as simulated runs find it: of the yardstick, and of values in chosen widths.

The yardstick is a simulation in which only inputs and weights of weighted sums are rounded, as they will be stored.
Tables of embeddings are not rounded in it, unless 4 bits were asked for. Where whole ranges are better for an output
than ranges that clip, the yardstick chooses which values keep theirs whole, and all other simulations do the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.held_back import HeldBack
from q8ta_wgpu.frontend.calibrate.need import SIGNS, Reading, needs, needs_apart
from q8ta_wgpu.frontend.calibrate.quantizer import ORIGINS
from q8ta_wgpu.frontend.calibrate.rounder import Rounder, on_steps, shares_in_steps
from q8ta_wgpu.frontend.calibrate.row_scales import round_rows
from q8ta_wgpu.frontend.calibrate.simulate import LastRuns, Run, Shares, View, Views, Weight, same_weight, softmax
from q8ta_wgpu.frontend.calibrate.state_precision import states_of
from q8ta_wgpu.frontend.calibrate.steps import traffic
from q8ta_wgpu.frontend.calibrate.stored import Reads, Storage, Stored, sums_weights
from q8ta_wgpu.frontend.calibrate.successive_calls import Calls
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.items import ITEMS
from q8ta_wgpu.quantization.limits import WITHIN
from q8ta_wgpu.quantization.parts import Judge
from q8ta_wgpu.quantization.stored import ROLES, Width

_MOSTLY = 2.0
"""By what factor the yardstick's noise is larger with ranges of other inputs if most of it comes from clipping."""

_LARGE = 4e9
"""Bytes that a call moves, with what it computes, from which on a simulated run takes seconds. Then few runs are made,
with one kind of ranges, and noise is measured with half as many random signs."""

_KEPT = 2**30
"""Most bytes of values that are kept from one simulated run to the next."""

_NONE: Iterator[None] = itertools.repeat(None)


class SimulatedNoise:
    """Simulates the items that were held back, and compares outputs with those in float.

    Noise is a list of ratios of powers, noise to signal. For each kind of ranges it has first all parts of outputs
    none, and then all parts.

    Args:
        storage: of a module with observers that met the calibration.
        back: the items that are simulated.
        by_rows: the values of which the device chooses a scale for each row that a linear reads.

    Attributes:
        is_large: whether a run takes seconds, so that few should be made.
        rounder: rounds to 8 bits with the last kind of ranges.
        calls: the items, one after the other, and their outputs in float.
        judge: judges outputs by their parts.
        yardstick: the yardstick's noise before weights were fitted.
    """

    def __init__(self, storage: Storage, back: HeldBack, by_rows: Set[Stored | Node]) -> None:
        self.storage, self._by_rows, self._own, self._growth = storage, by_rows, back.own, back.growth
        self.is_large = traffic(storage) * max(1.0, len(back.items) / ITEMS) > _LARGE
        self._signs = SIGNS // 2 if self.is_large else SIGNS
        self._ranges = back.ranges[-1:] if self.is_large else back.ranges
        self._weights: dict[Node, tuple[Tensor, Tensor]] = {}
        self.rounder = Rounder({}, self._weights)
        self._rounders = [self.rounder]
        self._clip_all_but(())
        exact, states = Run(storage, storage.unrounded, same_weight, softmax).call, len(states_of(storage.module))
        self.calls = Calls(back.items, back.places, states, exact, back.floats)
        self.judge = Judge(arrays(self.calls.floats), storage.module.graph.output_node().meta.get(ORIGINS, ()))
        self.yardstick = self._of_yardstick()
        if self._reaches_further():
            self._ranges = [*self._ranges, {}]
            self._clip_all_but(())
            self.yardstick = self._of_yardstick()
        self._simulated: dict[frozenset[tuple[Reading, Width]], list[float]] = {}

    def of_sums(self) -> list[float]:
        """The noise where only inputs and weights of sums are rounded, with the weights as they are now. It is the
        lower one of two ways, without and with rounded tables of embeddings: weights may be fitted to rounded tables.
        """
        readings = ((node, user) for node in self.storage.weights for user in node.users)
        tables = not all(itertools.starmap(self._rounds, readings))
        ways = [self.weight_of_sums, self._weight] if tables else [self._weight]
        found = [self._by_ranges(self.view_of_sums, way, softmax) for way in ways]
        return [min(ratios) for ratios in zip(*found, strict=True)]

    @functools.cached_property
    def _runs(self) -> LastRuns:
        """Values that are kept from one run to the next; none where states depend on earlier calls. It is made when
        weights no longer change."""
        keeps = not self.is_large and not states_of(self.storage.module)
        return LastRuns(self.storage, len(self._rounders) * len(self.calls), int(_KEPT / self._growth) if keeps else 0)

    def of_widths(self, chosen: Mapping[Reading, Width], keeps: bool) -> list[float]:
        """The noise with these values widened; `keeps` says whether values of this run are kept for the next one. It
        is called when weights no longer change."""
        given = frozenset(chosen.items())
        if given in self._simulated:
            return self._simulated[given]

        def view(node: Node, value: Tensor) -> Views:
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

        known = iter(self._runs.values) if keeps else _NONE
        if keeps:
            self._runs.forget(chosen)
        self._simulated[given] = self._by_ranges(view, weight, shares, known)
        return self._simulated[given]

    def needs(self, parts: Sequence[int]) -> dict[Reading, float]:
        """The noise that the rounding of each value for each role makes in these parts of outputs, to first order."""
        weights = self.judge.weights(dict.fromkeys(parts, len(parts)))
        return needs(self.storage, self.rounder, self.calls, weights, self._signs)

    def _of_yardstick(self) -> list[float]:
        """The least noise of each output with ranges that clip and with whole ones, which other quantizers use. Where
        whole ranges are better for an output, values that make more noise by clipping keep whole ranges."""
        clipped, clipping = self.of_sums(), self.rounder
        self._clip_all_but(self.storage.stored)
        whole = self.of_sums()
        worse = [i for i, (c, w) in enumerate(zip(clipped, whole, strict=True)) if c > WITHIN * w]
        if not worse:
            self._clip_all_but(())
            return clipped
        parts = sorted({i % len(self.judge.parts) for i in worse})
        weights = self.judge.weights(dict.fromkeys(parts, len(parts)))
        left, found = needs_apart(self.storage, [self.rounder, clipping], self.calls, weights, self._signs)
        self._clip_all_but(stored for stored in self.storage.stored if _sum_of(stored, left) < _sum_of(stored, found))
        return list(map(min, clipped, whole, self.of_sums()))

    def _reaches_further(self) -> bool:
        """Whether the simulated items exceed the ranges of all other items so far that this makes most of the
        yardstick's noise. Then ranges that include them are simulated as well: beside so much noise, other noise of the
        same size would be allowed."""
        if self.is_large or not self._ranges[-1]:
            return False
        rounders, self._rounders = self._rounders, [Rounder({}, self._weights, self.rounder.whole)]
        own = self.of_sums()
        self._rounders, self.rounder = rounders, rounders[-1]
        return any(found > _MOSTLY * left for found, left in zip(self.yardstick, own, strict=True))

    def _clip_all_but(self, values: Iterable[Stored]) -> None:
        """Makes rounders that clip no range of these values, and may clip those of all others."""
        whole = frozenset(values)
        self._rounders = [Rounder(known, self._weights, whole) for known in self._ranges]
        self.rounder = self._rounders[-1]
        for stored in self.storage.stored:
            self.rounder.let_clip(stored)

    def _by_ranges(
        self, view: View, weight: Weight, shares: Shares, known: Iterator[dict[Node, Any] | None] = _NONE
    ) -> list[float]:
        """The noise with these ways to round. `known` values are not computed again."""
        found: list[float] = []
        for rounder in self._rounders:
            self.rounder = rounder
            outputs = arrays(self._outputs(view, weight, shares, known))
            noise = self.judge.noise(outputs)
            found += [*([0.0] * len(noise)), *noise]
        return found

    def _outputs(
        self, view: View, weight: Weight, shares: Shares, known: Iterator[dict[Node, Any] | None]
    ) -> list[list[Tensor]]:
        run = Run(self.storage, view, weight, shares)

        def call(item: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            return run.call(item, next(known))

        return [given for sequence in self.calls.sequences() for given in self.calls.outputs(call, sequence)]

    def view_of_sums(self, node: Node, value: Tensor) -> Views:
        """A value as the yardstick gives it to its readers."""
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

    def weight_of_sums(self, node: Node, value: Tensor, reader: Node) -> Tensor:
        """A weight as the yardstick gives it to a reader."""
        return self._weight(node, value, reader) if self._rounds(node, reader) else value

    def _rounds(self, node: Node, reader: Node) -> bool:
        """Whether the yardstick rounds a weight: one of a sum, or one for which 4 bits were asked."""
        return sums_weights(reader) or isinstance(self.storage.weights[node], PerChannelGroupObserver)

    def _weight(self, node: Node, value: Tensor, reader: Node) -> Tensor:
        return self.rounder.weight(node, value, self.storage.weights[node])


def arrays(outputs: Sequence[Sequence[Tensor]]) -> list[list[Array]]:
    """The outputs of items as arrays."""
    return [[x.detach().numpy() for x in each] for each in outputs]


def _sum_of(stored: Stored, need: Mapping[Reading, float]) -> float:
    """The noise of a value in all roles."""
    return sum(need.get((stored, role), 0.0) for role in ROLES)
