"""Command buffers that are recorded before they are needed, each with a staging buffer for the outputs."""

from __future__ import annotations

import weakref
from typing import Any

from q8ta_wgpu.runtime.locks import ProcessLock
from q8ta_wgpu.runtime.recording import Recorder, Staging

_KEPT = 8
"""Limit of idle staging buffers that are kept for later runs: two streams at a time have three runs in flight each, and
one is recorded ahead. New ones for each stream took an actor of Ray 0.6 ms for a batch of images on an NVIDIA H100."""


class RecordedRuns:
    """The staging buffers of one program, and the runs recorded ahead. The caller holds the device's lock, except for
    `give_back` and `drop`, which take it.

    Args:
        recorder: records the program.
        lock: the device's lock.
        size: bytes of a staging buffer.

    Attributes:
        idle: staging buffers that no run uses.
        ahead: (staging buffer, commands) of runs that are recorded and not submitted.
        most: largest number of staging buffers so far.
    """

    def __init__(self, recorder: Recorder, lock: ProcessLock, size: int) -> None:
        self._recorder = recorder
        self._lock = lock
        self.size = size
        self.idle: list[Staging] = []
        self.ahead: list[tuple[Staging, Any]] = []
        self.most = self._each = 0
        self._all = weakref.WeakSet[Staging]()  # an interrupt may lose one between two of our lines
        self._closed = False
        with lock:
            self.idle.append(self._new())

    @property
    def bytes(self) -> int:
        """Bytes of all staging buffers, at their maximum so far."""
        return self.most * self._each

    def take(self) -> tuple[Staging, Any]:
        """A staging buffer, and the commands of a run that copies its outputs there."""
        return self.ahead.pop() if self.ahead else self._recorded()

    def record_ahead(self) -> None:
        """Records the run that `take` returns next."""
        self.ahead.append(self._recorded())

    def give_back(self, staging: Staging) -> None:
        """Keeps a staging buffer that was read for later runs, or frees it."""
        with self._lock:
            if not self._closed and len(self.idle) < _KEPT:
                self.idle.append(staging)
            else:
                self.drop(staging)

    def drop(self, staging: Staging) -> None:
        """Frees a staging buffer in any state."""
        with self._lock:
            self._all.discard(staging)
            staging.destroy()

    def close(self) -> None:
        """Frees staging buffers that are not in flight now, and the others when they are given back."""
        self._closed = True
        for staging in (*self.idle, *(staging for staging, _ in self.ahead)):
            self.drop(staging)
        self.idle, self.ahead = [], []

    def _new(self) -> Staging:
        staging = self._recorder.staging(self.size)
        self._all.add(staging)
        self._count(staging)
        return staging

    def _count(self, staging: Staging) -> None:
        self._each = max(self._each, staging.bytes)
        self.most = max(self.most, len(self._all))

    def _recorded(self) -> tuple[Staging, Any]:
        staging = self.idle.pop() if self.idle else self._new()
        try:
            commands = self._recorder.record(staging)
            self._count(staging)
            return staging, commands
        except BaseException:
            self.drop(staging)
            raise
