"""The result of tuning, to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from q8ta_wgpu.ir.graph import Call, Graph
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step


@dataclass(frozen=True)
class Change:
    """A dispatch for which tuning chose another kernel or other layouts.

    Attributes:
        before, after: its steps in both plans; None if it is a transition that the plan does not have.
        microseconds: of both steps; 0 for None.
        count: number of equal dispatches with the same change.
    """

    before: Step | None
    after: Step | None
    microseconds: tuple[float, float]
    count: int = 1

    def __str__(self) -> str:
        step = self.after or self.before
        assert step is not None
        shape = "x".join(map(str, step.call.output.shape))
        before, after = self.microseconds
        variants = f"{_variant(self.before)} -> {_variant(self.after)}"
        return f"{self.count:>3} x {variants}, result {shape}: {before:.1f} -> {after:.1f} us"


def _variant(step: Step | None) -> Variant | None:
    return step.variant if step else None


@dataclass(frozen=True)
class Tuning:
    """The result of tuning a graph on a device. Print it to see what was timed, what changed and the gain.

    Attributes:
        device: the adapter's name.
        graph: the graph of `plan`. Some of its convolutions may be two dispatches (passes/use_im2col.py).
        rules: the plan by estimates.
        plan: the plan by measurement.
        microseconds: time of each candidate, by call and variant.
        sampled: number of candidates timed in full.
        stopped: number of candidates that were so slow in two runs that they were not run again.
        estimated: number of candidates not run because that would take too long.
        cached: number of candidates whose times were in the cache.
        seconds: duration of tuning.
        cache: the cache file; None if there is no folder for it.
        note: problem with the cache; empty if there is none.
    """

    device: str
    graph: Graph
    rules: Plan
    plan: Plan
    microseconds: Mapping[Call, Mapping[Variant, float]]
    sampled: int
    stopped: int
    estimated: int
    cached: int
    seconds: float
    cache: Path | None
    note: str

    @property
    def timed(self) -> int:
        """Number of candidates run on the device."""
        return self.sampled + self.stopped

    def step_us(self, step: Step) -> float:
        """Measured microseconds of a dispatch of either plan; 0 if it could not be measured."""
        return self.microseconds.get(step.call, {}).get(step.variant, 0.0)

    def predicted_ms(self, plan: Plan) -> float:
        """Milliseconds of a run of either plan: the sum of its measured dispatches."""
        return sum(map(self.step_us, plan.steps)) / 1e3

    @property
    def changes(self) -> tuple[Change, ...]:
        """Differences between the plans, the largest gain first."""
        before = {step.node.output: step for step in self.rules.steps}
        after = {step.node.output: step for step in self.plan.steps}
        grouped: dict[object, Change] = {}
        for name in dict.fromkeys([*before, *after]):
            pair = before.get(name), after.get(name)
            us = (self.step_us(pair[0]) if pair[0] else 0.0, self.step_us(pair[1]) if pair[1] else 0.0)
            variants = _variant(pair[0]), _variant(pair[1])
            if variants[0] != variants[1]:
                shape = next(step.call.output.shape for step in pair if step)
                same = grouped.get(key := (*variants, shape, us))
                grouped[key] = Change(*pair, us, same.count + 1 if same else 1)
        return tuple(sorted(grouped.values(), key=lambda c: c.count * (c.microseconds[1] - c.microseconds[0])))

    def __str__(self) -> str:
        lines = [
            f"{self.device}: {self.timed} candidates timed ({self.stopped} of them stopped after two runs), "
            f"{self.estimated} too long to run, {self.cached} taken from the cache, {self.seconds:.1f} s"
        ]
        changes = self.changes
        lines += ["against the rules:", *(f"  {change}" for change in changes)] if changes else ["the rules stand"]
        before, after = self.predicted_ms(self.rules), self.predicted_ms(self.plan)
        lines.append(
            f"predicted: {before:.3f} ms by the rules, {after:.3f} ms tuned, {len(self.plan.steps)} dispatches"
        )
        lines.append(f"cache: {self.cache}" if self.cache else "cache: none")
        return "\n".join([*lines, *([self.note] if self.note else [])])
