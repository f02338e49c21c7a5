"""Which items of a calibration are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.parts import are_apart
from q8ta_wgpu.quantization.tuned import NUMBERS

Item = TypeVar("Item")

INPUTS = 4
"""The number of inputs that are simulated. An item may hold several."""

ITEMS = 8
"""The most items that are simulated so that each result has enough numbers."""

MANY = 256
"""The numbers that each result should have where a quarter of the items gives them."""

_WORK = 4e9
"""Multiply-adds of all simulated items, which the numpy reference computes in a few seconds. One item is taken in any
case."""

ENOUGH = 4 * ITEMS
"""Items of a calibration from which on it does not matter how many there are."""


def how_many(graph: Graph, first: Mapping[str, Array], quick: bool = False) -> Callable[[int], int]:
    """A function that says for a number of calibration items how many of them are simulated.

    Args:
        graph: the float graph.
        first: the inputs of the first item. Of those whose rows differ much in size, half of the calibration is
            simulated, up to ITEMS: few of them are the smallest, which lose most.
        quick: whether a run takes much less time than the numpy reference.
    """
    shapes = [graph.types[name].shape for name in graph.inputs]
    each = min((shape[0] for shape in shapes if shape), default=1)
    results = (graph.types.get(name) for name in graph.results)  # a constant that no node reads has no type
    numbers = min((result.numel for result in results if result is not None), default=NUMBERS)
    least, many = (min(ITEMS, -(-wanted // numbers)) for wanted in (NUMBERS, MANY))
    half = ITEMS if any(map(are_apart, first.values())) else 0
    work = sum(OPS[node.op].macs(graph.call(node)) for node in graph.nodes)
    most = ITEMS if quick else max(1, int(_WORK / max(work, 1)))
    return lambda total: min(max(-(-INPUTS // each), least, min(many, total // 4), min(half, total // 2)), most)


def in_order(
    items: Iterable[Item],
    simulated: Callable[[Item], Callable[[int], int]],
    copied: Callable[[Item], Item],
    hold_out: Callable[[], None],
) -> Iterator[tuple[int, Item, bool]]:
    """All items, those that are simulated last: how well ranges suit inputs that they did not meet is what counts.

    Args:
        items: in the user's order. Of these as many are held as may be simulated.
        simulated: how many of the first ones are simulated, by the first one, of how many there are.
        copied: copies an item that is kept, since an iterable may reuse the memory of its items.
        hold_out: is called once all others were met, to note their ranges.

    Returns:
        For each item its place, the item, and whether it is simulated.
    """
    held, total, of = list[Item](), 0, None
    for item in items:
        of = of or simulated(item)
        if total < of(ENOUGH):
            held.append(copied(item))
        else:
            yield total, item, False
        total += 1
    if of is None:
        return
    count = of(total)
    yield from ((place, held[place], False) for place in range(count, len(held)))
    hold_out()
    yield from ((place, item, True) for place, item in enumerate(held[:count]))
