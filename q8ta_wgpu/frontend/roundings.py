"""What is rounded in a module, as its quantized graph says: by torch's names of calls and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams
from q8ta_wgpu.quantization.float_program import FloatProgram, Moved
from q8ta_wgpu.quantization.record import between
from q8ta_wgpu.quantization.stored import Edge

Chain = tuple[QParams, ...]
"""Roundings of one value, one after the other."""


@dataclass(frozen=True)
class Integers:
    """A weight on its steps, in torch's shape.

    Attributes:
        values: int8, or int16 where 4 bits have factors of groups.
        scale, zero: of each index along `axis`, float32 and int32.
        axis: of the outputs.
        source: the graph's constant that the values are, perhaps in another order. What has one source is alike.
    """

    values: Array
    scale: Array
    zero: Array
    axis: int
    source: Array

    @property
    def real(self) -> Array:
        """The float32 weight."""
        shape = [-1 if i == self.axis else 1 for i in range(self.values.ndim)]
        found = self.values.astype(np.float32)
        if self.zero.any():
            found -= self.zero.reshape(shape).astype(np.float32)
        found *= self.scale.reshape(shape)
        return found


@dataclass
class Roundings:
    """The roundings of a quantized graph.

    Args:
        program: the float program.
        graph: its graph with quantizes, as `Calibration.quantized` gives it.

    Attributes:
        edges: of what calls read, by call and value.
        rows: edges that are read through a rounding of each row, by a scale that the device chooses.
        shares: of edges that read shares of an attention: its bias, and whether its weights have 14 bits.
        results: of each output, by its value.
        weights: by call and constant.
        biases: of weighted sums, by call: float32 for each output.
        shifts: fraction bits that the states of recurrent layers have less, by call.
    """

    program: FloatProgram
    graph: Graph
    edges: dict[Edge, Chain] = field(default_factory=dict)
    rows: set[Edge] = field(default_factory=set)
    shares: dict[Edge, tuple[Array, bool]] = field(default_factory=dict)
    results: dict[str, Chain] = field(default_factory=dict)
    weights: dict[Edge, Integers] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    shifts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        exact = self.program.graph
        self._made = {node.output: node for node in self.graph.nodes}
        for node in exact.nodes:
            call, found = self.program.calls[node.output], self._made[node.output]
            for name, read in zip(node.inputs, found.inputs, strict=True):
                for reader in self.program.readers(call, name) if name != read else ():
                    self._note(reader, name, read)
            if found.attrs.get("shifts") != node.attrs.get("shifts"):
                self.shifts[call] = found.attrs["shifts"]
        pairs = zip(exact.outputs, self.graph.outputs, strict=True)
        self.results = {name: self._chain(name, read)[0] for name, read in pairs}

    def _note(self, call: str, name: str, read: str) -> None:
        """Notes how a call reads a value."""
        made = self._made.get(read)
        if made is None:
            self.biases[call] = self.graph.constants[read]
        elif made.op == "dequantize_weight":
            moved = self.program.moved.get(name, Moved(name))
            self.weights[call, moved.source] = self._integers(made, moved)
        elif made.op == "round_shares":
            self.shares[call, name] = self.graph.constants[made.inputs[1]], made.attrs["fine"]
        elif name in self.program.names:  # others are within a call
            self.edges[call, name], rows = self._chain(name, read)
            self.rows.update([(call, name)] if rows else [])

    def _chain(self, name: str, read: str) -> tuple[Chain, bool]:
        """The roundings from a value to what is read of it, and whether rows are rounded last."""
        nodes = [*between(self._made, name, read)]
        found = [q for n in nodes if n.op == "quantize" and (q := self.graph.types[n.output].q) is not None]
        return tuple(reversed(found)), any(node.op == "quantize_rows" for node in nodes)

    def _integers(self, made: Node, moved: Moved) -> Integers:
        values, scale, zero = (self.graph.constants[name] for name in made.inputs)
        if not moved.moves:
            return Integers(values, scale, zero, made.attrs["axis"], values)
        axis, places = moved.axis(values.shape), moved.shared(values.shape)
        first = np.unique(places, return_index=True)[1]
        return Integers(np.ascontiguousarray(moved.back(values)), scale[first], zero[first], axis, values)
