"""How much of the outputs' noise the rounding of each value makes, found by runs with some of them rounded.

Noise of different values adds up. So a group of values is rounded, and nothing else; then half of the group that makes
the most noise, and what is left is the other half's. This goes on until what is not told apart does not matter. Where
outputs have nearly as much noise as signal, noise does not add up, and both halves are rounded.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.stored import Choice, Reading
from q8ta_wgpu.quantization.tuned import FAIR, NOTHING


def noise_of_each(
    readings: Sequence[Reading],
    noise: Callable[[Choice], Sequence[float]],
    wanted: Sequence[float],
    runs: int,
) -> dict[Reading, float]:
    """The noise that the rounding of each reading makes in the output in which it makes most of what is wanted.

    Args:
        readings: in the order of the network.
        noise: the noise of each output, relative to its signal, where all readings but those of a choice are rounded.
        wanted: the noise that each output should have at most; infinity for one that is not judged.
        runs: the most calls of `noise`.

    Returns:
        By reading, noise divided by what is wanted. Readings of a group that was not told apart share its noise.
    """
    every: Mapping[Reading, None] = dict.fromkeys(readings)
    judged = np.isfinite(wanted)
    limits = np.asarray(wanted)[judged]

    def of(group: Sequence[Reading]) -> Array:
        others = every.keys() - set(group)
        return np.asarray(np.asarray(noise(dict.fromkeys(others, "float32")))[judged] / limits)

    count, first = itertools.count(), of(readings)
    waiting = [(-float(first.max(initial=0.0)), next(count), list(readings), first)]
    found: dict[Reading, float] = {}
    made = 1
    while waiting:
        most, _, group, whole = heapq.heappop(waiting)
        if len(group) == 1 or -most < NOTHING or made >= runs:
            found.update(dict.fromkeys(group, -most / len(group)))
            continue
        half = len(group) // 2
        left, adds_up = of(group[:half]), bool((whole * limits <= FAIR).all())
        right = np.maximum(whole - left, 0.0) if adds_up else of(group[half:])
        made += 1 if adds_up else 2
        for part, each in ((group[:half], left), (group[half:], right)):
            heapq.heappush(waiting, (-float(each.max(initial=0.0)), next(count), part, each))
    return found
