"""Weights rounded by what their layers read: the same steps as by spreading each error over the inputs behind it."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization import weight_rounding

ENDS = (-20, 20)


def _spread(weight: Array, step: Array, covariance: Array) -> Array:
    """A weight of one group, input after input: each error is spread over the inputs behind it by the inverse of their
    covariance, which is computed anew for those that are left."""
    left, size = weight.copy(), weight.shape[1]
    for i in range(size):
        inverse = np.linalg.inv(covariance[i:, i:])
        nearest = np.clip(np.rint(left[:, i] / step[:, 0]), *ENDS) * step[:, 0]
        error = (left[:, i] - nearest) / inverse[0, 0]
        left[:, i + 1 :] -= error[:, None] * inverse[0, 1:]
        left[:, i] = nearest
    return left


@pytest.mark.parametrize(("groups", "outputs", "size"), [(1, 7, 150), (1, 40, 64), (6, 3, 9), (5, 1, 25)])
def test_errors_are_taken_over_by_the_inputs_behind(groups: int, outputs: int, size: int) -> None:
    """Of sizes of several blocks and less than one; some weights are beyond the ends."""
    rng = np.random.default_rng(size)
    mixed = np.eye(size) + rng.normal(size=(groups, size, size)) / size**0.5
    x = rng.normal(size=(groups, 4 * size, size)) @ mixed
    covariance = x.swapaxes(1, 2) @ x / (4 * size)
    weight = rng.normal(size=(groups * outputs, size))
    step = np.abs(weight).max(1, keepdims=True) / (ENDS[1] + 3)
    found = weight_rounding.rounded(weight, step, ENDS, covariance)
    damping = weight_rounding.DAMPING * covariance.diagonal(axis1=1, axis2=2).mean(1)
    parts = zip(np.split(weight, groups), np.split(step, groups), covariance, damping, strict=True)
    wanted = np.concatenate([_spread(w, s, c + d * np.eye(size)) for w, s, c, d in parts])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    assert np.abs(found / step).max() == pytest.approx(ENDS[1])
    nearest = weight_rounding.rounded(weight, step, ENDS, None)
    assert (found != nearest).any()
