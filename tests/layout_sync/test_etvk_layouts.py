"""Our `greedy` is upstream's sweep: on upstream's operator table it gives upstream's numbers. `optimal` beats it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Problem
from q8ta_wgpu.passes.layout_sync.tensor_repr import TensorRepr
from testbed.etvk_networks import NEUTRAL
from testbed.etvk_table import Fixture

SLACK = 1 + 1e-9


@cache
def swept(name: str, universal: bool = True) -> tuple[Problem[TensorRepr], Assignment[TensorRepr]]:
    fixture = Fixture(NEUTRAL[name](), universal)
    problem = fixture.problem()
    return problem, fixture.greedy(problem)


def test_resnet50_keeps_three_transitions() -> None:
    """Before each stride-2 shortcut: the block's output goes to a 1x1 convolution (4W4C) and a general one (CONV2D)."""
    problem, found = swept("resnet50")
    copies = found.copies(problem)
    assert [layout.memory_layout for _, layout in copies] == [Layout.PACKED_INT8_CONV2D] * 3
    readers = problem.readers()
    for name, _ in copies:
        ops = {problem.choices[index].options[0].kernel for index, _ in readers[name]}
        assert ops == {"pw", "conv"}


@pytest.mark.parametrize(("universal", "transitions"), [(False, 11), (True, 3)])
def test_refinenet_before_and_after_universal_views(universal: bool, transitions: int) -> None:
    """Two for each of four float-only clones, and one for each encoder level that a 1x1 and a general convolution read.

    Upstream reports 11 and 3 for a network of this kind that is not public; this one was made after its description,
    with as many encoder levels as give its 3. The 8 around the clones do not depend on that choice.
    """
    problem, found = swept("refinenet", universal)
    copies = found.copies(problem)
    assert len(copies) == transitions
    around = [name for name, layout in copies if name.startswith("clone") or not layout.memory_layout.is_int8]
    assert len(around) == (0 if universal else 8)


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("universal", [False, True])
@pytest.mark.parametrize("free_kernels", [False, True])
def test_optimal_costs_no_more_than_the_sweep(name: str, universal: bool, free_kernels: bool) -> None:
    graph = NEUTRAL[name]()
    problem = Fixture(graph, universal, free_kernels).problem()
    _, greedy = swept(name, universal)
    best, bound = optimal(problem)
    assert best.cost(problem) <= bound * SLACK, "not proved"
    assert best.cost(problem) <= greedy.cost(problem) * SLACK


def test_resnet50_without_a_transition() -> None:
    """With the kernel free, three 1x1 convolutions run as general ones, at twice their cost, and spare the copies."""
    fixture = Fixture(NEUTRAL["resnet50"](), free_kernels=True)
    problem = fixture.problem()
    best, _ = optimal(problem)
    assert best.copies(problem) == []
    kernels = [o.kernel for n, o in zip(fixture.graph.nodes, best.options, strict=True) if n.op == "pw"]
    assert kernels.count("conv") == 3 and kernels.count("pw") == len(kernels) - 3
    _, greedy = swept("resnet50")
    assert best.cost(problem) < 0.99 * greedy.cost(problem)


def test_with_upstreams_kernels_three_transitions_are_the_least() -> None:
    """Each of the three values is read in two layouts, whoever decides: the sweep only pays more for padding."""
    problem, greedy = swept("resnet50")
    best, _ = optimal(problem)
    assert len(best.copies(problem)) == 3
    assert best.cost(problem) < greedy.cost(problem)


@pytest.mark.parametrize("name", NEUTRAL)
def test_universal_views_never_cost_more(name: str) -> None:
    graph = NEUTRAL[name]()
    after = Fixture(graph).problem()
    before = replace(Fixture(graph), universal=False).problem()
    assert optimal(after)[0].cost(after) <= optimal(before)[0].cost(before) * SLACK
