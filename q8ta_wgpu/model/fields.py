"""Reads entries of a model file's JSON, and checks each of them. All functions raise GraphError."""

from __future__ import annotations

from typing import Any

from q8ta_wgpu.errors import GraphError

MAX_NAME = 200

_CONTAINER_KEY = "__metadata__"  # safetensors' own entry: no tensor may have this name


def known(data: Any, keys: tuple[str, ...], where: str) -> None:
    """Raises for keys that are not among the expected ones."""
    if isinstance(data, dict) and (unknown := data.keys() - keys):
        raise GraphError(f"{where} has a key that is not known: {ascii(min(unknown))[:MAX_NAME]}")


def get(data: Any, key: str, kind: type, where: str) -> Any:
    """The entry of an object, which must have a type."""
    if not isinstance(data, dict):
        raise GraphError(f"{where} must be an object, found {type(data).__name__}")
    if key not in data:
        raise GraphError(f"{where}: {key!r} is missing")
    value = data[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not object):
        raise GraphError(f"{where}: {key!r} must be a {kind.__name__}, found {type(value).__name__}")
    return value


def text_of(value: Any, where: str) -> str:
    """Text that is safe to print on a terminal."""
    if not isinstance(value, str) or not value.replace("\n", "").isprintable():
        raise GraphError(f"{where} must be printable text, found {ascii(value)[:MAX_NAME]}")
    return value


def name_of(value: Any) -> str:
    """A name, of a value or an operator."""
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 0 < len(value) <= MAX_NAME
        or value == _CONTAINER_KEY
    ):
        raise GraphError(f"a name must be 1 to {MAX_NAME} printable characters, found {ascii(value)[:MAX_NAME]}")
    return value


def names_of(data: Any, key: str, where: str) -> list[str]:
    """A list of names."""
    return [name_of(name) for name in get(data, key, list, where)]
