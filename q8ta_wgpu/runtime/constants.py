"""Buffers that several programs on a device share: constants with the same bytes, and states."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.engine import STORAGE
from q8ta_wgpu.runtime.transfer import processors

SMALLEST = 1 << 14
"""Only constants of at least so many bytes are shared. Hashing a smaller one costs more than another buffer."""


MANY = 16 << 20
"""Bytes from which it takes several threads to hash constants."""


class Shared:
    """A reference-counted buffer, freed when its last program gives it back. The caller holds `device.lock`."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, self._users = buffer, 1

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


def digests(constants: Sequence[Array]) -> list[bytes]:
    """What equal contents of constants have in common; empty for small ones. Several threads hash many bytes: a
    decoder's 1.5 GB took 2.4 seconds in one."""

    def digest(data: Array) -> bytes:
        return hashlib.blake2b(data.data, digest_size=32).digest() if data.nbytes >= SMALLEST else b""

    if sum(data.nbytes for data in constants) < MANY:
        return list(map(digest, constants))
    with ThreadPoolExecutor(processors(), "hashing") as pool:
        return list(pool.map(digest, constants))


class Constants:
    """Constants on a device, shared by content: sessions of one model, and a session's programs for inputs of other
    sizes, share their weights. The caller holds `device.lock`.

    A constant is freed when its last program is closed or garbage collected.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[tuple[int, bytes], Shared] = weakref.WeakValueDictionary()

    def take(self, wgpu_device: Any, data: Array, content: bytes) -> Shared:
        """A buffer with these bytes, which have this digest, counted for one more program."""
        if data.nbytes < SMALLEST:
            return Shared(wgpu_device.create_buffer_with_data(data=data, usage=STORAGE))
        key = data.nbytes, content
        if (found := self._known.get(key)) is not None and found.used:
            return found.taken()
        self._known[key] = shared = Shared(wgpu_device.create_buffer_with_data(data=data, usage=STORAGE))
        return shared
