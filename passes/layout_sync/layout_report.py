"""A printable report of layout sync's decisions for a graph, and of what the other policy would cost."""

from __future__ import annotations

from dataclasses import dataclass

from q8ta_wgpu.errors import counted
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step, sync_layouts


@dataclass(frozen=True)
class LayoutReport:
    """The outcome of layout sync on one graph.

    Attributes:
        graph: the planned graph.
        optimal, greedy: the plans of both policies.
    """

    graph: Graph
    optimal: Plan
    greedy: Plan

    def __str__(self) -> str:
        lines = []
        for name in [*self.graph.inputs, *(node.output for node in self.graph.nodes)]:
            alias = self.optimal.aliases.get(name)
            note = f"  = {alias}, free view" if alias else ""
            lines.append(f"{self.optimal.layouts[name].short:<14} {name}: {self.graph.types[name]}{note}")
        for plan in (self.optimal, self.greedy):
            sizes = [moved(step) for step in plan.transitions]
            count = counted(len(sizes), "transition")
            lines.append(f"{plan.policy}: {plan.cost / 1e6:.3f} MB, {count} of {sum(sizes) / 1e6:.3f} MB")
            for step, size in zip(plan.transitions, sizes, strict=True):
                lines.append(f"  {step.node.inputs[0]}: {step.variant}, {size} bytes")
        gap = (self.optimal.cost - self.optimal.bound) / 1e6
        lines.append("proved optimal" if self.optimal.proved else f"at most {gap:.3f} MB above the least possible")
        return "\n".join(lines)


def moved(step: Step) -> int:
    """Bytes that a transition reads and writes."""
    (source,) = step.variant.reads
    assert source is not None
    return cost.size(step.call.output, source) + cost.size(step.call.output, step.variant.out)


def layout_report(graph: Graph, target: Target = BASELINE) -> LayoutReport:
    """Plans a lowered graph under both policies. Print the result for layouts, transitions and estimated costs.

    Costs are those of `cost`, in bytes. Raises UnsupportedError for a node that no kernel can run.
    """
    return LayoutReport(graph, sync_layouts(graph, target), sync_layouts(graph, target, "greedy"))
