"""What layout sync decided for a graph, and what other ways of deciding would cost: for people to read."""

from __future__ import annotations

from dataclasses import dataclass

from q8ta_wgpu.errors import counted
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, Layout
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.layout_sync.options import problem_of
from q8ta_wgpu.passes.layout_sync.plan import Plan, plan_of, sync_layouts
from q8ta_wgpu.passes.layout_sync.problem import Choice, Problem


@dataclass(frozen=True)
class Transition:
    """One copy: the value, the layouts it goes from and to, and the bytes read and written."""

    value: str
    source: Layout
    target: Layout
    moved: int


@dataclass(frozen=True)
class LayoutReport:
    """The outcome of layout sync on one graph.

    Attributes:
        optimal, greedy: the plans of both policies.
        single: for each layout the plan of least cost if every value is written in it wherever a kernel can.
        graph: what was planned.
    """

    graph: Graph
    optimal: Plan
    greedy: Plan
    single: dict[Layout, Plan]

    @property
    def best_single(self) -> Layout:
        """The layout that costs least if it is the only one."""
        return min(self.single, key=lambda layout: self.single[layout].cost)

    def transitions(self, plan: Plan) -> list[Transition]:
        """The copies of a plan, in execution order."""
        copies = []
        for step in plan.transitions:
            source, out, t = step.variant.reads[0], step.variant.out, step.call.output
            assert source is not None
            moved = cost.size(t, source) + cost.size(t, out)
            copies.append(Transition(step.node.inputs[0], source, out, moved))
        return copies

    def __str__(self) -> str:
        lines = []
        for name in [*self.graph.inputs, *(node.output for node in self.graph.nodes)]:
            alias = self.optimal.aliases.get(name)
            note = f"  = {alias}, free view" if alias else ""
            lines.append(f"{self.optimal.layouts[name].short:<14} {name}: {self.graph.types[name]}{note}")
        for plan in (self.optimal, self.greedy):
            copies = self.transitions(plan)
            moved = sum(t.moved for t in copies)
            count = counted(len(copies), "transition")
            lines.append(f"{plan.policy}: {plan.cost / 1e6:.3f} MB, {count} of {moved / 1e6:.3f} MB")
            lines += [f"  {t.value}: {t.source.short} -> {t.target.short}, {t.moved} bytes" for t in copies]
        best = self.best_single
        lines.append(f"everything in {best.short}: {self.single[best].cost / 1e6:.3f} MB")
        gap = (self.optimal.cost - self.optimal.bound) / 1e6
        lines.append("proved optimal" if self.optimal.proved else f"at most {gap:.3f} MB above the least possible")
        return "\n".join(lines)


def layout_report(graph: Graph, target: Target = BASELINE) -> LayoutReport:
    """Plans a lowered graph under every policy. `print` it for layouts, transitions with bytes, and estimated costs.

    Costs are those of `cost`, in bytes. Raises UnsupportedError for a node that no kernel can run.
    """
    problem = problem_of(graph, target)
    single = {}
    for layout in INT8_LAYOUTS:
        found, _ = optimal(_restricted(problem, layout))
        single[layout] = plan_of(graph, target, problem, found, f"everything in {layout.short}")
    return LayoutReport(graph, sync_layouts(graph, target), sync_layouts(graph, target, "greedy"), single)


def _restricted(problem: Problem[Layout], layout: Layout) -> Problem[Layout]:
    """The problem in which every node that can write `layout` does."""
    choices = []
    for choice in problem.choices:
        kept = tuple(option for option in choice.options if option.out == layout)
        choices.append(Choice(choice.inputs, choice.output, kept or choice.options))
    free = {name: tuple(x for x in layouts if x == layout) or layouts for name, layouts in problem.free.items()}
    return Problem(tuple(choices), free, problem.constants, problem.transition)
