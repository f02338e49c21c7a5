"""The items of a calibration on which a module is simulated. Observers meet them last, so that ranges without them are
known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate.heads import InParts
from q8ta_wgpu.frontend.calibrate.observer import in_memory_order, observer_of
from q8ta_wgpu.frontend.calibrate.rounder import known_scales
from q8ta_wgpu.frontend.calibrate.simulate import outputs_and_states
from q8ta_wgpu.frontend.calibrate.state_precision import feed_back, states_of
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.quantization.items import INPUTS, ITEMS, NUMBERS
from q8ta_wgpu.quantization.parts import are_apart

_MANY = 256
"""The numbers that each result should have where a quarter of the items gives them."""

# Of inputs whose rows differ much in size, half of the calibration is simulated, up to ITEMS: few of them are the
# smallest, which lose most.

_FIRST, _LATER = 8, 24
"""The numbers of calls that are simulated of a network that computes states from their old values: neighbouring calls
from the first one on, and from a later one on, when its states are as in use. Of other networks with states only later
calls are simulated."""

_SOME, _LEAST = 8, 64
"""The number of other inputs from which on their ranges, without the simulated items, are tried as well; and the number
from which on only these are used. Ranges of fewer inputs are exceeded by the simulated ones."""


class HeldBack:
    """The first items of a calibration, and some later ones if the network has states. Observers meet them last: before
    that their ranges are those of all other items.

    Args:
        observed: a module with observers.
        example: arguments of one item.
        all_wide: whether all values that may be stored in 16 bits are, whatever the simulation shows.
        total: the number of items, or a lower bound of it.

    Attributes:
        items: the items that are held back.
        places: the index of each among all items.
        ranges: what is simulated, one after the other: scales and zero points, as of `known_scales`, before observers
            met these items; and an empty dict, which stands for those that observers have now. Without enough other
            items it is only the latter, with many of them only the former.
        floats: of each item that observers met, the outputs in float, and the states after the call.
        own: by the call of an observer that several values share, the range of the value there, widened to hold 0.
    """

    def __init__(
        self, observed: GraphModule, example: Sequence[Tensor], all_wide: bool = False, total: int = 0
    ) -> None:
        self._observed, self.all_wide = observed, all_wide
        self._each = max(1, min((len(x) for x in example if x.dim()), default=1))
        least, many = (min(ITEMS, -(-numbers // _results(observed))) for numbers in (NUMBERS, _MANY))
        count = max(-(-INPUTS // self._each), least, min(many, total // 4))
        self._wanted = {*range(count)}
        if states_of(observed):
            first, later = (_FIRST, _LATER) if feed_back(observed) else (0, count)
            begin = max(first, min(total // 4, total - later))
            self._wanted = {0, *range(first), *range(begin, begin + later)}
        self._if_apart = range(min(ITEMS, total // 2))
        self.items: list[tuple[Tensor, ...]] = []
        self.places: list[int] = []
        self.ranges: list[dict[tuple[str, bool], tuple[float, int]]] = [{}]
        self.floats: list[tuple[list[Tensor], list[Tensor]]] = []
        self.own: dict[Node, tuple[float, float]] = {}

    def order(self, items: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """All items with their places, those that are held back last."""
        others = 0
        for index, item in enumerate(items):
            if index == 0 and any(are_apart(x.numpy()) for x in item):
                self._wanted.update(self._if_apart)
            if index in self._wanted:
                self.items.append(tuple(x.clone() for x in item))
                self.places.append(index)
            else:
                others += self._each
                yield index, item
        if others >= _SOME:
            self.ranges = [known_scales(self._observed), *(self.ranges if others < _LEAST else [])]
        yield from enumerate(self.items)

    def holds(self, item: Sequence[Tensor]) -> bool:
        """Whether this is one of the items that are held back."""
        return any(item is held for held in self.items)

    def meet(self, item: Sequence[Tensor]) -> None:
        """Lets observers meet one of the items that are held back, and keeps what a simulation needs of this call."""
        self.floats.append(outputs_and_states(self._observed, _Watching(self._observed, self.own).run(*item)))

    @property
    def growth(self) -> float:
        """By what factor the largest of these items is larger than the example that was traced; at least 1."""
        traced = sum(map(size_of, self._observed.graph.find_nodes(op="placeholder")))
        return max([1.0, *(sum(x.numel() for x in item) / max(traced, 1) for item in self.items)])


def _results(observed: GraphModule) -> int:
    """The number of numbers in the smallest result of one item."""
    (output,) = observed.graph.find_nodes(op="output")
    ends = pytree.tree_leaves(output.args[0])[: -len(states_of(observed)) or None]
    return max(1, min((size_of(end) for end in ends if isinstance(end, Node)), default=NUMBERS))


class _Watching(InParts):
    """Runs a module with observers, and widens the ranges of values that share one."""

    def __init__(self, observed: GraphModule, ranges: dict[Node, tuple[float, float]]) -> None:
        super().__init__(observed)
        self.extra_traceback = False  # an error keeps the message it has in a call of the module
        self._ranges = ranges
        found = [(node, observer_of(observed, node)) for node in observed.graph.find_nodes(op="call_module")]
        of_values = [(node, each) for node, each in found if each is not None and getattr(each, "ch_axis", -1) < 0]
        count = Counter(id(observer) for _, observer in of_values)
        self._shared = {node for node, observer in of_values if count[id(observer)] > 1}

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        if n in self._shared:
            (value,) = self.fetch_args_kwargs_from_env(n)[0]
            _widen_range(self._ranges, n, value)
        return super().run_node(n)


def _widen_range(ranges: dict[Node, tuple[float, float]], node: Node, value: Tensor) -> None:
    """Widens the range of a node so that it holds 0 and all elements of a value."""
    low, high = ranges.get(node, (0.0, 0.0))
    least, most = map(float, torch.aminmax(in_memory_order(value)))
    ranges[node] = min(low, least), max(high, most)
