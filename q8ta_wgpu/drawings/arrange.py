"""The arrangement of cards: layers from top to bottom with few crossings, by fast_sugiyama."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from q8ta_wgpu.errors import UnsupportedError

Point = tuple[float, float]

WIDTH, HEIGHT, GAP, STEP = 250.0, 96.0, 34.0, 136.0
"""Size of a card, gap between neighbours, and distance between layers."""


@dataclass(frozen=True)
class Arrangement:
    """Centres of the cards, points of each edge from writer to reader, and the size of the whole."""

    places: tuple[Point, ...]
    routes: dict[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float


def arrange(count: int, edges: Sequence[tuple[int, int]]) -> Arrangement:
    """Arranges `count` cards, joined by edges between their numbers.

    Raises UnsupportedError where fast_sugiyama is not installed.
    """
    from_edges = layers()
    points: dict[int, Point] = {}
    routes: dict[tuple[int, int], tuple[Point, ...]] = {}
    left = 0.0
    for part in _connected(edges):
        # Cards are negative numbers, bends positive ones. One component at a time: each numbers its bends from 0.
        ((middles, _, _, hops),) = from_edges([(~a, ~b) for a, b in part])
        placed = _placed({int(number): place for number, place in middles}, left)
        routes |= _routes(placed, [(int(a), int(b)) for a, b in hops or ()])
        points |= {~number: place for number, place in placed.items() if number < 0}
        left = max(x for x, _ in placed.values()) + WIDTH / 2 + GAP
    for number in range(count):
        if number not in points:  # it has no edges
            points[number] = left + WIDTH / 2, HEIGHT / 2
            left += WIDTH + GAP
    height = max((y for _, y in points.values()), default=0.0) + HEIGHT / 2
    return Arrangement(tuple(points[i] for i in range(count)), routes, max(left - GAP, 0.0), height)


def layers() -> Any:
    """fast_sugiyama's layout function. Raises UnsupportedError where it is not installed."""
    try:
        from fast_sugiyama import from_edges
    except ModuleNotFoundError as error:
        raise UnsupportedError('drawing a graph needs fast_sugiyama: pip install "q8ta-wgpu[show]"') from error
    return from_edges


def _connected(edges: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The edges of each connected component."""
    groups: list[list[tuple[int, int]]] = []
    for edge in edges:
        touched = [group for group in groups if any(set(edge) & set(other) for other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(other for group in touched for other in group), edge])
    return groups


def _placed(middles: dict[int, Point], left: float) -> dict[int, Point]:
    """Positions of the cards (negative) and bends of one component, layers from top to bottom, stretched until
    neighbours are apart, with the leftmost card's edge at `left`."""
    layers: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for number, (x, y) in middles.items():
        layers[y].append((x, WIDTH / 2 if number < 0 else 0.0))
    needs = [
        (a_half + b_half + GAP) / (b - a)
        for layer in layers.values()
        for (a, a_half), (b, b_half) in pairwise(sorted(layer))
    ]
    first, scale = min(x for x, _ in middles.values()), max(needs, default=1.0)
    rows = {y: row for row, y in enumerate(sorted(layers, reverse=True))}
    return {
        number: (left + (x - first) * scale + WIDTH / 2, rows[y] * STEP + HEIGHT / 2)
        for number, (x, y) in middles.items()
    }


def _routes(placed: dict[int, Point], hops: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[Point, ...]]:
    """The points of each edge: its ends and the bends between them."""
    onwards = {a: b for a, b in hops if a >= 0}
    routes = {}
    for start, second in hops:
        if start < 0:
            path = [start, second]
            while path[-1] >= 0:
                path.append(onwards[path[-1]])
            routes[~start, ~path[-1]] = tuple(placed[number] for number in path)
    return routes
