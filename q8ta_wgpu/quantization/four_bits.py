"""Weights in 4 bits: a scale for each output, and for each group of its inputs an integer factor of it
(q8ta_wgpu/ir/bits.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.arithmetic import LARGEST_OF_4_BITS, STEPS
from q8ta_wgpu.ir.bits import largest_factor
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.ranges import scales_of_weights

_ENDS = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""The largest numbers of a group that are tried, as fractions of its true one. Clipping it may reduce the error of the
others."""

_AT_ONCE = 1 << 20
"""The number of weights that are rounded at a time. They fit a cache in float64, in which a table of tokens would take
gigabytes."""


@dataclass(frozen=True)
class Groups:
    """The grid of a weight (outputs, inputs).

    Attributes:
        scales: of each output, float32.
        factors: of each group of inputs, (outputs, groups) float64.
        group: inputs that share a factor.
    """

    scales: Array
    factors: Array
    group: int

    ends = STEPS

    def steps(self, inputs: int) -> Array:
        """The step of each weight, in float64."""
        return np.asarray(np.repeat(self.factors, self.group, 1)[:, :inputs] * self.scales.astype(np.float64)[:, None])


def grouped(weight: Array, group: int) -> Groups:
    """Scales and factors for a weight (outputs, inputs) in float64."""
    floor = float(scales_of_weights(np.array([0.0, np.abs(weight).max(initial=0.0)]), LARGEST_OF_4_BITS)[0])
    each = max(1, _AT_ONCE // max(1, weight.shape[1]))
    parts = [_chosen(weight[at : at + each], group, floor) for at in range(0, len(weight), each)]
    scales, factors = (np.concatenate(found) for found in zip(*parts, strict=True))
    return Groups(scales, factors, group)


def _chosen(rows: Array, group: int, floor: float) -> tuple[Array, Array]:
    """Scales (outputs) and factors (outputs, groups). Each group has the factor with the least squared error. Its sign
    makes the group's largest number -8 steps, since +8 is not representable."""
    split = np.pad(rows, ((0, 0), (0, -rows.shape[1] % group))).reshape(len(rows), -1, group)
    end = np.take_along_axis(split, np.abs(split).argmax(2)[..., None], 2) / STEPS[0]
    most = largest_factor(rows.shape[1])
    scales = np.maximum(np.abs(end).max((1, 2)) / most, floor).astype(np.float32)
    scale = scales.astype(np.float64)[:, None, None]
    least, factors = np.full_like(end, np.inf), np.ones_like(end)
    for fraction in _ENDS:
        tried = np.where(end < 0, -1.0, 1.0) * np.clip(np.rint(np.abs(end) * fraction / scale), 1, most)
        step = tried * scale
        error = ((np.clip(np.rint(split / step), *STEPS) * step - split) ** 2).sum(2, keepdims=True)
        factors = np.where(error < least, tried, factors)
        least = np.minimum(error, least)
    return scales, factors[..., 0]
