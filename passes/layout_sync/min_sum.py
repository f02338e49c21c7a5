"""Minimizes a sum of small cost tables over discrete variables, by variable elimination.

Elimination in min-fill order (Dechter, "Bucket elimination", 1999) is exact. On variables of degree 0, 1 and 2 it is
the R0, R1 and R2 reductions of partitioned boolean quadratic programming (Scholz and Eckstein, 2002). Where a table
would exceed the cap, the bucket is split (mini-buckets, Dechter and Rish, 2003): the values found may then not be the
best ones, and their cost has a lower bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Scope = tuple[int, ...]
Factor = tuple[Scope, Table]
"""Variables in ascending order, and the cost of each combination of their values, with one axis for each variable."""

CAP = 1 << 18
"""Limit of entries in a table: 2 MiB."""

FILL_DEGREE = 24
"""For variables with more neighbours the fill is not counted exactly, since they are eliminated late anyway."""


@dataclass(frozen=True)
class Solution:
    """The best values found, their cost, and a proved lower bound of the cost."""

    values: tuple[int, ...]
    cost: float
    bound: float

    @property
    def proved(self) -> bool:
        """Whether the cost is the least there is, but for rounding."""
        return self.cost <= self.bound + 1e-9 * abs(self.bound)


def minimize(sizes: Sequence[int], factors: Sequence[Factor], cap: int = CAP) -> Solution:
    """Finds values, one in range(size) for each variable, with a small sum of factors: the least one unless a table
    would exceed `cap` entries. Tables may hold infinities."""
    return _Elimination(sizes, factors, cap).solution


@dataclass
class _Elimination:
    """One run of (mini-)bucket elimination.

    Attributes:
        bound: a lower bound of the cost; the cost itself if no bucket was split.
        solution: values from decoding the buckets in reverse order.
    """

    sizes: Sequence[int]
    original: Sequence[Factor]
    cap: int
    bound: float = 0.0
    factors: dict[int, Factor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.of: list[set[int]] = [set() for _ in self.sizes]
        self.near: list[set[int]] = [set() for _ in self.sizes]
        self.serial = 0
        for scope, table in self.original:
            self._add(*self._open(scope, table))
        trail = self._run()
        self.solution = self._decode(trail)

    def _open(self, scope: Scope, table: Table) -> Factor:
        """A factor without the variables that have one value."""
        index = tuple(0 if self.sizes[v] == 1 else slice(None) for v in scope)
        return tuple(v for v in scope if self.sizes[v] > 1), table[index]

    def _add(self, scope: Scope, table: Table) -> None:
        if not scope:
            self.bound += float(table)
            return
        self.factors[self.serial] = scope, table
        for v in scope:
            self.of[v].add(self.serial)
            self.near[v].update(scope)
            self.near[v].discard(v)
        self.serial += 1

    def _priority(self, v: int) -> tuple[int, int, int]:
        near = self.near[v]
        if len(near) <= 1:
            return 0, 0, v
        if len(near) > FILL_DEGREE:
            return len(near) ** 2, 0, v
        fill = sum(len(near) - 1 - len(self.near[u] & near) for u in near) // 2
        return fill, math.prod(self.sizes[u] for u in near), v

    def _run(self) -> list[tuple[int, list[Factor]]]:
        """Eliminates all variables; returns each with the factors it was in, in order of elimination."""
        open_variables = {v for v in range(len(self.sizes)) if self.of[v]}
        current = {v: self._priority(v) for v in open_variables}
        heap = list(current.values())
        heapq.heapify(heap)
        trail: list[tuple[int, list[Factor]]] = []
        while heap:
            entry = heapq.heappop(heap)
            v = entry[2]
            if v not in open_variables or current[v] != entry:
                continue
            open_variables.discard(v)
            trail.append((v, self._eliminate(v)))
            for u in self.near[v]:
                self.near[u].discard(v)
            for u in self.near[v]:
                if current[u] != (priority := self._priority(u)):
                    current[u] = priority
                    heapq.heappush(heap, priority)
        return trail

    def _eliminate(self, v: int) -> list[Factor]:
        ids = sorted(self.of[v])
        bucket = [self.factors.pop(i) for i in ids]
        for i, (scope, _) in zip(ids, bucket, strict=True):
            for u in scope:
                self.of[u].discard(i)
        for scope, members in self._split(bucket):
            axis = scope.index(v)
            self._add(scope[:axis] + scope[axis + 1 :], _total(scope, members).min(axis=axis))
        return bucket

    def _split(self, bucket: list[Factor]) -> list[tuple[Scope, list[Factor]]]:
        """Mini-buckets whose tables fit the cap, by first fit of the widest factors first; one if all fit together."""
        found: list[tuple[Scope, list[Factor]]] = []
        for factor in sorted(bucket, key=lambda f: -len(f[0])):
            for i, (scope, members) in enumerate(found):
                union = tuple(sorted({*scope, *factor[0]}))
                if math.prod(self.sizes[u] for u in union) <= self.cap:
                    found[i] = union, [*members, factor]
                    break
            else:
                found.append((factor[0], [factor]))
        return found

    def _decode(self, trail: list[tuple[int, list[Factor]]]) -> Solution:
        values = [0] * len(self.sizes)
        for v, bucket in reversed(trail):
            total = np.zeros(self.sizes[v])
            for scope, table in bucket:
                total = total + table[tuple(slice(None) if u == v else values[u] for u in scope)]
            values[v] = int(total.argmin())
        cost = float(sum(table[tuple(values[u] for u in scope)] for scope, table in self.original))
        return Solution(tuple(values), cost, self.bound)


def _total(scope: Scope, factors: Sequence[Factor]) -> Table:
    """The sum of factors as one table over `scope`."""
    total: Table | None = None
    for own, table in factors:
        if own != scope:
            table = table[tuple(slice(None) if u in own else None for u in scope)]
        total = table if total is None else total + table
    assert total is not None
    return total
