"""Layout sync on whole networks: estimated cost, transitions and bytes under each policy, and planning time.

Prints a table for our operators and one for ExecuTorch Vulkan's constraints, and times over nodes.
"""

from __future__ import annotations

import cProfile
import gc
import math
import time
from collections.abc import Mapping
from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.layout_report import LayoutReport, layout_report, moved
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, Plan, sync_layouts
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.lower import lower
from testbed.etvk_networks import NEUTRAL
from testbed.etvk_table import Fixture
from testbed.layout_graphs import deep_graph
from testbed.networks import NETWORKS, example_input

REAL = ("resnet50", "mobilenet_v2", "mobilenet_v3", "refinenet", "unet", "shufflenet", "transformer")
NODES = (40, 100, 200, 400, 800, 1200, 1600, 2000)
MORE_CALLS = 1.1
"""Growth of the number of calls that still counts as linear, relative to linear growth; 1.00 was measured."""

SLACK = 1 + 1e-9


@cache
def network(name: str) -> Graph:
    """The fused graph of a published network, calibrated on one input."""
    x = example_input(NETWORKS[name].shape)
    return q8.compile(q8.quantize(NETWORKS[name].factory(), (x,), [x])).graph


@cache
def report(name: str) -> LayoutReport:
    return layout_report(lower(network(name), BASELINE))


def cells(plan: Plan) -> str:
    size = sum(map(moved, plan.transitions))
    return f"{plan.cost / 1e6:9.2f} {len(plan.transitions):3d} {size / 1e6:7.3f} {len(plan.aliases):3d}"


def explained(plan: Plan, other: Plan) -> list[str]:
    """The three values for which a plan costs most more than another one: kernels, layouts and the difference."""
    costs: list[dict[str, tuple[float, str]]] = []
    for each in (plan, other):
        costs.append({})
        for step in each.steps:
            paid = cost.dispatch_cost(step.variant, step.call)
            reads = " ".join(layout.short for layout in step.variant.reads if layout)
            costs[-1][step.node.output] = paid, f"{step.variant.kernel.name} {reads} -> {step.variant.out.short}"
    free = (0.0, "no dispatch")
    extra = {name: costs[0].get(name, free)[0] - costs[1].get(name, free)[0] for name in costs[0] | costs[1]}
    worst = sorted(extra, key=lambda name: -extra[name])[:3]
    return [
        f"{extra[name] / 1e6:.3f} MB {name}: {costs[0].get(name, free)[1]}, not {costs[1].get(name, free)[1]}"
        for name in worst
        if extra[name] > 0
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", REAL)
def test_time(benchmark: BenchmarkFixture, name: str, policy: str) -> None:
    graph = network(name)
    plan = benchmark(sync_layouts, graph, BASELINE, policy)
    benchmark.extra_info.update(cost=plan.cost, transitions=len(plan.transitions), nodes=len(graph.nodes))
    assert policy == "greedy" or plan.proved


def test_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Optimal never costs more than greedy. Prints the nodes on which greedy costs more."""
    group = f"{'MB':>9} {'n':>3} {'moved':>7} {'fre':>3}"
    lines = [
        f"{'':<14}{'nodes':>5}  {'optimal':<25} greedy",
        f"{'':<21}{group} {group}",
    ]
    for name in REAL:
        found = report(name)
        plans = " ".join(cells(plan) for plan in (found.optimal, found.greedy))
        lines.append(f"{name:<14}{len(found.graph.nodes):>5}  {plans}")
        assert found.optimal.cost <= found.greedy.cost * SLACK
        lines += [f"{'':<21}greedy above it: {text}" for text in explained(found.greedy, found.optimal)]
    with capsys.disabled():
        print("\n" + "\n".join(lines))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "refinenet"])
def test_no_transition_is_left_between_int8_operators(name: str) -> None:
    assert report(name).optimal.transitions == ()


def test_upstreams_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    """Costs under ET-VK's constraints: before and after view and clone took packed layouts, and with any kernel."""
    lines = [f"{'':<14}{'greedy before':>18} {'greedy since':>18} {'optimal':>18} {'kernels free':>18}"]
    for name, make in NEUTRAL.items():
        graph = make()
        before, since, free = Fixture(graph, universal=False), Fixture(graph), Fixture(graph, free_kernels=True)
        found = [(f.problem(), f) for f in (before, since)]
        answers = [(p, f.greedy(p)) for p, f in found]
        answers += [(p, optimal(p)[0]) for p in (since.problem(), free.problem())]
        texts = [f"{a.cost(p) / 1e6:10.2f} MB {len(a.copies(p)):>4}" for p, a in answers]
        lines.append(f"{name:<14} " + " ".join(texts))
        assert answers[3][1].cost(answers[3][0]) <= answers[2][1].cost(answers[2][0]) * SLACK
        assert answers[2][1].cost(answers[2][0]) <= answers[1][1].cost(answers[1][0]) * SLACK
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def test_time_is_linear(capsys: pytest.CaptureFixture[str]) -> None:
    """Planning time grows linearly. Function calls are counted, since a busy machine does not change them. Time, which
    also shows loops within a call, must only be nearer to linear than to quadratic."""
    graphs = {nodes: deep_graph(nodes // 4) for nodes in NODES}
    few, many = 400, 2000
    for policy in POLICIES:
        times = seconds(graphs, policy)
        counts = {nodes: calls(graphs[nodes], policy) for nodes in (few, many)}
        with capsys.disabled():
            print(f"\n{policy}: " + ", ".join(f"{n} nodes {1e3 * t:.1f} ms" for n, t in times.items()))
            print(f"{policy}: calls " + ", ".join(f"{n} nodes {count:,}" for n, count in counts.items()))
        assert counts[many] <= MORE_CALLS * many / few * counts[few]
        assert times[many] <= (many / few) ** 1.5 * times[few]


def seconds(graphs: Mapping[int, Graph], policy: str) -> dict[int, float]:
    """The least of five planning times of each graph. Sizes are timed in turns, so that other work slows all alike."""
    least = dict.fromkeys(graphs, math.inf)
    for _ in range(5):
        for nodes, graph in graphs.items():
            gc.collect()
            began = time.process_time()
            sync_layouts(graph, BASELINE, policy)
            least[nodes] = min(least[nodes], time.process_time() - began)
    return least


def calls(graph: Graph, policy: str) -> int:
    profile = cProfile.Profile()
    profile.runcall(sync_layouts, graph, BASELINE, policy)
    return sum(entry.callcount for entry in profile.getstats())
