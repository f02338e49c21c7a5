"""Rounding weights by what calibration met at a layer's inputs: what is lost in one weight others take over.

Neighbouring pixels and channels vary together, so that what rounding changes in the weight of one can be made up for in
the weights that follow it: each error is spread over the later ones as the inputs' covariance says (Frantar et al.,
GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2022). What is left on average is
taken out of the bias: inputs have means far from zero, and depthwise layers few taps, so that errors move every output
of a channel (Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.kernels import OPS

LARGEST, LARGEST_OF_4_BITS = 512, 2048
"""Inputs of one output up to which they are told apart: the time it takes grows with the square. 4 bits gain more."""

_SAMPLES = 4
"""Samples for each input that a covariance needs, and that a call of the network gives."""

_LEAST = 512
"""Samples that a call gives, where it has them, however few the inputs."""

_CALLS = 4
"""Calls whose samples suffice."""

DAMPING = 0.01
"""Of the mean variance, added to every input's: what calibration met is not all there is."""

_LOST = 1e-9
"""Of the mean square, added to every variance: what float64 loses where inputs hardly vary beside their mean."""

_GOLDEN = 0.6180339887498949
"""The golden ratio without its whole: of all steps around a circle the one that spreads its places best."""

_BLOCK = 64
"""Inputs that take over the errors of all inputs before them at once, as one product."""


def by_reference(call: Call, x: Array, weight: Array) -> Array:
    """What a weighted sum without a bias gives, by its reference."""
    none = np.zeros(call.inputs[2].shape, np.float32)
    return np.asarray(OPS[call.op].reference(call, [x, weight, none]))


@dataclass(frozen=True)
class Algebra:
    """What is computed with matrices.

    Attributes:
        product: of two stacks of matrices of float64, as numpy's matmul.
        cholesky: the lower triangular factors of a stack of matrices of float64, as numpy's.
        sums: what a weighted sum without a bias gives, by its call, operand and weight, float32.
        norm: the root of the sum of the squares of an array in one dimension, float32.
    """

    product: Callable[[Array, Array], Array] = np.matmul
    cholesky: Callable[[Array], Array] = np.linalg.cholesky
    sums: Callable[[Call, Array, Array], Array] = by_reference
    norm: Callable[[Array], float] = lambda x: float(np.linalg.norm(x))


NUMPY = Algebra()


class Inputs:
    """What a layer reads in calibration.

    Args:
        shape: of its weight, outputs first.
        steps: stride, begin and end of the padding, and dilation along each axis of its kernel.
        groups: of its channels.
        told: whether inputs are told apart.
        coarse: whether the weight has 4 bits, which gain from few samples, and from those of every call.
        algebra: multiplies matrices.

    Attributes:
        mean: of the input over the first dimension, which stays as 1, for a linear over all dimensions but the last;
            each call counts the same. A mean of other sizes than the first is read at as many places, evenly spread.
        samples: how often the inputs of one output were met, of which `total` is the sum and `products` that of their
            products: (groups, inputs) and (groups, inputs, inputs).
        zeros: whether a linear met rows of zeros, such as padding.
        added: a dimension of extent 1 that what is met lacks.
    """

    def __init__(
        self,
        shape: Sequence[int],
        steps: Sequence[tuple[int, tuple[int, int], int]],
        groups: int,
        told: bool,
        coarse: bool = False,
        algebra: Algebra = NUMPY,
    ) -> None:
        self.shape, self.steps, self.groups, self.coarse = tuple(shape), steps, groups, coarse
        self._algebra = algebra
        self.size = int(np.prod(shape[1:]))
        self.told = told and self.size <= (LARGEST_OF_4_BITS if coarse else LARGEST)
        self.calls = self.samples = 0
        self.zeros = False
        self.added: int | None = None
        self.mean: Array | None = None
        self.total: Any = 0.0
        self.products: Any = 0.0

    def meet(self, x: Array) -> None:
        """Counts a batch."""
        x = x if self.added is None else np.expand_dims(x, self.added)
        self.calls += 1
        mean = self._mean(x)
        for axis, (found, first) in enumerate(
            zip(mean.shape, (mean if self.mean is None else self.mean).shape, strict=True)
        ):
            if found != first:
                mean = mean.take(np.arange(first) * found // first, axis)
        self.mean = mean if self.mean is None else self.mean + (mean - self.mean) / np.float32(self.calls)
        if len(self.shape) == 2 and self.calls <= _CALLS:
            self.zeros = self.zeros or not x.any(-1).all()
        if self.told and (self.calls <= _CALLS or (self.coarse and self.samples < _SAMPLES * self.size)):
            rows = self._rows(x, max(_SAMPLES * self.size, _LEAST)).astype(np.float64)
            self.samples += rows.shape[1]
            self.total = self.total + rows.sum(1)
            self.products = self.products + self._algebra.product(rows.swapaxes(1, 2), rows)

    def _mean(self, x: Array) -> Array:
        """The mean of a batch, in float32."""
        if len(self.shape) == 2:
            x = x.reshape(-1, x.shape[-1])
        if len(x) == 1:
            return x.copy()
        found = x.mean(0, keepdims=True, dtype=np.float64 if len(self.shape) == 2 else np.float32)
        return np.asarray(found, np.float32)

    def _rows(self, x: Array, most: int) -> Array:
        """The inputs of outputs that are spread evenly over a batch, at most `most`: (groups, samples, inputs)."""
        if len(self.shape) == 2:
            x = x.reshape(-1, x.shape[-1])
            return x[_spread(len(x), most)][None]
        axes = len(self.shape) - 2
        x = np.pad(x, ((0, 0), (0, 0), *(padding for _, padding, _ in self.steps)))
        spans = [apart * (kernel - 1) + 1 for kernel, (_, _, apart) in zip(self.shape[2:], self.steps, strict=True)]
        x = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, 2 + axes)))
        places = tuple(slice(None, None, step) for step, _, _ in self.steps)
        taps = tuple(slice(None, None, apart) for _, _, apart in self.steps)
        x = np.moveaxis(x[(slice(None), slice(None), *places, *taps)], 1, 1 + axes)
        outputs = x.shape[: 1 + axes]
        x = x[np.unravel_index(_spread(int(np.prod(outputs)), most), outputs)]
        return x.reshape(len(x), self.groups, self.size).swapaxes(0, 1)


def covariance_of(met: Sequence[Inputs]) -> Array | None:
    """Of the inputs of one output of layers that share a weight, (groups, inputs, inputs) in float64; None where too
    few were met."""
    met = [each for each in met if each.samples and each.groups == met[0].groups]
    samples = sum(each.samples for each in met)
    if not samples or samples < (1 if met[0].coarse else _SAMPLES) * met[0].size:
        return None
    mean, squares = (sum(sums) / samples for sums in zip(*((x.total, x.products) for x in met), strict=True))
    lost = _LOST * squares.diagonal(axis1=1, axis2=2).mean(1)
    added = lost[:, None, None] * np.eye(met[0].size)
    return np.asarray(squares - mean[:, :, None] * mean[:, None, :] + added)


def _spread(count: int, most: int) -> Array:
    """As many of `count` rows, spread evenly. Even steps may be those from a token or pixel of one input to that of the
    next, and meet no other; steps of the golden ratio, back at the start behind the end, have no such period (Weyl,
    1916)."""
    if count <= most:
        return np.arange(count)
    return np.asarray((np.arange(1, most + 1) * _GOLDEN % 1.0 * count).astype(np.int64))


def rounded(
    weight: Array,
    step: Array,
    ends: tuple[int, int],
    covariance: Array | None,
    algebra: Algebra = NUMPY,
) -> Array:
    """A weight on its steps: input after input, each error taken over by the inputs behind it, as far as they vary
    together; without a covariance each on the nearest.

    With the covariance as G Gᵀ, G upper triangular, the mean squared error of an output is the sum over the inputs i of
    (G_ii e_i + Σ_{j<i} G_ji e_j)², e being the errors of its weights. So each input is rounded where its square is
    least, given the errors before it. Spreading each error over the inputs behind it, by the inverse of the covariance,
    gives the same weights (Chen et al., The Geometry of LLM Quantization: GPTQ as Babai's Nearest Plane Algorithm,
    2025), and takes twice as long.

    Args:
        weight: outputs first, float64.
        step: broadcasts with it.
        ends: the smallest and the largest number of steps.
        covariance: of the inputs of one output, (groups, inputs, inputs) in float64.
        algebra: computes with matrices.

    Returns:
        The weight in float64, of the same shape.
    """
    if covariance is None:
        return np.asarray(np.clip(np.rint(weight / step), *ends) * step)
    groups, size = covariance.shape[:2]
    steps, given = (
        np.ascontiguousarray(x.reshape(groups, -1, size).swapaxes(1, 2))
        for x in (np.broadcast_to(step, weight.shape), weight)
    )
    shares = _shares(covariance, algebra.cholesky)
    found, errors = np.empty_like(given), np.empty_like(given)
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        wanted = given[:, first:last] + algebra.product(shares[:, first:last, :first], errors[:, :first])
        for i in range(first, last):
            here = wanted[:, i - first] + algebra.product(shares[:, i, None, first:i], errors[:, first:i])[:, 0]
            found[:, i] = np.clip(np.rint(here / steps[:, i]), *ends) * steps[:, i]
            errors[:, i] = given[:, i] - found[:, i]
    return np.asarray(found.swapaxes(1, 2).reshape(weight.shape))


def _shares(covariance: Array, cholesky: Callable[[Array], Array]) -> Array:
    """The share of the error of input j that input i takes over, (groups, i, j): G_ji / G_ii. G is Cholesky's factor of
    the covariance with the inputs in reverse order, in the order that they have."""
    size = covariance.shape[-1]
    variance = np.maximum(covariance.diagonal(axis1=1, axis2=2).mean(1), 1e-12)
    damped = covariance + DAMPING * variance[:, None, None] * np.eye(size)
    factor = cholesky(damped[:, ::-1, ::-1].copy())[:, ::-1, ::-1].swapaxes(1, 2)
    return np.ascontiguousarray(factor / factor.diagonal(axis1=1, axis2=2)[:, :, None])
