"""The places of a float graph where values are rounded, and which of them share a scale."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from q8ta_wgpu.passes.plan.storage import Rounding, Shared, Storage

Place = tuple[str, str]
"""(call that reads a value, value); or ('', value) where the value is computed."""


class Places:
    """The places where values are rounded, those that share a scale under one root.

    Args:
        plan: how values are stored.
        states: the values that the next run reads as others were written, by these.

    Attributes:
        of_value: by a value's name, the roots of the places where it is rounded.
    """

    def __init__(self, plan: Rounding, states: Mapping[str, str] = MappingProxyType({})) -> None:
        self.plan = plan
        self._first: dict[str, Place] = {}
        for place in plan.reads:
            self._first.setdefault(place[0], place)
        self._parent: dict[Place, Place] = {}
        alike: dict[tuple[str, Storage], Place] = {}
        given = [(("", name), storage) for name, storage in plan.gives.items()]
        for place, storage in (*given, *plan.reads.items()):
            self._parent.setdefault(place, place)
            if isinstance(storage, Shared):
                self._join(self._first[storage.call], place)
            self._join(alike.setdefault((place[1], self._own(place)), place), place)
        for read, written in states.items():  # the next run reads a state at the scale at which it was written
            for place in [p for p in plan.reads if p[1] == read and written in plan.gives]:
                if self.storage(place) == self.storage(("", written)):
                    self._join(("", written), place)
        self.of_value: dict[str, list[Place]] = {}
        for place in self._parent:
            roots = self.of_value.setdefault(place[1], [])
            if (root := self.root(place)) not in roots:
                roots.append(root)

    @property
    def roots(self) -> list[Place]:
        """One of each place that shares a scale, in the order of the plan."""
        return list(dict.fromkeys(map(self.root, self._parent)))

    def root(self, place: Place) -> Place:
        """The place that stands for all that share its scale."""
        found = place
        while (parent := self._parent[found]) != found:
            found = parent
        while (parent := self._parent[place]) != found:  # the next search is short
            self._parent[place], place = found, parent
        return found

    def storage(self, place: Place) -> Storage:
        """How what shares a scale with a place is stored."""
        return self._own(self.root(place))

    def _own(self, place: Place) -> Storage:
        storage = self.plan.reads[place] if place[0] else self.plan.gives[place[1]]
        while isinstance(storage, Shared):
            storage = self.plan.reads[self._first[storage.call]]
        return storage

    def _join(self, first: Place, second: Place) -> None:
        self._parent.setdefault(first, first)
        a, b = self.root(first), self.root(second)
        self._parent[b] = a
