"""The rows of a comparison: each stored value of an int8 graph, beside the float value that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.quantization.comparison import Layer
from q8ta_wgpu.quantization.noise_causes import measured
from q8ta_wgpu.quantization.parts import Judge

Values = Mapping[str, Array]
"""Arrays by the names of values."""


@dataclass
class Compared:
    """A float network and its int8 graph.

    Attributes:
        graph: of int8.
        stands: for each value of it that has a row, the float value that it stands for.
        origins: of results that were joined: which elements are of which part, and the parts' names.
        results: the results of the graph that are judged by their parts.
        inputs: the float values that are inputs.
        place: (float value, cause of its noise) -> what the user's program calls it, its module, its position.
    """

    graph: Graph
    stands: Mapping[str, str]
    origins: Mapping[str, Any]
    results: Container[str]
    inputs: Container[str]
    place: Callable[[str, str], tuple[str, str, str]]
    _made: dict[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._made = {node.output: node.inputs for node in self.graph.nodes}

    def rows(
        self, exact: Values, ours: Values, simulated: Values | None = None, weighed: Values | None = None
    ) -> tuple[Layer, ...]:
        """The rows of one call, or of several joined along dimension 0, the largest loss first.

        Args:
            exact: the values of the float network, by its names.
            ours: those of the graph, as it stores them.
            simulated: those of the graph as torch simulates them, real numbers.
            weighed: those of the float network if it rounded weights alone, by its names.
        """
        found: dict[str, Layer] = {}
        for name, value in self.stands.items():
            stored, real = self.graph.types[name], ours[name]
            if stored.q is not None:
                real = (real.astype(np.float64) - stored.q.zero) * stored.q.scale
            before = [found[each].snr for each in self._read(name, found)]
            judge = Judge([[exact[value]]], [self.origins.get(name)]) if name in self.results else None
            said = measured(
                exact[value],
                real,
                stored,
                before,
                judge,
                weighed.get(value) if weighed else None,
                simulated[name] if simulated else None,
                value in self.inputs,
            )
            called, module, source = self.place(value, said["cause"])
            dtype, output = stored.dtype.removesuffix("x4"), judge is not None
            found[name] = Layer(called, module, source, place=len(found), output=output, stored=dtype, **said)
        return tuple(sorted(found.values(), key=lambda layer: (-layer.lost, -layer.clipped)))

    def _read(self, name: str, rows: Container[str]) -> Iterator[str]:
        """The values with rows from which one is computed, perhaps by others that have none. Those that stand for the
        same float value are not meant."""
        waiting = list(self._made.get(name, ()))
        for each in waiting:
            if each in rows and self.stands[each] != self.stands[name]:
                yield each
            else:
                waiting += [source for source in self._made.get(each, ()) if source not in waiting]
