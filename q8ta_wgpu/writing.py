"""Files written whole: until the new contents are on the disk, a file holds its old ones.

Contents go to a temporary file beside the target, which is then renamed. A process that is killed leaves its temporary
file behind; the next one that writes the same file removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from q8ta_wgpu.errors import InputError

if sys.platform != "win32":
    import fcntl


def write(path: Path, data: bytes) -> None:
    """Makes `path` hold `data`, as `replace` does. Raises InputError where that fails."""
    try:
        replace({path: data})
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def replace(files: Mapping[Path, bytes]) -> None:
    """Makes every path hold its bytes. A symbolic link stays; the file it leads to changes and keeps its permissions.

    No file changes before the contents of all are on the disk. Then they are replaced in the order given.

    Raises OSError, whose `filename` is one of the paths, where one cannot be written or is something else than a
    regular file: renaming a file over a device, a pipe, a socket or a folder would take its place.
    """
    made: list[tuple[BinaryIO, Path, Path]] = []
    path = Path()
    try:
        for path, data in files.items():
            target = path.resolve()
            if target.exists() and not target.is_file():
                raise OSError("it exists and is no regular file: give a file's path")
            _remove_abandoned(target)
            file, temporary = _temporary(target)
            made.append((file, temporary, target))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        for path, (file, temporary, target) in zip(files, made, strict=True):  # noqa: B007, an error names the path
            if sys.platform == "win32":  # an open file cannot be renamed there
                file.close()
            temporary.replace(target)
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(getattr(error, "errno", None) or 0, reason, str(path)) from error
    finally:
        for file, temporary, _ in made:
            with contextlib.suppress(OSError):  # what could not be written is tried again
                file.close()
            temporary.unlink(missing_ok=True)


def _prefix(target: Path) -> str:
    """What the names of a file's temporary files begin with. A name may have 255 bytes, a letter up to 4."""
    return f".{target.name[:40]}."


def _temporary(target: Path) -> tuple[BinaryIO, Path]:
    """A new file beside the target. It is locked as long as it is open."""
    while True:
        temporary = target.with_name(f"{_prefix(target)}{uuid.uuid4().hex}")
        file = temporary.open("xb")
        _lock(file, wait=True)
        if temporary.exists():  # another process may have taken it for abandoned before it was locked
            return file, temporary
        file.close()


def _remove_abandoned(target: Path) -> None:
    """Removes the temporary files that processes have left which no longer run."""
    pattern = re.compile(rf"{re.escape(_prefix(target))}[0-9a-f]{{32}}")
    found: list[Path] = []
    with contextlib.suppress(OSError):  # some folders may be written, but not listed
        found += [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    for path in found:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":  # an open file cannot be removed there
                path.unlink()
                continue
            with path.open("r+b") as file:
                if _lock(file, wait=False):
                    path.unlink()


def _lock(file: BinaryIO, wait: bool) -> bool:
    """Locks a file until it is closed; whether that worked. Some file systems lock nothing."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
