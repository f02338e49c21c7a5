"""Elements that a `where` leaves out are zeros to the ranges of a calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.passes.plan.left_out import Taken


class Zeros:
    """Gives values of a run on, with zeros for elements that are left out. A value waits until the bools are computed
    that say which ones these are.

    Args:
        taken: by the name of a value, which of its elements are taken.
        known: arrays by name that are known before the run.
        then: called with the name and array of each value.
    """

    def __init__(
        self, taken: Mapping[str, Taken], known: Mapping[str, Array], then: Callable[[str, Array], None]
    ) -> None:
        self._taken, self._then = taken, then
        self._wanted = {name for each in taken.values() for name in each}
        self._bools = {name: array for name, array in known.items() if name in self._wanted}
        self._waiting: list[tuple[str, Array]] = []

    def meet(self, name: str, array: Array) -> None:
        """Takes the next value."""
        if name in self._wanted:
            self._bools[name] = array
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self.meet(*each)
        taken = self._taken.get(name, {})
        if not taken:
            self._then(name, array)
        elif taken.keys() <= self._bools.keys():
            some = np.logical_or.reduce([np.broadcast_to(self._bools[n] == w, array.shape) for n, w in taken.items()])
            self._then(name, np.where(some, array, np.float32(0)))
        else:
            self._waiting.append((name, array))
