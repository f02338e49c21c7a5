"""The optimal assignment equals brute force on every problem small enough to enumerate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Choice, Option, Problem, undominated
from testbed.layout_graphs import assignments, count, random_problem


def least(problem: Problem[str]) -> float:
    return min(assignment.cost(problem) for assignment in assignments(problem))


def solved(problem: Problem[str]) -> float:
    found, bound = optimal(problem)
    total = found.cost(problem)
    assert bound <= total * (1 + 1e-9)
    assert total <= bound * (1 + 1e-9), "not proved"
    return total


@pytest.mark.parametrize("seed", range(120))
def test_optimal_equals_brute_force(seed: int) -> None:
    problem = random_problem(seed, nodes=2 + seed % 4)
    if count(problem) > 30_000:
        problem = random_problem(seed, nodes=3, arity=2)
    assert solved(problem) == pytest.approx(least(problem))


@pytest.mark.parametrize("seed", range(30))
def test_past_the_cap_the_bound_holds(seed: int) -> None:
    """With tables of at most four entries nearly every bucket is split."""
    problem = random_problem(seed, nodes=4, arity=2)
    found, bound = optimal(problem, cap=4)
    assert bound <= least(problem) + 1e-9 <= found.cost(problem) + 2e-9


def flat(value: str, source: str, target: str) -> float:
    return 10.0


def test_a_value_read_twice_by_one_node_is_copied_once() -> None:
    """x op x: both operands in b, while x can only be written in a."""
    x = Choice((), "x", (Option(None, (), "a", 0.0),))
    both = Choice(("x", "x"), "y", (Option(None, ({"b": 0.0}, {"b": 0.0}), "b", 0.0),))
    assert solved(Problem((x, both), {}, (), flat)) == 10.0
    differing = Choice(("x", "x"), "y", (Option(None, ({"b": 0.0}, {"c": 0.0}), "b", 0.0),))
    assert solved(Problem((x, differing), {}, (), flat)) == 20.0


def test_a_transition_is_shared_between_readers() -> None:
    x = Choice((), "x", (Option(None, (), "a", 0.0),))
    readers = tuple(Choice(("x",), f"y{i}", (Option(None, ({"b": 0.0, "a": 4.0},), "b", 0.0),)) for i in range(4))
    assert solved(Problem((x, *readers[:2]), {}, (), flat)) == 8.0  # each reads a
    assert solved(Problem((x, *readers), {}, (), flat)) == 10.0  # one copy in b


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("split", [False, True])
def test_cat_of_24(seed: int, split: bool) -> None:
    """24 slices of one value joined by one node, or by a tree of nodes of at most 7."""
    draw = np.random.default_rng(seed)

    def option(arity: int, out: str) -> Option[str]:
        reads = tuple({layout: float(draw.integers(0, 5)) for layout in "ab"} for _ in range(arity))
        return Option(None, reads, out, float(draw.integers(0, 20)))

    def choice(inputs: tuple[str, ...], output: str) -> Choice[str]:
        return Choice(inputs, output, tuple(option(len(inputs), out) for out in "ab"))

    x, slices = choice((), "x"), [choice(("x",), f"s{i}") for i in range(24)]
    names = tuple(s.output for s in slices)
    if split:
        parts = [choice(names[i : i + 7], f"p{i}") for i in range(0, 24, 7)]
        joins = [*parts, choice(tuple(p.output for p in parts), "y")]
    else:
        joins = [choice(names, "y")]
    price = {
        (v, s, t): float(draw.integers(1, 9))
        for v in ("x", *names, *(j.output for j in joins))
        for s in "ab"
        for t in "ab"
    }
    problem = Problem((x, *slices, *joins), {}, (), lambda v, s, t: price[v, s, t])

    def reading(node: Choice[str], position: int, chosen: Option[str], stored: str) -> float:
        return min(
            c + (0.0 if r == stored else price[node.inputs[position], stored, r])
            for r, c in chosen.reads[position].items()
        )

    def best(node: Choice[str], out: str | None, below: dict[str, dict[str, float]]) -> float:
        """Least cost of a tree node written in `out`, given its operands' costs by the layout they are written in."""
        return min(
            o.cost
            + sum(min(c + reading(node, i, o, s) for s, c in below[n].items()) for i, n in enumerate(node.inputs))
            for o in node.options
            if out in (None, o.out)
        )

    def joined(leaves: dict[str, dict[str, float]]) -> float:
        for node in joins[:-1]:
            leaves[node.output] = {out: best(node, out, leaves) for out in "ab"}
        return best(joins[-1], None, leaves)

    expected = math.inf
    for produced in x.options:
        for copied in (False, True):
            other = "b" if produced.out == "a" else "a"
            here = {produced.out, other} if copied else {produced.out}
            leaves = {
                s.output: {o.out: o.cost + min(c for r, c in o.reads[0].items() if r in here) for o in s.options}
                for s in slices
            }
            copy = price["x", produced.out, other] if copied else 0.0
            expected = min(expected, produced.cost + copy + joined(leaves))
    assert solved(problem) == pytest.approx(expected)


def test_dominated_options_go() -> None:
    cheap = Option("cheap", ({"a": 1.0, "b": 1.0},), "a", 1.0)
    dear = Option("dear", ({"a": 1.0},), "a", 2.0)
    other = Option("other", ({"a": 1.0},), "b", 2.0)
    assert undominated([dear, cheap, other, dear]) == (cheap, other)
    assert undominated([cheap, cheap]) == (cheap,)


def test_an_assignment_that_reads_what_is_not_listed_has_no_cost() -> None:
    x = Choice((), "x", (Option(None, (), "a", 0.0),))
    y = Choice(("x",), "y", (Option("k", ({"a": 0.0},), "a", 0.0),))
    problem = Problem((x, y), {}, (), flat)
    with pytest.raises(GraphError, match="y reads b"):
        Assignment((x.options[0], y.options[0]), ((), ("b",))).cost(problem)
