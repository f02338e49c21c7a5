"""Files that a command writes beside what it prints."""

from __future__ import annotations

from pathlib import Path

from q8ta_wgpu.errors import InputError


def target(text: str, option: str, endings: tuple[str, ...]) -> Path:
    """The file that an option names. Raises InputError, before anything long is done, where it has none of the endings
    or cannot be a file."""
    path = Path(text)
    if path.suffix not in endings:
        raise InputError(f"{option} must end in {' or '.join(endings)}, found {text}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    return path
