"""Buffers that several programs on a device share: constants with the same bytes, and states."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array

_SAMPLED = 1024
"""Words of a constant that tell it from most others. Only where they are equal, all words are compared."""

_NONE: Array = np.empty(0, np.uint32)


class Shared:
    """A reference-counted buffer, freed when its last program gives it back. The caller holds `device.lock`.

    Attributes:
        buffer: the buffer.
        data: the words of a constant; empty for a state.
    """

    def __init__(self, buffer: Any, data: Array = _NONE) -> None:
        self.buffer, self.data, self._users = buffer, data, 1

    @property
    def used(self) -> bool:
        """Whether any program uses it; otherwise it was freed."""
        return self._users > 0

    def taken(self) -> Shared:
        """Counts one more program; returns this buffer."""
        self._users += 1
        return self

    def give_back(self) -> None:
        """Counts one program less; frees the buffer after the last one."""
        self._users -= 1
        if not self._users:
            self.buffer.destroy()


class Constants:
    """Constants on a device, shared by content: sessions of one model, and a session's programs for inputs of other
    sizes, share their weights. The caller holds `device.lock`.

    A constant is freed when its last program is closed or garbage collected.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[tuple[int, bytes, int], Shared] = weakref.WeakValueDictionary()

    def take(self, data: Array, new: Callable[[], Any]) -> Shared:
        """The constant with these words, counted for one more program. Where there is none, it is in a `new` buffer, to
        which the caller writes `data` before another thread can take it."""
        sample = data[:: data.size // _SAMPLED + 1].tobytes()
        for number in itertools.count():
            key = data.nbytes, sample, number
            if (found := self._known.get(key)) is None or not found.used:
                break
            if found.data is data or np.array_equal(found.data, data):
                return found.taken()
        self._known[key] = shared = Shared(new(), data)
        return shared
