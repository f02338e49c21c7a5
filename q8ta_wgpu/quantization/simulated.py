"""The noise of a float program's outputs in runs with roundings: of the yardstick, and of any choice of widths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.passes.plan.joins import origins_of
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.insert import quantized
from q8ta_wgpu.quantization.parts import Judge
from q8ta_wgpu.quantization.runner import Runner
from q8ta_wgpu.quantization.steps import Step
from q8ta_wgpu.quantization.stored import ROLES, Choice, Reading, StoredValues, Table, Width
from q8ta_wgpu.quantization.weights import RoundedWeights

_MANY = 64
"""The number of inputs from which on only the ranges without the simulated ones are tried."""


def by_rows(values: StoredValues) -> list[Step]:
    """The steps to 16 bits of values of which the device rounds each row."""
    why = "since the device chooses a scale for each of its rows"
    return [
        Step(
            (stored, "sums"),
            "int16",
            float(sum(values.graph.types[n].numel for n in stored.values[:1])),
            "scales of rows",
            why,
        )
        for stored in values.stored
        if stored in values.by_rows
    ]


@dataclass
class Simulated:
    """Runs with roundings of the items that a runner has.

    Args:
        calibration: which has met all items.
        runner: runs some of them.

    Attributes:
        results: the names of the outputs that are judged.
        judge: measures their noise.
    """

    calibration: Calibration
    runner: Runner
    _found: dict[tuple[frozenset[tuple[Reading, Width]], bool], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values, self.sums = self.calibration.values, self.calibration.sums
        weights = self.calibration.weights
        self._nearest = RoundedWeights(self.calibration.program, {}, weights.group, weights.algebra)
        held = [self.calibration.held_out] if self.calibration.is_held_out else []
        self._kinds: list[Callable[[], AbstractContextManager[None]]] = [*held]
        if not held or self.calibration.met_before < _MANY:
            self._kinds.append(contextlib.nullcontext)
        self.results = self.calibration.program.results or self.calibration.graph.outputs
        self.judge = Judge(self.runner.exact, origins_of(self.calibration.graph, self.results))

    def noise(self, chosen: Choice, rounds: bool = True) -> list[float]:
        """The noise of each part of outputs with these widths. Without `rounds` only the weights of transforms are
        rounded."""
        key = frozenset(chosen.items()), rounds
        if key not in self._found:
            own: Mapping[str, Node] = self.sums if rounds else {n: self.sums[n] for n in self.values.transforms}
            self._found[key] = self._simulated(lambda: self.calibration.quantized(chosen, own, runs=True))
        return self._found[key]

    def _simulated(self, made: Callable[[], Graph]) -> list[float]:
        """The noise of each part in a run of a graph, with each kind of ranges, one after the other."""
        found: list[float] = []
        for kind in self._kinds:
            with kind():
                found += self.judge.noise(self.runner.outputs(made()))
        return found

    def yardstick(self) -> list[float]:
        """The yardstick. Where the simulated items exceed the ranges of all others so far that this makes most of its
        noise, ranges that include them are simulated as well: beside so much noise, other noise of the same size would
        be allowed."""
        found = self._yardstick()
        if len(self._kinds) > 1 or not self.calibration.is_held_out:
            return found
        kinds, self._kinds = self._kinds, [contextlib.nullcontext]
        own = self._yardstick()
        self._kinds = kinds
        if all(noise - left <= left for noise, left in zip(found, own, strict=True)):
            return found
        self._kinds = [*kinds, contextlib.nullcontext]
        return self._yardstick()

    def _yardstick(self) -> list[float]:
        """The noise where nothing is rounded but the weights of weighted sums, to the nearest step, and what these sums
        read."""
        return self._simulated(lambda: quantized(self.values, self._only_sums(), self.sums, self._nearest, apart=True))

    def _only_sums(self) -> Choice:
        """The widths with which only what weighted sums read is rounded, and tables in 4 bits."""
        fixed = [stored for stored in self.values.stored if isinstance(stored, Table) and stored.fixed]
        others = [(s, role) for s in self.values.stored for role in ROLES if role != "sums" and s not in fixed]
        return {**dict.fromkeys(others, "float32"), **{step.reading: step.width for step in by_rows(self.values)}}
