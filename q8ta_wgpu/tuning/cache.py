"""Stores times that tuning measured in the user's cache folder: one JSON file for each adapter, driver and engine.

When two processes write at once, the times of one may be lost. They are measured again when they are next needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q8ta_wgpu.runtime.findings import file_name, read, write
from q8ta_wgpu.runtime.findings import folder as folder
from q8ta_wgpu.runtime.findings import identity as identity

FORMAT = 1
MAX_ENTRIES = 1 << 14
"""Limit of entries in a file. The oldest are dropped first."""

MAX_BYTES = 4 << 20
"""Limit of the size of a file that is read; MAX_ENTRIES take less."""

LONGEST = 1e12
"""Upper bound of a valid entry, in microseconds."""


@dataclass
class Cache:
    """Microseconds by key, read from a file and added to.

    Attributes:
        path: the file; None if there is no folder for it.
        adapter: the adapter it belongs to.
        times: microseconds by key, oldest first.
        note: what went wrong in reading or writing; empty if nothing did.
    """

    path: Path | None
    adapter: Mapping[str, str]
    times: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Cache:
        """The cache of an adapter, by its `Device.info`. An unusable file counts as empty; `note` says why."""
        adapter = identity(info)
        try:
            path = folder() / file_name("tune", adapter)
        except RuntimeError as error:
            return cls(None, adapter, note=f"there is no cache folder ({error}): nothing is kept")
        times, problem = _read(path, adapter)
        note = f"{path} was not used: {problem}" if problem else ""
        return cls(path, adapter, times, note)

    def save(self) -> None:
        """Writes the file, merged with what other processes wrote since. On failure `note` says why."""
        if self.path is None:
            return
        others, _ = _read(self.path, self.adapter)
        times = {**{key: us for key, us in others.items() if key not in self.times}, **self.times}
        newest = dict(list(times.items())[-MAX_ENTRIES:])
        try:
            write(self.path, {"format": FORMAT, "adapter": self.adapter, "microseconds": newest})
        except OSError as error:
            self.note = f"{self.path} cannot be written ({error.strerror or error}): nothing is kept"

    def clear(self) -> bool:
        """Forgets everything and removes the file. Returns whether there was one. Raises OSError if it cannot be
        removed."""
        self.times, self.note = {}, ""
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink()
        return True


def _read(path: Path, adapter: Mapping[str, str]) -> tuple[dict[str, float], str]:
    """(entries, problem) of a file; a missing file has no entries and no problem."""
    content, problem = read(path, MAX_BYTES)
    if content is None:
        return {}, problem
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}, f"it is not of format {FORMAT}"
    if content.get("adapter") != adapter:
        return {}, "it is another adapter's"
    times = content.get("microseconds")
    if not isinstance(times, dict) or not all(_is_time(us) for us in times.values()):
        return {}, "its times are not positive numbers"
    return {key: float(us) for key, us in times.items()}, ""


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < LONGEST
