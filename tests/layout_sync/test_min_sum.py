"""The solver behind layout sync: least sum of tables, against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from q8ta_wgpu.passes.layout_sync.min_sum import Factor, minimize

Instance = tuple[list[int], list[Factor]]


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Up to seven variables of up to four values, factors of up to three of them, with infinities."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    factors: list[Factor] = []
    for _ in range(draw(st.integers(0, 12))):
        scope = tuple(sorted(draw(st.sets(st.integers(0, len(sizes) - 1), max_size=3))))
        table = generator.integers(0, 9, [sizes[v] for v in scope]).astype(float)
        table[generator.random(table.shape) < 0.1] = math.inf
        factors.append((scope, table))
    return sizes, factors


def total(values: tuple[int, ...], factors: list[Factor]) -> float:
    return float(sum(table[tuple(values[v] for v in scope)] for scope, table in factors))


def least(sizes: list[int], factors: list[Factor]) -> float:
    return min(total(values, factors) for values in itertools.product(*map(range, sizes)))


@given(instances(), st.sampled_from([1, 2, 8, 1 << 18]))
def test_the_least_sum_is_found_whatever_the_cap(instance: Instance, cap: int) -> None:
    sizes, factors = instance
    found = minimize(sizes, factors, cap)
    assert found.cost == total(found.values, factors) == least(sizes, factors)
    assert found.proved


@given(instances(), st.integers(0, 200))
def test_out_of_budget_the_bound_holds(instance: Instance, budget: int) -> None:
    sizes, factors = instance
    found = minimize(sizes, factors, cap=2, budget=budget)
    assert found.bound <= least(sizes, factors) <= found.cost == total(found.values, factors)


def clique(variables: int, values: int) -> Instance:
    generator = np.random.default_rng(0)
    pairs = itertools.combinations(range(variables), 2)
    return [values] * variables, [(pair, generator.integers(0, 99, (values, values)).astype(float)) for pair in pairs]


def test_a_clique_past_the_cap_is_branched_on() -> None:
    sizes, factors = clique(7, 3)
    exact, branched = minimize(sizes, factors), minimize(sizes, factors, cap=81)
    assert exact.proved and branched.proved
    assert exact.cost == branched.cost == least(sizes, factors)


def test_an_unfinished_search_says_so() -> None:
    sizes, factors = clique(16, 4)
    found = minimize(sizes, factors, cap=64, budget=10_000)
    assert not found.proved
    assert 0 < found.bound < found.cost == total(found.values, factors)


@pytest.mark.parametrize("length", [10, 1000])
def test_a_chain_takes_tables_of_two_variables(length: int) -> None:
    sizes = [3] * length
    step = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
    factors: list[Factor] = [((v, v + 1), step) for v in range(length - 1)]
    factors += [((0,), np.array([0.0, 9.0, 9.0])), ((length - 1,), np.array([9.0, 9.0, 0.0]))]
    assert minimize(sizes, factors, cap=9).cost == 2.0


def test_no_variables_and_impossible_problems() -> None:
    assert minimize([], []).cost == 0.0
    assert minimize([2], [((), np.array(3.0))]).cost == 3.0
    assert math.isinf(minimize([2], [((0,), np.full(2, math.inf))]).cost)
