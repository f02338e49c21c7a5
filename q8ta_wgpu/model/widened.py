"""What a report says of values that are stored in more than 8 bits: a line for all that are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from q8ta_wgpu.ir.decision import Decision, size_of

_LISTED = 4
"""The most names in a line."""


def together(decisions: Iterable[Decision]) -> list[str]:
    """A line for each width and reason: how many values, at what cost, and which they are, the costliest first."""
    groups: dict[tuple[str, str], list[Decision]] = {}
    for each in decisions:
        groups.setdefault((each.how, each.reason), []).append(each)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Decision]) -> str:
    first = group[0]
    if len(group) == 1:
        return first.note
    names = [each.values[0] for each in sorted(group, key=lambda each: -each.cost)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    noise = [each.noise or 0.0 for each in group]
    range_of = f"{_number(min(noise))} to {_number(max(noise))}"
    alone = f": alone each would make {range_of} times the noise that outputs may have"
    return (
        f"{len(group)} values: each {first.how} {first.reason}{alone if min(noise) else ''}, for "
        f"{size_of(sum(each.cost for each in group))} more: {', '.join(names[:_LISTED])}{more}"
    )


def _number(share: float) -> str:
    return f"{share:.2g}" if share < 9.5 else f"{share:,.0f}"
