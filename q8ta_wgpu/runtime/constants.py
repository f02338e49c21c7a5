"""Constants of programs on a device: those with the same bytes are one buffer."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.engine import STORAGE

SMALLEST = 1 << 14
"""Bytes from which a constant is looked for among those that are there: finding a smaller one costs more than it."""


class Constant:
    """A buffer with the bytes of a constant, its key among those that are shared, and how many programs read it."""

    def __init__(self, buffer: Any, key: tuple[int, bytes] | None) -> None:
        self.buffer, self.key, self.readers = buffer, key, 1


class Constants:
    """Constants on a device. Sessions of one model, and programs of one session for inputs of other sizes, share their
    weights. The caller holds `device.lock`.

    A constant is freed when its last program is closed, or dropped without that.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Any, Constant] = weakref.WeakValueDictionary()

    def take(self, wgpu_device: Any, data: Array) -> Constant:
        """A buffer with these bytes, for one reader more."""
        key = (data.nbytes, hashlib.blake2b(data.data, digest_size=32).digest()) if data.nbytes >= SMALLEST else None
        found = self._known.get(key)
        if found is not None:
            found.readers += 1
            return found
        made = Constant(wgpu_device.create_buffer_with_data(data=data, usage=STORAGE), key)
        if key is not None:
            self._known[key] = made
        return made

    def give_back(self, constant: Constant) -> None:
        """Takes one reader away, and frees the buffer behind the last one."""
        constant.readers -= 1
        if not constant.readers:
            self._known.pop(constant.key, None)
            constant.buffer.destroy()
