"""A lock for resources that do not survive a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from q8ta_wgpu.errors import DeviceError


class ProcessLock:
    """A reentrant lock that belongs to the process that first takes it.

    A forked child lacks the threads of its driver, so a wait there would never end. Taking the lock in the child raises
    DeviceError instead.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = 0

    @property
    def inherited(self) -> bool:
        """Whether the parent process, before the fork, has taken the lock."""
        return self._process not in (0, os.getpid())

    # `with` looks both up and calls what it finds: methods of a lock that is written in C. An interrupt comes either
    # before one of them is called, or when `with` is already bound to release the lock. In a method of ours it could
    # come just after the lock was taken, and the thread would hold it for ever.
    @property
    def __enter__(self) -> Callable[[], bool]:
        if self.inherited:
            raise DeviceError(
                f"this process was forked from process {self._process}, which uses a GPU: a driver does not survive a "
                "fork. Open sessions only in the child, or start it with multiprocessing.get_context('spawn')"
            )
        self._process = os.getpid()
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__
