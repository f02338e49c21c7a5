"""Recognizes norms and softmax that programs write as several operators, by what these make of random rows.

For example `x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight` is an rms_norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.passes.plan.trial import Operator, Trial

_TOLERANCE = 5e-4
"""Tolerance of a norm's result, in standard deviations. Programs add eps within the root, beside it (std + 1e-6), or
use it as a bound (F.normalize); for rows of the scales below that makes no difference."""

_SCALES = (0.1, 1.0, 30.0)
"""Standard deviations of the rows that a norm is checked on."""

_LARGE, _TINY = 1e4, 1e-17
"""Scales between which eps is searched; at the first it makes no difference."""

_DRAWS = 4
"""Random rows that the parameters are computed from."""

_LARGEST_EPS = 1.0
"""With a larger eps, the result would be a multiple of usual inputs rather than a norm of them."""

_ROUNDING = 1e-6
"""Relative error of float32 sums."""

_MOST = 1 << 20
"""Limit of elements that are tried."""


def row_operator(trial: Trial, dims: tuple[int, ...]) -> Operator | None:
    """The norm or softmax over `dims` that nodes compute; None where there is none."""
    shape = tried_shape(trial, dims)
    if np.prod(shape) > _MOST or (0 in dims and len(shape) > 1):
        return None
    if len(dims) == 1 and _is_softmax(trial, dims[0], shape):
        return Operator("softmax", {"dim": dims[0]})
    for centered in (False, True):
        with np.errstate(all="ignore"):
            found = _fitted(trial, _Rows(dims, shape, centered))
        if found is not None and (placed := _as_operator(trial, dims, centered, *found)) is not None:
            return placed
    return None


def tried_shape(trial: Trial, dims: tuple[int, ...]) -> Shape:
    """The shape of trial inputs: full in reduced dimensions and where constants differ, else 1."""
    rank = len(trial.shape)
    constants = [(1,) * (rank - array.ndim) + array.shape for array in trial.constants]
    return tuple(n if d in dims or any(s[d] > 1 for s in constants) else 1 for d, n in enumerate(trial.shape))


def _is_softmax(trial: Trial, dim: int, shape: Shape) -> bool:
    for seed, scale in enumerate((1.0, 5.0)):
        x = np.random.default_rng(seed).normal(0.5, scale, shape).astype(np.float32)
        e = np.exp(x.astype(np.float64) - x.max(dim, keepdims=True))
        if not np.allclose(trial(x), e / e.sum(dim, keepdims=True), 1e-4, 1e-6):
            return False
    return True


@dataclass(frozen=True)
class _Rows:
    """Random rows, and the norm of them without parameters.

    Attributes:
        dims: the reduced dimensions.
        shape: of the rows.
        centered: whether the norm subtracts the mean.
    """

    dims: tuple[int, ...]
    shape: Shape
    centered: bool

    def drawn(self, seed: int, scale: float) -> Array:
        """float32 rows whose mean is not 0, with no element near 0."""
        draw = np.random.default_rng(seed)
        signs = np.where(draw.random(self.shape) < 0.7, 1.0, -1.0)
        return np.asarray(signs * draw.uniform(0.5, 1.5, self.shape) * scale, np.float32)

    def distances(self, x: Array) -> Array:
        """Distances from the mean if centered, else from 0, float64."""
        x = x.astype(np.float64)
        return np.asarray(x - x.mean(self.dims, keepdims=True) if self.centered else x)

    def normal(self, x: Array, eps: float) -> Array:
        """Distances divided by the root of their mean square plus eps."""
        d = self.distances(x)
        return np.asarray(d / np.sqrt((d**2).mean(self.dims, keepdims=True) + eps))


def _odd_and_even(trial: Trial, x: Array) -> tuple[Array, Array]:
    """The odd and the even part of the nodes' function at x: of a norm, gamma * normal(x) and beta."""
    plus, minus = (trial(sign * x).astype(np.float64) for sign in (np.float32(1), np.float32(-1)))
    return (plus - minus) / 2, (plus + minus) / 2


def _fitted(trial: Trial, rows: _Rows) -> tuple[float, Array, Array] | None:
    """(eps, gamma, beta) of the norm that nodes compute, parameters of the rows' shape; None where it is no norm. gamma
    is a least-squares fit on large rows, where eps makes no difference."""
    products, squares, betas = np.zeros(rows.shape), np.zeros(rows.shape), []
    for seed in range(_DRAWS):
        x = rows.drawn(seed, _LARGE)
        odd, even = _odd_and_even(trial, x)
        normal = rows.normal(x, 0.0)
        products, squares = products + odd * normal, squares + normal**2
        betas.append(even)
    gamma, beta = products / squares, np.asarray(np.mean(betas, 0))

    def is_near(scale: float, eps: float) -> bool:
        x = rows.drawn(_DRAWS, scale)
        normal = rows.normal(x, eps)
        error, size = np.abs(trial(x) - (gamma * normal + beta)), np.abs(gamma) * np.sqrt((normal**2).mean())
        return bool((error <= _TOLERANCE * size + _ROUNDING * np.abs(beta)).all())

    eps = _eps(trial, rows, gamma) if is_near(_LARGE, 0.0) else np.inf
    return (eps, gamma, beta) if eps <= _LARGEST_EPS and all(is_near(scale, eps) for scale in _SCALES) else None


def _eps(trial: Trial, rows: _Rows, gamma: Array) -> float:
    """The eps of a norm, from rows so small that it reduces the result by more than 30 %; 0 where no rows are."""
    scale = _LARGE
    while scale > _TINY:
        x = rows.drawn(_DRAWS, scale)
        odd, _ = _odd_and_even(trial, x)
        wanted = gamma * rows.normal(x, 0.0)
        share = (odd * wanted).sum(rows.dims) / (wanted**2).sum(rows.dims)
        if 0 < np.median(share) < 0.7:
            added = (rows.distances(x) ** 2).mean(rows.dims) * (share**-2 - 1)
            return float(f"{np.median(added):.6g}")  # the digits that are certain
        scale /= 10
    return 0.0


def _as_operator(
    trial: Trial, dims: tuple[int, ...], centered: bool, eps: float, gamma: Array, beta: Array
) -> Operator | None:
    """The norm with these parameters of the rows' shape. None where no operator has parameters that vary so."""
    rank = len(trial.shape)
    if not centered and np.abs(beta).max() > _TOLERANCE * np.abs(gamma).max():
        return None
    parameters = {"gamma": gamma, "beta": beta} if centered else {"gamma": gamma}
    varies = varying(*parameters.values())
    per_channel = centered and varies <= {1} and dims in (tuple(range(1, rank)), tuple(range(2, rank)))
    if per_channel and (varies or rank > 3):
        means = {name: a.mean((0, *range(2, rank))) for name, a in parameters.items()}
        channels = {name: np.broadcast_to(a, trial.shape[1:2]) for name, a in means.items()}
        return Operator("group_norm", {"groups": 1 if 1 in dims else trial.shape[1], "eps": eps}, channels)
    if not varies <= set(dims) or not (varies or len(dims) == 1):  # parameters would fix sizes that may be dynamic
        return None
    others = tuple(d for d in range(rank) if d not in dims)
    order, rowwise = others + dims, {name: a.mean(others) for name, a in parameters.items()}
    forth, back = {"dims": order}, {"dims": tuple(order.index(d) for d in range(rank))}
    moved = None if order == tuple(range(rank)) else (("permute", forth), ("permute", back))
    return Operator("layer_norm" if centered else "rms_norm", {"eps": eps}, rowwise, moved)


def varying(*arrays: Array) -> set[int]:
    """The dimensions along which elements of any array differ by more than rounding. All have one shape."""
    rounding = 1e-5 * max(np.abs(a).max() for a in arrays)
    return {d for d in range(arrays[0].ndim) if any(np.ptp(a, axis=d).max() > rounding for a in arrays)}
