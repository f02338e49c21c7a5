"""Recognizes a factor and a term for each channel, for example `(x - mean) / std`, as one batch norm.

A batch norm is rounded once, and its parameters stay in float32.
"""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.int8 import is_mask
from q8ta_wgpu.passes.plan.row_operators import tried_shape, varying
from q8ta_wgpu.passes.plan.trial import Operator, Trial

_LARGE = 2.0**20
"""An input beside which the term is small, so that the result shows the factor."""

_TOLERANCE = 1e-5
"""Tolerance between the nodes' results and `factor * x + term`, relative to both: float32 rounds every step."""


def channels_of(trial: Trial) -> Operator | None:
    """Returns the batch norm that elementwise nodes compute, with channels in dimension 1 or the last one.

    Returns None where all channels have one factor, as in `x + bias`: that sum may be part of a residual stream. Where
    `x` is an input of the network there is no stream, so it becomes a batch norm, unless the term is a mask.
    """
    shape, arrays = trial.shape, [array for array in trial.constants if array.size > 1]
    by_channel = all(array.size == max(array.shape) for array in arrays)
    found = _fitted(trial) if len(shape) > 1 and arrays and by_channel else None
    if found is None:
        return None
    factor, term = found
    varies = varying(factor, term)
    if not varying(factor) and (is_mask(term) or trial.source not in trial.graph.inputs):
        return None
    if varies <= {1}:
        return Operator("batch_norm", {"eps": 0.0}, _parameters(factor, term, 1, shape[1]))
    if varies == {len(shape) - 1}:
        moved = ("view", {"shape": (-1, shape[-1])}), ("view", {"shape": (-1, *shape[1:])})
        return Operator("batch_norm", {"eps": 0.0}, _parameters(factor, term, len(shape) - 1, shape[-1]), moved)
    return None


def _fitted(trial: Trial) -> tuple[Array, Array] | None:
    """Factor and term, of the shape that is tried; None where the nodes compute anything else."""
    shape = tried_shape(trial, ())
    high, low, term = (trial(np.full(shape, x)).astype(np.float64) for x in (_LARGE, -_LARGE, 0.0))
    factor = np.asarray((high - low) / (2 * _LARGE))
    for seed, scale in enumerate((1.0, 30.0, 1000.0)):
        x = np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)
        error, size = np.abs(trial(x) - (factor * x + term)), np.abs(factor * x) + np.abs(term)
        if not (error <= _TOLERANCE * size).all():
            return None
    return factor, term


def _parameters(factor: Array, term: Array, axis: int, channels: int) -> dict[str, Array]:
    """The batch norm's operands, (channels,) each."""
    others = tuple(d for d in range(factor.ndim) if d != axis)
    gamma, beta = (np.broadcast_to(a.mean(others), (channels,)) for a in (factor, term))
    mean = -beta / np.where(gamma == 0, 1, gamma)
    return {"gamma": gamma, "beta": np.where(gamma == 0, beta, 0), "mean": mean, "variance": np.ones(channels)}
