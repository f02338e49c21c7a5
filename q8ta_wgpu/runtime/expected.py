"""The target that a user's `device` argument gave last, kept in the user's cache folder. A network is planned for it
while the device opens, which takes a driver longer than all planning.

It is a guess. Where another target is opened, the network is planned again.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.runtime.findings import Findings


def target(wanted: str | int | None, products: bool) -> Target | None:
    """The last target of an argument, for networks with int8 products or without; None if none is known."""
    found = _known().found.get(_key(wanted, products), {})
    try:
        known = Target(**found)
        return replace(known, matrix_units=tuple(MatrixUnit(**unit) for unit in found["matrix_units"]))
    except (TypeError, KeyError):  # nothing, or of another version
        return None


def remember(wanted: str | int | None, products: bool, found: Target) -> None:
    """Stores the target of an argument, if there is a cache folder."""
    if target(wanted, products) != found:
        known = _known()
        known.found[_key(wanted, products)] = asdict(found)
        known.save()


def _known() -> Findings:
    """The fields of targets, by key. They are no adapter's: which one is opened is not known yet."""
    return Findings.of("targets", {})


def _key(wanted: str | int | None, products: bool) -> str:
    name = f"{wanted:#x}" if isinstance(wanted, int) else repr(wanted)  # str() and repr() refuse thousands of digits
    return f"{name}{' with products' if products else ''}"
