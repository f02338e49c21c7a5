"""What tuning measured, kept in the user's cache folder: one JSON file for each adapter, driver and engine.

Files are replaced as a whole, never written in place, so that a process that stops halfway or two that write at once
leave a valid one. Of two that write at once one may lose what it measured; it is measured again when next asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
MAX_ENTRIES = 1 << 14
"""Entries a file may hold: the oldest go first."""

MAX_BYTES = 4 << 20
"""Bytes a file may have to be read: MAX_ENTRIES take less."""

LONGEST = 1e12
"""Microseconds no entry reaches."""


def folder() -> Path:
    """The platform's folder for caches of this library. Raises RuntimeError where the user has no home."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "q8ta_wgpu" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "q8ta_wgpu"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "q8ta_wgpu"


def identity(info: Mapping[str, Any]) -> dict[str, str]:
    """What a measurement depends on beside the kernel, from a device's info."""
    names = ("device", "backend_type", "description", "vendor", "vendor_id", "device_id", "engine")
    return {name: str(info.get(name, "")) for name in names}


@dataclass
class Cache:
    """Microseconds by key, as read from a file and added to since.

    Attributes:
        path: the file; None where there is no folder for it.
        adapter: what the file is for.
        times: microseconds by key, oldest first.
        note: what went wrong in reading or writing; empty if nothing did.
    """

    path: Path | None
    adapter: Mapping[str, str]
    times: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Cache:
        """The cache of an adapter, by its `Device.info`. A file that cannot be used is empty; `note` says why."""
        adapter = identity(info)
        digest = hashlib.blake2b(json.dumps(adapter, sort_keys=True).encode(), digest_size=6).hexdigest()
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{adapter['device']} {adapter['backend_type']}").strip("-")[:80]
        try:
            path = folder() / f"tune-{name}-{digest}.json"
        except RuntimeError as error:
            return cls(None, adapter, note=f"there is no cache folder ({error}): nothing is kept")
        times, problem = _read(path, adapter)
        note = f"{path} was not used: {problem}" if problem else ""
        return cls(path, adapter, times, note)

    def save(self) -> None:
        """Writes the file, with what others wrote since; where that cannot be done, `note` says why."""
        if self.path is None:
            return
        others, _ = _read(self.path, self.adapter)
        times = {**{key: us for key, us in others.items() if key not in self.times}, **self.times}
        kept = dict(list(times.items())[-MAX_ENTRIES:])
        text = json.dumps({"format": FORMAT, "adapter": self.adapter, "microseconds": kept}, indent=0)
        temporary = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self.path.parent, delete=False) as file:
                temporary = file.name
                file.write(text)
            Path(temporary).replace(self.path)
        except OSError as error:
            self.note = f"{self.path} cannot be written ({error.strerror or error}): nothing is kept"
            if temporary:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()

    def clear(self) -> bool:
        """Forgets everything and removes the file; whether there was one. Raises OSError if it cannot be removed."""
        self.times, self.note = {}, ""
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink()
        return True


def _read(path: Path, adapter: Mapping[str, str]) -> tuple[dict[str, float], str]:
    """The entries of a file, and what is wrong with it: nothing where there is none."""
    try:
        # Without waiting: a pipe has nobody who writes.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}, "it is no regular file"
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"it cannot be read ({error.strerror or error})"
    if len(data) > MAX_BYTES:
        return {}, f"it is larger than {MAX_BYTES} bytes"
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}, "it is not JSON"
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
