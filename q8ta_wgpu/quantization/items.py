"""Which items of a calibration are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.parts import are_apart

Item = TypeVar("Item")

INPUTS = 4
"""The number of inputs that are simulated. An item may hold several."""

NUMBERS, ITEMS = 32, 8
"""The numbers that each result should have in all simulated items together, and the most items that are taken for that.
The noise of four numbers may by chance be 5 dB above or below that of all, of 48 still 2 dB."""

MANY = 256
"""The numbers that each result should have where a quarter of the items gives them."""

_WORK = 4e9
"""Multiply-adds of all simulated items, which the numpy reference computes in a few seconds. One item is taken in any
case."""


def how_many(graph: Graph, first: Mapping[str, Array], total: int, quick: bool = False) -> int:
    """How many items are simulated.

    Args:
        graph: the float graph.
        first: the inputs of the first item. Of those whose rows differ much in size, half of the calibration is
            simulated, up to ITEMS: few of them are the smallest, which lose most.
        total: the number of items, or 0 where it is not known.
        quick: whether a run takes much less time than the numpy reference.
    """
    shapes = [graph.types[name].shape for name in graph.inputs]
    each = min((shape[0] for shape in shapes if shape), default=1)
    results = (graph.types.get(name) for name in graph.results)  # a constant that no node reads has no type
    numbers = min((result.numel for result in results if result is not None), default=NUMBERS)
    least, many = (min(ITEMS, -(-wanted // numbers)) for wanted in (NUMBERS, MANY))
    wanted = max(-(-INPUTS // each), least, min(many, total // 4))
    if any(map(are_apart, first.values())):
        wanted = max(wanted, min(ITEMS, total // 2))
    work = sum(OPS[node.op].macs(graph.call(node)) for node in graph.nodes)
    return max(1, wanted if quick else min(wanted, int(_WORK / max(work, 1))))


def in_order(
    items: Iterable[Item],
    simulated: Callable[[Item], int],
    copied: Callable[[Item], Item],
    hold_out: Callable[[], None],
) -> Iterator[tuple[int, Item, bool]]:
    """All items, those that are simulated last: how well ranges suit inputs that they did not meet is what counts.

    Args:
        items: in the user's order.
        simulated: how many of the first ones are simulated, by the first one.
        copied: copies an item that is kept, since an iterable may reuse the memory of its items.
        hold_out: is called once all others were met, to note their ranges.

    Returns:
        For each item its place, the item, and whether it is simulated.
    """
    count, kept = 0, list[Item]()
    for place, item in enumerate(items):
        count = simulated(item) if place == 0 else count
        if place < count:
            kept.append(copied(item))
        else:
            yield place, item, False
    hold_out()
    yield from ((place, item, True) for place, item in enumerate(kept))
