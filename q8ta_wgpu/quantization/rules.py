"""The rules by which values are stored in more than 8 bits whatever noise was measured.

They are of values that lose more on other inputs than on those of the calibration, or that lose in 8 bits what a
network asks for. RULES is the list of them. Each row says what it matches (matches.py), the width that it asks for, the
reason that a report gives, and its guard: the network of the tests that gets worse without it.

The plan has others, by the operators around a value: residual streams, sums and averages of squares, and rotary
positions have 16 bits (passes/plan/streams.py, widths.py and rounding.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.quantization import matches
from q8ta_wgpu.quantization.steps import Costs, Step
from q8ta_wgpu.quantization.stored import WIDTHS, Reading, StoredValues, Width


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: by which a measurement leaves it out.
        match: finds the readings of a network that need the width.
        width: of these readings.
        reason: of the report, as the end of "... is stored in int16".
        guard: the network of tests/frontend/test_rules.py that loses without the rule.
        worth: how much that one lost without it when it was measured.
    """

    name: str
    match: Callable[[matches.Network], Iterable[Reading]]
    width: Width
    reason: str
    guard: str
    worth: str


ASKED, FEW_VALUES, STATES = "asked", "few values", "states"
"""The names of a rule that holds for any precision, and of two whose values may be left in float32 instead."""

MAY_GO_ON = (FEW_VALUES, STATES)
"""The names of rules whose values may be left in float32 instead."""

RULES: tuple[Rule, ...] = (
    Rule(
        ASKED,
        matches.asked,
        "float32",
        "since the module asks where it is infinite or NaN",
        "infinities that are replaced",
        "29 dB",
    ),
    Rule(
        "choices",
        matches.choices,
        "float32",
        "since whole numbers follow from it",
        "an order of scores",
        "2.8 % of the orders",
    ),
    Rule("scores", matches.scores, "int16", "since a softmax tells the largest apart", "a soft argmax", "3.0 dB"),
    Rule(
        "exponents",
        matches.exponents,
        "int16",
        "since an exponential makes larger what calibration did not reach",
        "sizes of boxes",
        "4.9 dB",
    ),
    Rule(
        "divisors",
        matches.divisors,
        "float32",
        "since what is divided by comes near zero",
        "shares of next to nothing",
        "47 dB",
    ),
    Rule(
        STATES,
        matches.states,
        "int16",
        "since errors of a state add up from call to call",
        "a delta rule",
        "2.1 dB",
    ),
    Rule(
        FEW_VALUES,
        matches.few_values,
        "int16",
        "since other inputs reach further than the few values that calibration met",
        "a matrix that turns points",
        "1.8 dB",
    ),
)
"""All rules."""


def matched(values: StoredValues, costs: Costs, only: Collection[str] = ()) -> dict[Reading, list[Step]]:
    """The steps that the rules ask for, or some of them by name, in the order of the rules."""
    found: dict[Reading, list[Step]] = {}
    for rule in RULES:
        if rule.name in _LEFT_OUT or (only and rule.name not in only):
            continue
        for reading in rule.match(matches.Network(values, costs, found.copy())):
            if reading[0].edges(reading[1]):
                step = Step(reading, rule.width, costs.of(reading, rule.width), rule.name, rule.reason)
                found.setdefault(reading, []).append(step)
    return found


def deciding(found: Mapping[Reading, Sequence[Step]]) -> list[Step]:
    """Of the steps that rules ask for those that decide: of each reading the first one of the widest."""
    return [max(steps, key=lambda step: WIDTHS.index(step.width)) for steps in found.values()]


_LEFT_OUT: set[str] = set()


@contextlib.contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Leaves rules out, by their names, to measure what they gain. Raises InputError for a name that no rule has."""
    if unknown := [name for name in names if name not in {rule.name for rule in RULES}]:
        raise InputError(f"no rule is called {unknown[0]!r}: there are {', '.join(rule.name for rule in RULES)}")
    before = {*_LEFT_OUT}
    _LEFT_OUT.update(names)
    try:
        yield
    finally:
        _LEFT_OUT.intersection_update(before)
