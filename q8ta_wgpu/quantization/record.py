"""The record of what was decided: for each stored value and role all rules that matched, which one decided, the noise
that was predicted, and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.quantization.steps import Step
from q8ta_wgpu.quantization.stored import ROLES, WIDTHS, Reading, StoredValues


def record(
    values: StoredValues,
    taken: Sequence[Step],
    matched: Mapping[Reading, Sequence[Step]],
    noise: Mapping[Reading, float],
) -> list[Decision]:
    """The decision of each reading.

    Args:
        values: what a graph stores.
        taken: the steps to more bits; the last one of a reading counts.
        matched: the steps that rules asked for.
        noise: what was predicted of the width without regard to noise, relative to what outputs should have at most.
    """
    steps = {step.reading: step for step in taken}
    found = []
    for stored in values.stored:
        for role in ROLES:
            reading, names = (stored, role), tuple(stored.values)
            if not stored.edges(role) or not names:
                continue
            asked = matched.get(reading, ())
            rules, made = tuple(dict.fromkeys(step.rule for step in asked)), noise.get(reading)
            narrow = max((step.width for step in asked), key=WIDTHS.index, default=stored.width)
            if (step := steps.get(reading)) is None:
                found.append(Decision(names, role, stored.width, "plan", "", rules, made, narrow=narrow))
            else:
                by, cost = step.rule or "noise", float(step.cost)
                found.append(Decision(names, role, step.width, by, step.reason, rules, made, cost, narrow))
    return found
