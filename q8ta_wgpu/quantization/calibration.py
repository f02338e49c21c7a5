"""A float program on its way to int8: what calibration meets of its values, and the quantized graph that follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.passes.plan.left_out import taken_elements
from q8ta_wgpu.passes.plan.rounding import rounding_of
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.insert import quantized
from q8ta_wgpu.quantization.places import Place, Places
from q8ta_wgpu.quantization.planned import planned
from q8ta_wgpu.quantization.ranges import Range, too_small
from q8ta_wgpu.quantization.stored import Choice
from q8ta_wgpu.quantization.transforms import transforms
from q8ta_wgpu.quantization.weight_rounding import Inputs
from q8ta_wgpu.quantization.weights import RoundedWeights, counted_inputs
from q8ta_wgpu.quantization.zeros import Zeros


class Calibration:
    """A float program on its way to int8.

    Args:
        program: whose graph becomes the quantized one. Values of it may stay in float32 (`in_float`).
        streams: whether residual streams are stored in 16 bits.
        fit_weights: whether weights are fitted to what their layers read, and biases corrected.

    Attributes:
        graph: the float graph.
        values: what is stored, and who reads it.
        sums: weighted sums with weights of the network that read rounded values, by output.
        weights: rounds the weights of these sums.
    """

    def __init__(self, program: FloatProgram, streams: bool, fit_weights: bool) -> None:
        self._streams = streams
        self.graph, self.calls, self.program = program.graph, program.calls, program
        plan = rounding_of(self.graph, program.observable, program.calls, program.moving, streams=streams)
        calls, kept = self.calls, plan.in_float
        reasons = {n.output: kept[calls[n.output]] for n in self.graph.nodes if calls[n.output] in kept}
        self.graph.values.leave_in_float(reasons)
        self._places, self._taken = Places(plan), taken_elements(self.graph)
        self._ranges: dict[Place, Range] = {root: Range() for root in self._places.roots}
        read = {call for call, _ in plan.reads}
        sums = [n for n in self.graph.nodes if self._has_weight(n) and self.calls[n.output] in read]
        self.sums = {node.output: node for node in sums}
        fitted = [n for n in sums if fit_weights and n.output not in program.unfitted]
        self._inputs = {n.output: counted_inputs(self.graph, n) for n in fitted}
        self.weights = RoundedWeights(self.graph, self._inputs, program.moved)
        known = transforms(self.graph, sums)
        self.values = planned(self.graph, self.calls, self._places, self._ranges, known, self._taken)

    def _has_weight(self, node: Node) -> bool:
        constant = all(name in self.graph.constants for name in node.inputs[1:3])
        return isinstance(OPS[node.op].int8, WeightedSum) and constant

    def meet(self, inputs: Mapping[str, Array], item: int, known: Mapping[str, Array] | None = None) -> None:
        """Counts the values that the graph computes of one item's inputs, but for those that are known. Raises
        InputError where one is NaN or infinite."""
        readers: dict[str, list[Inputs]] = {}
        for output, inputs_met in self._inputs.items():
            readers.setdefault(self.sums[output].inputs[0], []).append(inputs_met)

        def met(name: str, array: Array) -> None:
            ranges = self._places.of_value.get(name, ())
            if (ranges or name in readers) and not np.isfinite(array).all():
                raise InputError(
                    f"item {item} of the calibration leads to NaN or an infinity at {name}: clean the calibration data"
                )
            for root in ranges:
                self._ranges[root].meet(array)
            for layer in readers.get(name, ()):
                layer.meet(array)

        zeros = Zeros(self._taken, self.graph.constants, met)
        for name, array in {**({} if item else self.graph.constants), **inputs}.items():
            zeros.meet(name, array)
        known = known or {}
        run(self._needed(known), inputs, met=zeros.meet, known=known)
        for each in self._ranges.values():
            each.peaks.end_item()

    def check_ranges(self) -> None:
        """Raises InputError where calibration met a value so close to zero that float32 has no scale for it."""
        for (_, name), met in self._ranges.items():
            if said := too_small(met.low, met.high):
                raise InputError(f"the value {name} {said}")

    @property
    def wanted(self) -> set[str]:
        """The values that are counted."""
        return {*self._places.of_value, *(self.sums[output].inputs[0] for output in self._inputs)}

    def _needed(self, known: Collection[str]) -> Graph:
        """The graph of what is counted and of what it is computed from."""
        graph, needed = self.graph.copy(), self.wanted.union(*self._taken.values())
        for node in reversed(graph.nodes):
            if node.output in needed and node.output not in known:
                needed.update(node.inputs)
        graph.nodes, graph.outputs = [node for node in graph.nodes if node.output in needed], []
        return graph

    def quantized(self, chosen: Choice | None = None, sums: Mapping[str, Node] | None = None) -> Graph:
        """The graph with quantizes and dequantizes, and weights in int8, in the widths of the plan or chosen others. Of
        `sums`, if they are passed, only these have their weights rounded."""
        return quantized(self.values, chosen or {}, self.sums if sums is None else sums, self.weights)

    def quantized_like(self, program: FloatProgram, chosen: Choice | None = None) -> Graph:
        """The graph of the same program at other sizes of its inputs, quantized with the same numbers."""
        other = Calibration(program, self._streams, fit_weights=False)
        for stored in other.values.stored:
            stored.met = self._ranges.get(stored.place, stored.met)
        other.weights = RoundedWeights(other.graph, {}, program.moved, self.weights.found)
        same = {stored.place: stored for stored in other.values.stored}
        found = {(same[s.place], role): w for (s, role), w in (chosen or {}).items() if s.place in same}
        return other.quantized(found)
