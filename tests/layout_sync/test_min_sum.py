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


@given(instances())
def test_the_least_sum_is_found(instance: Instance) -> None:
    sizes, factors = instance
    found = minimize(sizes, factors)
    assert found.cost == total(found.values, factors) == least(sizes, factors)
    assert found.proved


@given(instances(), st.sampled_from([1, 2, 8]))
def test_past_the_cap_the_bound_holds(instance: Instance, cap: int) -> None:
    sizes, factors = instance
    found = minimize(sizes, factors, cap)
    assert found.bound <= least(sizes, factors) <= found.cost == total(found.values, factors)


def test_values_that_may_not_be_the_best_are_not_called_proved() -> None:
    pairs = itertools.combinations(range(16), 2)
    generator = np.random.default_rng(0)
    factors: list[Factor] = [(pair, generator.integers(0, 99, (4, 4)).astype(float)) for pair in pairs]
    found = minimize([4] * 16, factors, cap=64)
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
