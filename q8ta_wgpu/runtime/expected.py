"""The target that a user's `device` argument gave last, kept in the user's cache folder. A network is planned for it
while the device opens, which takes a driver longer than all planning.

It is a guess. Where another target is opened, the network is planned again.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any

from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.runtime import findings

FORMAT = 1
FILE = "targets.json"
MAX_BYTES = 1 << 16

MOST = 32
"""Limit of arguments that are remembered. The oldest are dropped first."""


def target(wanted: str | int | None, products: bool) -> Target | None:
    """The last target of an argument, for networks with int8 products or without; None if none is known."""
    found = _read().get(_key(wanted, products), {})
    try:
        known = Target(**found)
        return replace(known, matrix_units=tuple(MatrixUnit(**unit) for unit in found["matrix_units"]))
    except (TypeError, KeyError):  # nothing, or of another version
        return None


def remember(wanted: str | int | None, products: bool, found: Target) -> None:
    """Stores the target of an argument, if there is a cache folder."""
    if target(wanted, products) == found:
        return
    key = _key(wanted, products)
    others = {name: value for name, value in _read().items() if name != key}
    newest = dict([*others.items(), (key, asdict(found))][-MOST:])
    with contextlib.suppress(OSError, RuntimeError):
        findings.write(findings.folder() / FILE, {"format": FORMAT, "targets": newest})


def _key(wanted: str | int | None, products: bool) -> str:
    name = f"{wanted:#x}" if isinstance(wanted, int) else repr(wanted)  # str() and repr() refuse thousands of digits
    return f"{name}{' with products' if products else ''}"


def _read() -> dict[str, Any]:
    """The fields of targets, by key."""
    try:
        content, _ = findings.read(findings.folder() / FILE, MAX_BYTES)
    except RuntimeError:  # no folder
        return {}
    found = content.get("targets") if isinstance(content, dict) and content.get("format") == FORMAT else None
    return found if isinstance(found, dict) else {}
