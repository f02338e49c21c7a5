"""Fourier transforms that are written as weighted sums: a convolution or linear whose weights are sines.

Their weights are no network's: they are exact numbers, and a spectrum has few large values beside many small ones. So
they are no part of the yardstick, and may stay in float32 where their rounding makes the noise of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node

_LEAST = 8
"""Frequencies of a transform: fewer rows may be sines by chance."""

_NEAR = 1e-4
"""By how much sines and cosines that a file stores may miss their sum of squares, relative to the largest."""


def transforms(graph: Graph, sums: Iterable[Node]) -> set[str]:
    """The weighted sums, by output, whose weights are the cosines and sines of a Fourier transform under a window."""
    return {node.output for node in sums if is_transform(graph.constants[node.inputs[1]])}


def is_transform(weight: Array) -> bool:
    """Whether a weight, outputs first, holds cosines and sines of several frequencies, under a window or without one.

    The squares of a frequency's cosine and sine add up to the window's square, which is the same for all frequencies.
    The sines may follow all cosines, or each its cosine.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    count = len(rows) // 2
    if len(rows) % 2 or count < _LEAST or rows.shape[1] < count:
        return False
    for cosines, sines in ((rows[:count], rows[count:]), (rows[::2], rows[1::2])):
        window = cosines**2 + sines**2
        apart = np.abs(window - window.mean(0)).max()
        if apart <= _NEAR * window.max() and _oscillates(cosines[1:]):
            return True
    return False


def _oscillates(rows: Array) -> bool:
    """Whether each row has values of both signs, as a cosine has."""
    return bool(((rows > 0).any(1) & (rows < 0).any(1)).all())
