"""Buffers that several programs on a device share: constants with the same bytes, and states."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.engine import STORAGE

SMALLEST = 1 << 14
"""Bytes from which a constant is looked for among those that are there: finding a smaller one costs more than it."""


class Shared:
    """A buffer, and how many programs use it. It is freed behind the last of them. The caller holds `device.lock`."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, self._users = buffer, 1

    @property
    def used(self) -> bool:
        """Whether it is there still."""
        return self._users > 0

    def taken(self) -> Shared:
        """This buffer, for one program more."""
        self._users += 1
        return self

    def give_back(self) -> None:
        """Takes one program away."""
        self._users -= 1
        if not self._users:
            self.buffer.destroy()


class Constants:
    """Constants on a device. Sessions of one model, and programs of one session for inputs of other sizes, share their
    weights. The caller holds `device.lock`.

    A constant is freed when its last program is closed, or dropped without that.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[tuple[int, bytes], Shared] = weakref.WeakValueDictionary()

    def take(self, wgpu_device: Any, data: Array) -> Shared:
        """A buffer with these bytes, for one program more."""
        if data.nbytes < SMALLEST:
            return Shared(wgpu_device.create_buffer_with_data(data=data, usage=STORAGE))
        key = data.nbytes, hashlib.blake2b(data.data, digest_size=32).digest()
        if (found := self._known.get(key)) is not None and found.used:
            return found.taken()
        self._known[key] = made = Shared(wgpu_device.create_buffer_with_data(data=data, usage=STORAGE))
        return made
