"""Assigns values to buffer slots by lifetime. Slots, not offsets in an arena: WebGPU refuses one buffer bound both for
reading and writing in a dispatch, even for disjoint ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The steps during which a value must exist, from the one that writes it to the last that reads it, and its
    bytes."""

    first: int
    last: int
    size: int


def assign_slots(values: Mapping[str, Lifetime]) -> tuple[dict[str, int], list[int]]:
    """The slot of every value, and the bytes of every slot.

    Greedy by size, as in TensorFlow Lite's planner: larger values first, each into the smallest slot that is free over
    its whole lifetime, else a new one. Values that live at the same step never share a slot.
    """
    slots: list[int] = []
    held: list[list[Lifetime]] = []
    assigned: dict[str, int] = {}
    for name, life in sorted(values.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        free = [i for i, lives in enumerate(held) if all(life.first > o.last or life.last < o.first for o in lives)]
        if free:
            slot = min(free, key=lambda i: slots[i])
        else:
            slot = len(slots)
            slots.append(0)
            held.append([])
        slots[slot] = max(slots[slot], life.size)
        held[slot].append(life)
        assigned[name] = slot
    return assigned, slots


def lifetimes(
    reads: Sequence[Sequence[str]],
    writes: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    sizes: Mapping[str, int],
) -> dict[str, Lifetime]:
    """Lifetimes of the values of a list of steps. Inputs live from before the first step, outputs past the last."""
    first = {name: -1 for name in inputs} | {name: step for step, name in enumerate(writes)}
    last = dict(first)
    for step, names in enumerate(reads):
        last.update({name: step for name in names if name in first})
    last.update({name: len(writes) for name in outputs if name in first})
    return {name: Lifetime(first[name], last[name], sizes[name]) for name in first}
