"""A factor and a term for each channel, however a program writes them, as a batch norm: it is rounded once, and its
parameters are not rounded at all."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.int8 import MASKS_FROM
from q8ta_wgpu.passes.plan.row_operators import shape_tried, varying
from q8ta_wgpu.passes.plan.trial import Operator, Trial

_LARGE = 2.0**20
"""A number beside which terms are small."""

_NEAR = 1e-5
"""How far what is written may be from factor and term, relative to the two: float32 rounds each step."""


def channels_of(trial: Trial) -> Operator | None:
    """The batch norm that nodes compute which work element by element; its channels are dimension 1, or the last one.
    None where they mask elements, or have one factor for all: then they are a sum, which may be part of a stream."""
    shape, arrays = trial.shape, [array for array in trial.constants if array.size > 1]
    by_channel = all(array.size == max(array.shape) for array in arrays)
    found = _fitted(trial) if len(shape) > 1 and arrays and by_channel else None
    if found is None:
        return None
    factor, term = found
    varies = varying(factor, term)
    masks = (term == 0).any() and (term <= MASKS_FROM).any()
    if not varying(factor) and (masks or trial.source not in trial.graph.inputs):
        return None
    if varies <= {1}:
        return Operator("batch_norm", {"eps": 0.0}, _parameters(factor, term, 1, shape[1]))
    if varies == {len(shape) - 1}:
        moved = ("view", {"shape": (-1, shape[-1])}), ("view", {"shape": (-1, *shape[1:])})
        return Operator("batch_norm", {"eps": 0.0}, _parameters(factor, term, len(shape) - 1, shape[-1]), moved)
    return None


def _fitted(trial: Trial) -> tuple[Array, Array] | None:
    """The factor and the term of each element that constants tell apart."""
    shape = shape_tried(trial, ())
    there, back, term = (trial(np.full(shape, x)).astype(np.float64) for x in (_LARGE, -_LARGE, 0.0))
    factor = np.asarray((there - back) / (2 * _LARGE))
    for seed, scale in enumerate((1.0, 30.0, 1000.0)):
        x = np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)
        error, size = np.abs(trial(x) - (factor * x + term)), np.abs(factor * x) + np.abs(term)
        if not (error <= _NEAR * size).all():
            return None
    return factor, term


def _parameters(factor: Array, term: Array, axis: int, channels: int) -> dict[str, Array]:
    others = tuple(d for d in range(factor.ndim) if d != axis)
    gamma, beta = (np.broadcast_to(a.mean(others), (channels,)) for a in (factor, term))
    mean = -beta / np.where(gamma == 0, 1, gamma)
    return {"gamma": gamma, "beta": np.where(gamma == 0, beta, 0), "mean": mean, "variance": np.ones(channels)}
