"""A lock for resources that do not survive a fork."""

from __future__ import annotations

import os
import threading
from typing import Any

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

    def __enter__(self) -> ProcessLock:
        if self.inherited:
            raise DeviceError(
                f"this process was forked from process {self._process}, which uses a GPU: a driver does not survive a "
                "fork. Open sessions only in the child, or start it with multiprocessing.get_context('spawn')"
            )
        self._lock.acquire()
        self._process = self._process or os.getpid()
        return self

    def __exit__(self, *_: Any) -> None:
        self._lock.release()
