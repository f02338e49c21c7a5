"""Layout sync: chooses a layout for every value and a kernel for every node, and inserts transitions (copies) where a
reader needs another layout.

There are two policies. `greedy` is ExecuTorch Vulkan's forward sweep over our operator table. `optimal` chooses layouts
and kernels together for least total cost under `q8ta_wgpu.passes.layout_sync.cost`, and says whether that is proved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.ir.graph import Call, Graph, Node
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.greedy import Pick, greedy
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.layout_sync.options import (
    Transitions,
    clone_call,
    problem_of,
    registered,
    slice_offset,
    transitions,
)
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Option, Problem, cheapest

POLICIES = ("optimal", "greedy")
SLACK = 1e-9
"""Relative difference below which two costs are equal: sums are rounded."""


@dataclass(frozen=True)
class Step:
    """One dispatch of the plan: a node, its call and the variant that runs it."""

    node: Node
    call: Call
    variant: Variant


@dataclass(frozen=True)
class Plan:
    """Steps in execution order, and the layout of every value: inputs, results, copies, constants that have one.

    Attributes:
        steps: the dispatches.
        layouts: by name of the value.
        aliases: for each free view, the value whose buffer it shares.
        offsets: for each free slice, the byte at which it begins in that buffer.
        policy: 'optimal' or 'greedy'.
        cost: total estimate in bytes.
        bound: lower bound of the cost of any assignment.
    """

    steps: tuple[Step, ...]
    layouts: dict[str, Layout]
    aliases: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)
    policy: str = ""
    cost: float = 0.0
    bound: float = 0.0

    def root(self, name: str) -> str:
        """The value whose buffer holds `name`: itself unless it is an alias."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def offset(self, name: str) -> int:
        """The byte of that buffer at which `name` begins."""
        total = self.offsets.get(name, 0)
        while name in self.aliases:
            name = self.aliases[name]
            total += self.offsets.get(name, 0)
        return total

    @property
    def transitions(self) -> tuple[Step, ...]:
        """The copies that layout sync inserted."""
        return tuple(step for step in self.steps if step.node.op == "q8ta_clone")

    @property
    def proved(self) -> bool:
        """Whether no assignment costs less."""
        return self.cost <= self.bound * (1 + SLACK)


def sync_layouts(
    graph: Graph, target: Target, policy: str = "optimal", measured: cost.Measurements = cost.UNMEASURED
) -> Plan:
    """Chooses layouts and kernels for a lowered `graph` on `target` by a policy, 'optimal' or 'greedy'. Deterministic.

    Measured calls run in a measured variant. Under 'greedy', costs choose only kernels: the layouts are those of the
    sweep, and calls in `measured` must have been measured in them.

    Raises UnsupportedError for a node that no kernel can run on the target, or an unknown policy.
    """
    if policy not in POLICIES:
        raise UnsupportedError(f"layouts must be chosen by one of {', '.join(POLICIES)}, found {policy!r}")
    problem = problem_of(graph, target, measured)
    if policy == "greedy":
        found = greedy_assignment(problem, greedy(registered(graph, target), graph.constants))
        return plan_of(graph, target, problem, found, "greedy", measured=measured)
    found, bound = optimal(problem)
    if found.cost(problem) > bound * (1 + SLACK) and not measured:  # the sweep may use layouts that were not measured
        swept = greedy_assignment(problem, greedy(registered(graph, target), graph.constants))
        found = min(found, swept, key=lambda assignment: assignment.cost(problem))
    return plan_of(graph, target, problem, found, "optimal", bound, measured)


def greedy_assignment(problem: Problem[Layout], picks: Sequence[Pick]) -> Assignment[Layout]:
    """The sweep's layouts, with the cheapest option that they allow for each node."""
    options: list[Option[Layout]] = []
    reads: list[tuple[Layout | None, ...]] = []
    free: dict[str, Layout] = {}
    for choice, pick in zip(problem.choices, picks, strict=True):
        layouts = [r.memory_layout if r else None for r in pick.reads]
        costs = {index: _cost_with(option, layouts) for index, option in enumerate(choice.options)}
        fitting = [index for index in costs if choice.options[index].out == pick.out.memory_layout]
        option = choice.options[min(fitting, key=costs.__getitem__)]
        options.append(option)
        reads.append(tuple(r or cheapest(read) for r, read in zip(layouts, option.reads, strict=True)))
        for name, layout in zip(choice.inputs, layouts, strict=True):
            if name in problem.free and layout is not None:
                free.setdefault(name, layout)
    return Assignment(
        tuple(options),
        tuple(reads),
        {n: free[n] if free.get(n) in found else found[0] for n, found in problem.free.items()},
    )


def _cost_with(option: Option[Layout], layouts: Sequence[Layout | None]) -> float:
    """The cost of an option with these reads; infinite if it cannot read one of them."""
    pairs = zip(layouts, option.reads, strict=True)
    return option.cost + sum(read.get(layout, math.inf) for layout, read in pairs if layout is not None)


def plan_of(
    graph: Graph,
    target: Target,
    problem: Problem[Layout],
    found: Assignment[Layout],
    policy: str,
    bound: float = 0.0,
    measured: cost.Measurements = cost.UNMEASURED,
) -> Plan:
    """The plan of an assignment. Copies come just before their first reader, free views become aliases."""
    layouts = dict(found.free)
    aliases: dict[str, str] = {}
    offsets: dict[str, int] = {}
    steps: list[Step] = []
    for node, option, reads in zip(graph.nodes, found.options, found.reads, strict=True):
        names = []
        for name, layout in zip(node.inputs, reads, strict=True):
            if layout is not None and name in graph.constants:
                layouts.setdefault(name, layout)
            elif layout is not None and layouts[name] != layout:
                name = _copy(graph, transitions(graph.types[name], target, measured), steps, layouts, name, layout)
            names.append(name)
        layouts[node.output] = option.out
        if option.kernel is None:
            aliases[node.output] = names[0]
            if node.op == "slice" and (offset := slice_offset(graph.call(node), option.out)):
                offsets[node.output] = offset
            continue
        renamed = Node(node.op, tuple(names), node.output, node.attrs, node.source)
        steps.append(Step(renamed, graph.call(node), Variant(option.kernel, reads, option.out)))
    return Plan(tuple(steps), layouts, aliases, offsets, policy, found.cost(problem), bound)


def _copy(
    graph: Graph, copies: Transitions, steps: list[Step], layouts: dict[str, Layout], name: str, layout: Layout
) -> str:
    """The name of a value's copy in a layout; adds its step to `steps` if there is none yet."""
    copy = f"{name}@{layout.short}"
    if copy not in layouts:
        t = graph.types[name]
        _, kernel = copies[layouts[name], layout]
        layouts[copy] = layout
        node = Node("q8ta_clone", (name,), copy, {}, f"{name} in {layout.short}")
        steps.append(Step(node, clone_call(t), Variant(kernel, (layouts[name],), layout)))
    return copy
