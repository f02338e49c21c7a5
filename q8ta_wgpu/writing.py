"""Files written whole: until the new contents are on the disk, a file holds its old ones.

Contents go to a temporary file beside the target, which is then renamed. A process that is killed leaves its temporary
file behind.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path

from q8ta_wgpu.errors import InputError


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
    made: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, data in files.items():
            target = path.resolve()
            if target.exists() and not target.is_file():
                raise OSError("it exists and is no regular file: give a file's path")
            # A name may have 255 bytes, a letter up to 4.
            temporary = target.with_name(f".{target.name[:40]}.{uuid.uuid4().hex}")
            with temporary.open("xb") as file:
                made.append((temporary, target))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        for path, (temporary, target) in zip(files, made, strict=True):  # noqa: B007, an error names the path
            temporary.replace(target)
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(getattr(error, "errno", None) or 0, reason, str(path)) from error
    finally:
        for temporary, _ in made:
            temporary.unlink(missing_ok=True)
