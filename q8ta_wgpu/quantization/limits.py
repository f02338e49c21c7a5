"""How much noise parts of outputs may have, and should have, beside a yardstick: a simulation in which only inputs and
weights of weighted sums are rounded. All noise is a ratio of powers, noise to signal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from q8ta_wgpu.quantization.parts import Part, decibels
from q8ta_wgpu.quantization.tuned import FAIR, GOOD, POOR, WITHIN

SHORT = 1.5
"""A user is warned from so many dB below the yardstick on, unless the noise is good; and in any case where it is
poor."""


def allowed(ratio: float, part: Part) -> float:
    """The noise to signal that a part of an output may have if the yardstick has this much; infinity where it is not
    judged. For an output of integers both are shares of elements that differ, and as many more may differ as can be
    chance. Channels and items that are poor in the yardstick already are not judged. Where the yardstick has no noise,
    as without weighted sums, there is nothing to compare with: floats should then have 20 dB."""
    if not ratio and part.is_float and part.is_named and not part.is_silent:
        return FAIR
    if not ratio or (ratio >= POOR and not part.is_named):
        return math.inf
    chance = 0.0 if part.is_float else ratio + 2 * math.sqrt(ratio / part.count)
    return max(WITHIN * ratio, chance)


def wanted(most: float, int8: float, part: Part) -> float:
    """The noise to signal that a part of an output should have, if 16 bits can give that: what is allowed, and a fair
    ratio where that of int8 is nearer to a poor one in decibels, so below 15 dB, whatever the yardstick has. Not so of
    channels and items of like size: a black picture among others keeps no more than the yardstick leaves."""
    nearer_to_poor = int8 > math.sqrt(FAIR * POOR)
    return min(most, FAIR) if nearer_to_poor and part.is_float and part.is_named else most


def worst(parts: Sequence[Part], limits: Sequence[float], noise: Sequence[float]) -> int | None:
    """The index of the part that is farthest above what it may have, to name it. None where no part is judged.

    Args:
        parts: of outputs.
        limits: what is allowed for each.
        noise: noise to signal of each.
    """
    judged = (i for i, most in enumerate(limits) if most < math.inf)
    ratios = {i: noise[i] / min(limits[i], POOR) for i in judged if parts[i].is_named or noise[i] > GOOD}
    return max(ratios, key=ratios.__getitem__, default=None)


def low_signal(output: str, predicted: float | None, yardstick: float | None, skipping: str) -> str:
    """A warning about low signal to noise; empty if there is no reason for one.

    Args:
        output: the output or part that it is about; empty if there is only one.
        predicted: its signal to noise in dB as chosen; None where nothing was simulated, or it has no noise.
        yardstick: that of the yardstick.
        skipping: how the user leaves layers in float.
    """
    if predicted is None or yardstick is None:
        return ""
    without = yardstick >= decibels(0.0)
    if predicted >= (decibels(FAIR) if without else max(min(yardstick - SHORT, decibels(GOOD)), decibels(POOR))):
        return ""
    subject = f"{output} is" if output else "the outputs are"
    left = "loses nothing" if without else f"leaves {yardstick:z.1f} dB"
    found = (
        f"{subject} predicted to keep {predicted:z.1f} dB of signal to noise on the inputs of the calibration, "
        f"where rounding nothing but weights and what layers read {left}"
    )
    larger = ": the network makes noise larger" if yardstick < decibels(POOR) else ""
    return f"{found}{larger}; calibrate with inputs as in use, or leave layers in float{skipping}; compare names them"
