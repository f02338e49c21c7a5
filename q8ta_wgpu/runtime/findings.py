"""Keeps what was measured and found out in the user's cache folder: one JSON file for each adapter, driver and engine.

Files are replaced as a whole, never written in place. So the file stays valid if a process stops halfway. When two
processes write at once, what one of them found may be lost, and is found again when it is next needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q8ta_wgpu.writing import replace

FORMAT = 2
MAX_ENTRIES = 1 << 14
"""Limit of entries in a file. The oldest are dropped first."""

MAX_BYTES = 4 << 20
"""Limit of the size of a file that is read; MAX_ENTRIES times take less."""


def folder() -> Path:
    """The platform's cache folder for this library. Raises RuntimeError if the user has no home."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "q8ta_wgpu" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "q8ta_wgpu"
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "q8ta_wgpu"


@dataclass
class Findings:
    """What was found for an adapter, driver and engine: JSON values by key, read from a file and added to.

    Attributes:
        kind: what the file keeps, 'probe' for example: the beginning of its name.
        adapter: the adapter, driver and engine.
        valid: whether a value can be one of this kind.
        found: values by key, oldest first.
        path: the file; None if there is no folder for it.
        note: what went wrong in reading or writing; empty if nothing did.
    """

    kind: str
    adapter: Mapping[str, str]
    valid: Callable[[Any], bool]
    found: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    note: str = ""

    @classmethod
    def of(cls, kind: str, info: Mapping[str, Any], valid: Callable[[Any], bool] = lambda value: True) -> Findings:
        """Those of an adapter, by its `Device.info`. An unusable file counts as empty; `note` says why."""
        names = ("device", "backend_type", "description", "vendor", "vendor_id", "device_id", "engine")
        adapter = {name: str(info.get(name, "")) for name in names}
        made = cls(kind, adapter, valid)
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{adapter['device']} {adapter['backend_type']}").strip("-")[:80]
        told_apart = hashlib.blake2b(json.dumps(adapter, sort_keys=True).encode(), digest_size=6).hexdigest()
        try:
            made.path = folder() / f"{kind}-{name}-{told_apart}.json"
        except RuntimeError as error:
            made.note = f"there is no cache folder ({error}): nothing is kept"
            return made
        made.found, problem = made._read(made.path)
        made.note = f"{made.path} was not used: {problem}" if problem else ""
        return made

    def save(self) -> None:
        """Writes the file, merged with what other processes wrote since. On failure `note` says why."""
        if self.path is None:
            return
        others, _ = self._read(self.path)
        merged = {**{key: value for key, value in others.items() if key not in self.found}, **self.found}
        newest = dict(list(merged.items())[-MAX_ENTRIES:])
        content = json.dumps({"format": FORMAT, "adapter": self.adapter, "found": newest}, indent=0).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace({self.path: content})
        except OSError as error:
            self.note = f"{self.path} cannot be written ({error.strerror or error}): nothing is kept"

    def clear(self) -> bool:
        """Forgets everything and removes the file. Returns whether there was one. Raises OSError if it cannot be
        removed."""
        self.found, self.note = {}, ""
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink()
        return True

    def _read(self, path: Path) -> tuple[dict[str, Any], str]:
        """(values, problem) of the file; a missing file has no values and no problem."""
        content, problem = _json(path)
        if content is None:
            return {}, problem
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return {}, f"it is not of format {FORMAT}"
        if content.get("adapter") != self.adapter:
            return {}, "it is another adapter's"
        found = content.get("found")
        if not isinstance(found, dict) or not all(map(self.valid, found.values())):
            return {}, "some of its values cannot be what is kept there"
        return found, ""


def _json(path: Path) -> tuple[Any, str]:
    """(JSON value, problem) of a file of at most MAX_BYTES; (None, '') for a missing file."""
    try:
        # Non-blocking: a pipe may have no writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, "it is no regular file"
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"it cannot be read ({error.strerror or error})"
    if len(data) > MAX_BYTES:
        return None, f"it is larger than {MAX_BYTES} bytes"
    try:
        return json.loads(data), ""
    except (ValueError, RecursionError):
        return None, "it is not JSON"


def digest(*parts: str | bytes) -> str:
    """The key of a finding: a hash of everything that it depends on besides the adapter, such as the probe's WGSL."""
    found = hashlib.blake2b(digest_size=16)
    for item in parts:
        data = item.encode() if isinstance(item, str) else item
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


PROBE = "probe"
"""The kind of what probes found."""


def recall(info: Mapping[str, Any], key: str) -> Any:
    """What a probe found on an adapter, by its `Device.info` and a key; None if there is nothing."""
    return Findings.of(PROBE, info).found.get(key)


def keep(info: Mapping[str, Any], key: str, found: Any) -> None:
    """Stores a JSON value as what a probe found, if there is a cache folder. Nothing is stored for an adapter that does
    not name its driver, since a new driver could not be told from the old one."""
    if info.get("description"):
        findings = Findings.of(PROBE, info)
        findings.found[key] = found
        findings.save()
