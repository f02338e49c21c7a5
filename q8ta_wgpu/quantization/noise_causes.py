"""Where the noise of a stored value comes from.

The noise of a value has four parts. Elements beyond the range are clipped to its ends. All others are rounded to a
step. Before that, rounded weights change the value, and so does the noise of the values that it is computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from q8ta_wgpu.ir.graph import RANGES, Array, TensorType
from q8ta_wgpu.quantization.parts import Judge, decibels, fill_of
from q8ta_wgpu.quantization.tuned import SEVERAL

Cause = Literal["clipping", "rounding", "weights", "before"]


def parts_of(exact: Array, with_weights: Array, noise: float, stored: TensorType) -> dict[Cause, float]:
    """The parts of a value's noise, each relative to the signal as `noise_to_signal` gives it.

    Args:
        exact: the value of the float module.
        with_weights: the same, computed with rounded weights from exact stored values.
        noise: the value's noise to signal in the quantized network. What the other parts do not explain was there
            before.
        stored: the type in which it is stored.
    """
    parts: dict[Cause, float] = {"clipping": 0.0, "rounding": 0.0}
    if stored.q is not None:
        within = clipped(exact, stored)
        rounded = np.clip(np.rint(within / stored.q.scale), *_ends(stored)) * stored.q.scale
        parts = {
            "clipping": noise_to_signal(exact, within),
            "rounding": noise_to_signal(exact, exact + (rounded - within)),
        }
    parts["weights"] = noise_to_signal(exact, with_weights)
    parts["before"] = max(0.0, noise - sum(parts.values()))
    return parts


def clipped(exact: Array, stored: TensorType) -> Array:
    """A float value clipped to what rounds to the steps of its type without an error of more than half a step,
    float64."""
    assert stored.q is not None
    low, high = _ends(stored)
    return np.clip(exact.astype(np.float64), (low - 0.5) * stored.q.scale, (high + 0.5) * stored.q.scale)


def _ends(stored: TensorType) -> tuple[int, int]:
    """The ends of a type's range in steps from its zero point."""
    assert stored.q is not None
    low, high = RANGES[stored.dtype]
    return low - stored.q.zero, high - stored.q.zero


def noise_to_signal(exact: Array, found: Array) -> float:
    """The noise of a value relative to its signal, as a ratio of powers. It is averaged over channels (dimension 1), so
    that a large channel does not hide the losses of small ones. A channel with more noise than signal counts as 1,
    since the ratio of one with almost no signal (behind a ReLU, for example) is arbitrary. If all channels have more
    noise than signal, or if channels have few values, the ratio is computed over all values together. What takes the
    place of masked elements is no signal."""
    exact, found = exact.astype(np.float64), found.reshape(exact.shape)
    if (fill := fill_of([exact])) is not None:
        exact, found = (np.where(exact == fill, 0, x) for x in (exact, found))
    noise = (exact - found) ** 2
    apart = exact.ndim > 1 and exact.size >= SEVERAL * exact.shape[1]
    other = tuple(axis for axis in range(exact.ndim) if axis != 1) if apart else None
    signals, noises = np.sum(exact**2, axis=other), np.sum(noise, axis=other)
    each = np.minimum(noises, signals) / np.maximum(signals, np.finfo(float).tiny)
    return max(float(np.mean(each)), float(np.sum(noises) / max(np.sum(signals), np.finfo(float).tiny)))


def measured(
    exact: Array,
    real: Array,
    stored: TensorType,
    before: Sequence[float],
    judge: Judge | None = None,
    weighed: Array | None = None,
    simulated: Array | None = None,
    by_channels: bool = False,
) -> dict[str, Any]:
    """The noise of a value, and where it comes from: fields of `Layer`.

    Args:
        exact: the value of the float network.
        real: that of the integers.
        stored: how it is stored.
        before: signal to noise in dB of the stored values from which it is computed.
        judge: judges an output by its parts.
        weighed: the value computed with rounded weights from exact stored values; None where it is not known.
        simulated: that of torch's simulation; None if there is none.
        by_channels: whether a value that is computed from none is compared with its rounding by channels, as inputs
            are, or of all its elements together.
    """
    of = [real] if simulated is None else [real, simulated]
    part, (noise, *theirs) = "", (noise_to_signal(exact, x) for x in of)
    if judge is not None and (named := [i for i, each in enumerate(judge.parts) if each.name]):
        by_part = [np.minimum(judge.noise([[x]]), 1.0) for x in of]  # more noise than signal counts as as much
        worst = max(named, key=by_part[0].__getitem__)
        if by_part[0][worst] > noise:
            part, (noise, *theirs) = judge.parts[worst].name, (float(each[worst]) for each in by_part)
    parts = parts_of(exact, exact if weighed is None else weighed, noise, stored)
    snr, whole = decibels(noise), exact if by_channels else exact.reshape(-1)
    reads = [*before] or [decibels(parts_of(whole, whole, 0.0, stored)["rounding"])]
    return {
        "simulated": decibels(theirs[0]) if theirs else float("nan"),
        "snr": snr,
        "lost": max(0.0, min(reads) - snr),
        "clipped": float(np.mean(exact != clipped(exact, stored))) if stored.q is not None else 0.0,
        "cause": max(parts, key=parts.__getitem__) if noise else "rounding",
        "part": part,
    }
