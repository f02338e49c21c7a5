"""Weighted sums whose weights are exact numbers and not learned: Fourier transforms, and filter banks of their results.

A spectrum has few large values beside many small ones, and its logarithm tells the small ones apart. So these sums are
no part of the yardstick, and may stay in float32 where their rounding makes the noise of the outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.tuned import SEVERAL

_NEAR = 1e-4
"""By how much sines and cosines that a file stores may miss their sum of squares, relative to the largest."""

_FOLLOWS = (Arithmetic, Elementwise, Monotonic, Moves)
"""Kinds of operators that make powers or magnitudes of a spectrum, before a filter bank adds them up."""


def transforms(graph: Graph, sums: Iterable[Node]) -> set[str]:
    """The weighted sums, by output, whose weights are the cosines and sines of a Fourier transform under a window, in
    one weight or in those of two sums that follow each other and read the same value; and the sums without negative
    weights of what follows."""
    producers = {node.output: node for node in graph.nodes}
    weights = {node.output: graph.constants[node.inputs[1]] for node in sums}
    found = {output for output, weight in weights.items() if is_transform(weight)}
    alike: dict[object, list[str]] = {}
    for node in (node for node in graph.nodes if node.output in weights and node.output not in found):
        alike.setdefault((_source(producers, node), weights[node.output].shape), []).append(node.output)
    for first, second in (pair for names in alike.values() for pair in itertools.pairwise(names)):
        if is_transform(np.concatenate([weights[first], weights[second]])):
            found |= {first, second}
    return found | _banks(graph, weights, found)


def _source(producers: Mapping[str, Node], node: Node) -> str:
    """What a weighted sum reads, before views of it."""
    name = node.inputs[0]
    while name in producers and producers[name].op == "view":
        name = producers[name].inputs[0]
    return name


def _banks(graph: Graph, weights: Mapping[str, Array], spectra: Collection[str]) -> set[str]:
    """The sums, by output, without negative weights of what functions make of transforms' results: bands of a
    spectrum."""
    behind, found = {*spectra}, set[str]()
    for node in graph.nodes:
        if behind.isdisjoint(node.inputs) or node.output in spectra:
            continue
        if isinstance(OPS[node.op].int8, _FOLLOWS):
            behind.add(node.output)
        elif node.output in weights and weights[node.output].min(initial=0.0) >= 0:
            found.add(node.output)
    return found


def is_transform(weight: Array) -> bool:
    """Whether a weight, outputs first, holds cosines and sines of several frequencies, under a window or without one.

    The squares of a frequency's cosine and sine add up to the window's square, which is the same for all frequencies.
    The sines may follow all cosines, or each its cosine.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    count = len(rows) // 2
    if len(rows) % 2 or count < SEVERAL or rows.shape[1] < count:
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
