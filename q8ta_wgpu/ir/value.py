"""What is known of a value of a graph beside its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class ValueInfo:
    """What is known of a value beside its type.

    Attributes:
        given: how an int8x4 input at scale 1 is passed, if not as int8: `uint8` (the int8 is 128 less, the zero point
            -128) or `bool` (0 and 1).
        bounds: the smallest and the largest number that an int32 input may hold: rows of a table it is an index of, or
            numbers of which the network computes none that int32 does not hold.
        fixed: by dimension of an input, in which steps its size may change (0: not at all), and why: numbers of the
            graph were computed from it.
        in_float: why the operator that computes it stays in float32 whatever its operands are; empty if it need not.
        unrounded: why it is not rounded, though it may be; empty for other values.
        is_joined: whether our quantizer took the call that gives it, and others, for one operator.
    """

    given: str = ""
    bounds: tuple[int, int] | None = None
    fixed: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    in_float: str = ""
    unrounded: str = ""
    is_joined: bool = False


class ValueInfos(dict[str, ValueInfo]):
    """What is known of the values of a graph, by name. Of a value without an entry nothing is.

    Examples:
        >>> values = ValueInfos()
        >>> values.set("ids", bounds=(0, 9))
        >>> values["ids"].bounds, values["other"].bounds
        ((0, 9), None)
    """

    def __missing__(self, name: str) -> ValueInfo:
        return _NOTHING

    def set(self, name: str, **known: Any) -> None:
        """Sets fields of what is known of a value."""
        self[name] = replace(self[name], **known)

    def leave_in_float(self, reasons: Mapping[str, str]) -> None:
        """Keeps the operators that compute these values in float32, each for the reason given for it."""
        for name, reason in reasons.items():
            self.set(name, in_float=reason)


_NOTHING = ValueInfo()
