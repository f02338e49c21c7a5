"""The items of a calibration on which a module is simulated, held back from the ranges of its values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate.rounder import known_scales
from q8ta_wgpu.frontend.calibrate.states import feed_back, states_of
from q8ta_wgpu.frontend.multiply_adds import size_of

_INPUTS = 4
"""Inputs of the calibration that are simulated, in as few items as hold so many."""

_NUMBERS, ITEMS = 32, 8
"""Numbers that each result should have in all of what is simulated, and items up to which more are held back for them:
the noise of four numbers is by chance 5 dB more or less than that of all."""

_FIRST, _LATER = 8, 24
"""Of a network whose states follow from what they were, calls that are simulated one after the other: from the first
one on, and from a later one on, before which it kept as much as it does in use. Of other states later ones alone."""

_SOME, _LEAST = 8, 64
"""Inputs besides those that are simulated from which ranges without them are tried as well, and from which they alone
count: of fewer than that, other inputs exceed the ranges."""


class HeldBack:
    """The first items of a calibration, and of a network that keeps something some later ones. Observers meet them
    last: until then their ranges are those of other inputs.

    Args:
        observed: a module with observers.
        example: arguments of one item.
        all_wide: whether all that may be stored in 16 bits is, whatever they show.
        total: how many items there are, or at least.

    Attributes:
        items: as many as hold a few inputs.
        places: of each, its place among all items.
        ranges: scale and zero point of each observer of a whole tensor before it met them, by its call's target, and
            none of those that it has now: one of both, or both where there were some other items, but few.
    """

    def __init__(
        self, observed: GraphModule, example: Sequence[Tensor], all_wide: bool = False, total: int = 0
    ) -> None:
        self._observed, self.all_wide = observed, all_wide
        self._each = max(1, min((len(x) for x in example if x.dim()), default=1))
        count = max(-(-_INPUTS // self._each), min(ITEMS, -(-_NUMBERS // _results(observed))))
        self._wanted = {*range(count)}
        if states_of(observed):
            first, later = (_FIRST, _LATER) if feed_back(observed) else (0, count)
            begin = max(first, min(total // 4, total - later))
            self._wanted = {0, *range(first), *range(begin, begin + later)}
        self.items: list[tuple[Tensor, ...]] = []
        self.places: list[int] = []
        self.ranges: list[dict[tuple[str, bool], tuple[float, int]]] = [{}]

    def order(self, items: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """All items with their places, those that are held back last."""
        others = 0
        for index, item in enumerate(items):
            if index in self._wanted:
                self.items.append(tuple(x.clone() for x in item))
                self.places.append(index)
            else:
                others += self._each
                yield index, item
        if others >= _SOME:
            self.ranges = [known_scales(self._observed), *(self.ranges if others < _LEAST else [])]
        yield from enumerate(self.items)

    @property
    def growth(self) -> float:
        """How much larger the largest of them is than the example that was traced; at least 1."""
        traced = sum(map(size_of, self._observed.graph.find_nodes(op="placeholder")))
        return max([1.0, *(sum(x.numel() for x in item) / max(traced, 1) for item in self.items)])


def _results(observed: GraphModule) -> int:
    """How many numbers the smallest result of one item has."""
    (output,) = observed.graph.find_nodes(op="output")
    ends = pytree.tree_leaves(output.args[0])[: -len(states_of(observed)) or None]
    return max(1, min((size_of(end) for end in ends if isinstance(end, Node)), default=_NUMBERS))
