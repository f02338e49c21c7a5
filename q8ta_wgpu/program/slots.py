"""Assigns values to buffer slots by lifetime.

Slots are buffers, not offsets in one arena, since WebGPU does not allow a dispatch to read and write the same buffer,
even in disjoint ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The steps during which a value must exist, from the one that writes it to the last that reads it, and its size in
    bytes."""

    first: int
    last: int
    size: int


def assign_slots(values: Mapping[str, Lifetime]) -> tuple[dict[str, int], list[int]]:
    """The slot of each value, and the bytes of each slot.

    Greedy by size, as in TensorFlow Lite's planner: values are taken from large to small, each into the smallest slot
    that is free during its lifetime, or a new one. Values that live at the same step never share a slot.
    """
    slots: list[int] = []
    occupied: list[list[Lifetime]] = []
    assigned: dict[str, int] = {}
    for name, life in sorted(values.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        free = [i for i, lives in enumerate(occupied) if all(life.first > o.last or life.last < o.first for o in lives)]
        if free:
            slot = min(free, key=lambda i: slots[i])
        else:
            slot = len(slots)
            slots.append(0)
            occupied.append([])
        slots[slot] = max(slots[slot], life.size)
        occupied[slot].append(life)
        assigned[name] = slot
    return assigned, slots


def lifetimes(
    reads: Sequence[Sequence[str]],
    writes: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    sizes: Mapping[str, int],
) -> dict[str, Lifetime]:
    """The lifetime of each value in a list of steps. Inputs live from before the first step, outputs until after the
    last."""
    first = {name: -1 for name in inputs} | {name: step for step, name in enumerate(writes)}
    last = dict(first)
    for step, names in enumerate(reads):
        last.update({name: step for name in names if name in first})
    last.update({name: len(writes) for name in outputs if name in first})
    return {name: Lifetime(first[name], last[name], sizes[name]) for name in first}
