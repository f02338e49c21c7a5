"""Stores results of probes in the user's cache folder: one JSON file for each adapter, driver and engine.

Files are replaced as a whole, never written in place. So the file stays valid if a process stops halfway, or two write
at once. If it cannot be read or written, the probes run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from q8ta_wgpu.writing import replace

FORMAT = 1
MAX_BYTES = 1 << 16


def folder() -> Path:
    """The platform's cache folder for this library. Raises RuntimeError if the user has no home."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "q8ta_wgpu" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "q8ta_wgpu"
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "q8ta_wgpu"


def identity(info: Mapping[str, Any]) -> dict[str, str]:
    """The adapter, driver and engine that a measurement depends on, from a `Device.info`."""
    names = ("device", "backend_type", "description", "vendor", "vendor_id", "device_id", "engine")
    return {name: str(info.get(name, "")) for name in names}


def file_name(kind: str, adapter: Mapping[str, str]) -> str:
    """The file name for an adapter's identity. `kind` is 'probe' or 'tune'."""
    digest = hashlib.blake2b(json.dumps(adapter, sort_keys=True).encode(), digest_size=6).hexdigest()
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{adapter['device']} {adapter['backend_type']}").strip("-")[:80]
    return f"{kind}-{name}-{digest}.json"


def read(path: Path, most: int) -> tuple[Any, str]:
    """(JSON value, problem) of a file of at most `most` bytes; (None, '') for a missing file."""
    try:
        # Non-blocking: a pipe may have no writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, "it is no regular file"
            data = file.read(most + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"it cannot be read ({error.strerror or error})"
    if len(data) > most:
        return None, f"it is larger than {most} bytes"
    try:
        return json.loads(data), ""
    except (ValueError, RecursionError):
        return None, "it is not JSON"


def write(path: Path, content: Any) -> None:
    """Writes a value as JSON. On failure it raises OSError, and the file stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace({path: json.dumps(content, indent=0).encode()})


def digest(*parts: str | bytes) -> str:
    """The key of a finding: a hash of everything that it depends on besides the adapter, such as the probe's WGSL."""
    found = hashlib.blake2b(digest_size=16)
    for item in parts:
        data = item.encode() if isinstance(item, str) else item
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def recall(info: Mapping[str, Any], key: str) -> Any:
    """The finding of an adapter, by its `Device.info` and a key; None if there is none."""
    return _findings(info)[1].get(key)


def keep(info: Mapping[str, Any], key: str, found: Any) -> None:
    """Stores a JSON value as the finding of a key, if there is a cache folder. Nothing is stored for an adapter that
    does not name its driver, since a new driver could not be told from the old one."""
    path, findings = _findings(info)
    if path is None or not info.get("description"):
        return
    content = {"format": FORMAT, "adapter": identity(info), "found": {**findings, key: found}}
    with contextlib.suppress(OSError):
        write(path, content)


def forget(info: Mapping[str, Any]) -> bool:
    """Removes an adapter's findings. Returns whether there was a file. Raises OSError if it cannot be removed."""
    path, _ = _findings(info)
    if path is None or not path.exists():
        return False
    path.unlink()
    return True


def _findings(info: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    adapter = identity(info)
    try:
        path = folder() / file_name("probe", adapter)
    except RuntimeError:
        return None, {}
    content, _ = read(path, MAX_BYTES)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("adapter") != adapter:
        return path, {}
    found = content.get("found")
    return path, found if isinstance(found, dict) else {}
