"""The result of tuning, to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from q8ta_wgpu.errors import counted
from q8ta_wgpu.ir.graph import Call, Graph
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step


@dataclass(frozen=True)
class Tuning:
    """The result of tuning a graph on a device. Print it to see what was timed, what changed and the gain.

    Attributes:
        device: the adapter's name.
        graph: the graph of `plan`. Some of its convolutions may be two dispatches (passes/use_im2col.py).
        rules: the plan by estimates.
        plan: the plan by measurement.
        microseconds: time of each candidate, by call and variant.
        timed: number of candidates timed, or estimated because they would take too long.
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
    timed: int
    cached: int
    seconds: float
    cache: Path | None
    note: str

    def step_us(self, step: Step) -> float:
        """Measured microseconds of a dispatch of either plan; 0 if it could not be measured."""
        return self.microseconds.get(step.call, {}).get(step.variant, 0.0)

    def predicted_ms(self, plan: Plan) -> float:
        """Milliseconds of a run of either plan: the sum of its measured dispatches."""
        return sum(map(self.step_us, plan.steps)) / 1e3

    @property
    def changed(self) -> int:
        """Number of dispatches that run otherwise than by the rules, those that only one plan has included."""
        before, after = ({step.node.output: step.variant for step in p.steps} for p in (self.rules, self.plan))
        return sum(before.get(name) != after.get(name) for name in {**before, **after})

    def __str__(self) -> str:
        before, after = self.predicted_ms(self.rules), self.predicted_ms(self.plan)
        lines = [
            f"{self.device}: {self.timed} candidates timed, {self.cached} taken from the cache, {self.seconds:.1f} s",
            f"{counted(n, 'dispatch', 'dispatches')} changed" if (n := self.changed) else "the rules stand",
            f"predicted: {before:.3f} ms by the rules, {after:.3f} ms tuned, {len(self.plan.steps)} dispatches",
            f"cache: {self.cache or 'none'}",
        ]
        return "\n".join([*lines, *([self.note] if self.note else [])])
