"""Notes on values that are stored in more than 8 bits, as `quantize` writes them: read again, and put together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NOTE = re.compile(
    r"(?P<name>.+?): (?P<how>is (?:not rounded|stored in \w+)|reads (?:weights of 16 bits|a table of int16))"
    r" (?P<why>.+?)(?:: here alone they would make (?P<share>[\d,.e+]+) (?P<unit>% of|times) .*?)?"
    r", for (?P<cost>[\d.e+-]+) (?P<prefix>[kM])B more to (?:move|store)(?: \(.*\))?"
)
_BYTES = {"k": 1e3, "M": 1e6}
_LISTED = 4
"""The most names in a line."""


@dataclass(frozen=True)
class Widened:
    """A value that is stored in more than 8 bits.

    Attributes:
        name: of the value.
        how: in which way, "is stored in int16" for example.
        why: the reason, beginning with "since".
        share: what its rounding to 8 bits would make of the noise that the outputs should have at most; 0 if unknown.
        cost: how many bytes more are moved, or stored.
        note: the whole sentence.
    """

    name: str
    how: str
    why: str
    share: float
    cost: float
    note: str

    @staticmethod
    def of(note: str) -> Widened | None:
        """What a note says; None where it says something else."""
        if (found := _NOTE.fullmatch(note)) is None:
            return None
        share = float((found["share"] or "0").replace(",", "")) * (0.01 if found["unit"] == "% of" else 1)
        return Widened(
            found["name"], found["how"], found["why"], share, float(found["cost"]) * _BYTES[found["prefix"]], note
        )


def together(values: Iterable[Widened]) -> list[str]:
    """A line for each way and reason: how many values, at what cost, and which they are, the costliest first."""
    groups: dict[tuple[str, str], list[Widened]] = {}
    for value in values:
        groups.setdefault((value.how, value.why), []).append(value)
    return [_line(*key, group) for key, group in groups.items()]


def _line(how: str, why: str, group: list[Widened]) -> str:
    if len(group) == 1:
        return group[0].note
    names = [value.name for value in sorted(group, key=lambda value: -value.cost)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    shares = [value.share for value in group]
    range_of = f"{_number(min(shares))} to {_number(max(shares))}"
    alone = f": alone each would make {range_of} times the noise that outputs may have"
    return (
        f"{len(group)} values: each {how} {why}{alone if min(shares) else ''}, for "
        f"{_size(sum(value.cost for value in group))} more: {', '.join(names[:_LISTED])}{more}"
    )


def _number(share: float) -> str:
    return f"{share:.2g}" if share < 9.5 else f"{share:,.0f}"


def _size(cost: float) -> str:
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"
