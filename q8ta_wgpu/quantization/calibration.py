"""A float program on its way to int8: what calibration meets of its values, and the quantized graph that follows."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping

import numpy as np

from q8ta_wgpu.errors import GraphError, InputError
from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.passes.plan.left_out import taken_elements
from q8ta_wgpu.passes.plan.rounding import rounding_of
from q8ta_wgpu.quantization.faults import ValueFaultError, rows_not_finite
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.insert import quantized
from q8ta_wgpu.quantization.planned import planned, tables_of
from q8ta_wgpu.quantization.ranges import Range, no_scale
from q8ta_wgpu.quantization.recurrent import LayerStates, layers_of
from q8ta_wgpu.quantization.steps import multiplies_rows
from q8ta_wgpu.quantization.stored import Choice, Shares, Stored, Table
from q8ta_wgpu.quantization.transforms import transforms
from q8ta_wgpu.quantization.tuned import SEVERAL
from q8ta_wgpu.quantization.weight_rounding import NUMPY, Algebra, Inputs
from q8ta_wgpu.quantization.weights import RoundedWeights, counted_inputs, is_sum
from q8ta_wgpu.quantization.zeros import Zeros

_NO_ARRAYS: Mapping[str, Array] = {}


class Calibration:
    """A float program on its way to int8.

    Args:
        program: whose graph becomes the quantized one. Values of it may stay in float32 (`in_float`).
        streams: whether residual streams are stored in 16 bits.
        fit_weights: whether weights are fitted to what their layers read, and biases corrected.
        group: inputs that share a factor, for weights in 4 bits; 0 for weights in 8 bits.
        by_rows: whether linears read rows that the device rounds by a scale for each.
        algebra: computes with matrices.

    Attributes:
        graph: the float graph.
        values: what is stored, and who reads it.
        sums: weighted sums with weights of the network that read rounded values, by output.
        weights: rounds weights.
        met_before: how many inputs were met before those that are simulated.
    """

    def __init__(
        self,
        program: FloatProgram,
        streams: bool,
        fit_weights: bool,
        *,
        group: int = 0,
        by_rows: bool = False,
        algebra: Algebra = NUMPY,
    ) -> None:
        self._streams, self._by_rows = streams, by_rows
        self._met, self._held_out = 0, dict[Stored, Range]()
        self.met_before = 0
        self.graph, self.calls, self.program = program.graph, program.calls, program
        kept = set(program.states.values())
        plan = rounding_of(self.graph, program.observable, program.calls, program.moving, program.begins, streams, kept)
        calls, why = self.calls, plan.in_float
        reasons = {n.output: why[calls[n.output]] for n in self.graph.nodes if calls[n.output] in why}
        self.graph.values.leave_in_float(reasons)
        self._taken = taken_elements(self.graph)
        read = {call for call, _ in plan.reads}
        sums = [n for n in self.graph.nodes if is_sum(self.graph, n) and self.calls[n.output] in read]
        self.sums = {node.output: node for node in sums}
        self._layers = layers_of(self.graph, self.calls, read)
        self.weights = RoundedWeights(program, {}, group, algebra)
        self._read_by = {n.output: self._read(n) for n in sums}
        fitted: dict[str, dict[str, Inputs]] = {}
        for node in (n for n in sums if fit_weights and self._fits(n)):
            fitted.setdefault(node.inputs[1], {})[node.output] = self._counted(node)
        self.weights.inputs, self._inputs = fitted, {k: v for each in fitted.values() for k, v in each.items()}
        known = {*transforms(self.graph, sums), *(name for name in program.transforms if name in self.sums)}
        tables = tables_of(program, self.weights.in_groups)
        self.values = planned(program, plan, known, self._taken, tables, algebra.norm)
        self._stored: dict[str, list[Stored]] = {}
        for stored in self._ranged:
            for name in stored.values:
                self._stored.setdefault(name, []).append(stored)
        if by_rows:
            self.values.by_rows |= {stored for stored in self.values.stored if multiplies_rows(self.values, stored)}

    def _fits(self, node: Node) -> bool:
        return node.output not in self.program.unfitted and self.calls[node.output] not in self._layers

    def _read(self, node: Node) -> tuple[str, int | None]:
        """The named value that a weighted sum reads, and the dimension of extent 1 that its call adds to it, if it adds
        one, as that of a sequence does: items may have other sizes than the graph."""
        name, names = node.inputs[0], self.program.names
        made = next((n for n in self.graph.nodes if n.output == name and n.op == "view"), None)
        if made is None or name in names or made.inputs[0] not in names:
            return name, None
        shape, before = (self.graph.types[n].shape for n in (name, made.inputs[0]))
        axes = [i for i in range(len(shape)) if shape[i] == 1 and (*shape[:i], *shape[i + 1 :]) == before]
        return (made.inputs[0], axes[-1]) if axes else (name, None)

    def _counted(self, node: Node) -> Inputs:
        coarse = self.weights.in_groups(self.graph.types[node.inputs[1]].shape)
        found = counted_inputs(self.graph, node, coarse, self.weights.algebra)
        found.added = self._read_by[node.output][1]
        return found

    def meet(self, inputs: Mapping[str, Array], item: int, known: Mapping[str, Array] | None = None) -> None:
        """Counts the values that the graph computes of one item's inputs, but for those that are known. Raises
        ValueFaultError where one is NaN or infinite."""
        readers: dict[str, list[Inputs | LayerStates]] = {}
        for output, layer in self._inputs.items():
            readers.setdefault(self._read_by[output][0], []).append(layer)
        for states in self._layers.values():
            for name in states.wanted:
                readers.setdefault(name, []).append(states)

        def met(name: str, array: Array) -> None:
            stored = self._stored.get(name, ())
            if (stored or name in readers) and not np.isfinite(array).all():
                raise ValueFaultError(name, item, rows_not_finite(array))
            for one in stored:
                one.met.meet(array)
                if len(one.values) > 1:
                    one.meet(name, float(array.min(initial=0.0)), float(array.max(initial=0.0)))
            for each in readers.get(name, ()):
                each.meet(array) if isinstance(each, Inputs) else each.meet(name, array)

        zeros = Zeros(self._taken, self.graph.constants, met)
        for name, array in {**(_NO_ARRAYS if self._met else self.graph.constants), **inputs}.items():
            zeros.meet(name, array)
        known = _NO_ARRAYS if known is None else known
        needed = self._needed(known)
        made = {node.output for node in needed.nodes} | self.graph.constants.keys() | inputs.keys()
        read = self.wanted.union(*(node.inputs for node in needed.nodes)) - made
        given = {name: known[name] for name in self.graph.types if name in read and name in known}
        for name, array in given.items():  # of calls that no node computes
            zeros.meet(name, array)
        try:
            run(needed, {**inputs, **given}, met=zeros.meet, known=known)
        except GraphError as error:
            raise InputError(
                f"calibration item {item} has sizes that not every operator takes, {error}: give items of the example's"
            ) from error
        for stored in self._ranged:
            stored.met.peaks.end_item()
        self._met += min((len(x) for x in inputs.values() if x.ndim), default=1)

    def hold_out(self) -> None:
        """Notes the ranges that calibration met so far: those of the items that are simulated follow, and how well
        ranges suit inputs that they did not meet is what counts. Ranges of few inputs are exceeded by others in any
        case."""
        self.met_before = self._met
        if self._met >= SEVERAL:
            self._held_out = {stored: copy.deepcopy(stored.met) for stored in self._ranged}

    @property
    def is_held_out(self) -> bool:
        """Whether ranges without those of the items that are simulated are known."""
        return bool(self._held_out)

    @contextlib.contextmanager
    def held_out(self) -> Iterator[None]:
        """Uses the ranges that were noted."""
        ranges = {stored: stored.met for stored in self.values.stored}
        for stored in ranges:
            stored.use(self._held_out.get(stored, stored.met))
        try:
            yield
        finally:
            for stored, met in ranges.items():
                stored.use(met)

    def check_weights(self) -> None:
        """Raises ValueFaultError where a weight or bias holds NaN or infinities."""
        for node in self.sums.values():
            if not all(np.isfinite(self.graph.constants[name]).all() for name in node.inputs[1:3]):
                said = "has a weight or bias with NaN or an infinity: train again, or load other values"
                raise ValueFaultError(node.output, None, said)

    def check_ranges(self) -> None:
        """Raises ValueFaultError where calibration met a value for whose range float32 has no scale."""
        for stored in self._ranged:
            if said := no_scale(stored.met.low, stored.met.high):
                raise ValueFaultError(stored.values[0], None, said)

    @property
    def _ranged(self) -> list[Stored]:
        """What has a range."""
        return [stored for stored in self.values.stored if not isinstance(stored, Table | Shares)]

    @property
    def wanted(self) -> set[str]:
        """The values that are counted."""
        read = {self._read_by[output][0] for output in self._inputs}
        return {*self._stored, *read, *(name for each in self._layers.values() for name in each.wanted)}

    def _needed(self, known: Mapping[str, Array]) -> Graph:
        """The graph of what is counted and of what it is computed from."""
        graph, needed = self.graph.copy(), self.wanted.union(*self._taken.values())
        for node in reversed(graph.nodes):
            if node.output in needed and node.output not in known:
                needed.update(node.inputs)
        graph.nodes, graph.outputs = [node for node in graph.nodes if node.output in needed], []
        return graph

    def quantized(
        self, chosen: Choice | None = None, sums: Mapping[str, Node] | None = None, runs: bool = False
    ) -> Graph:
        """The graph with quantizes and dequantizes, and weights in int8, in the widths of the plan or chosen others. Of
        `sums`, if they are passed, only these have their weights rounded. `runs`: whether it is run as it is."""
        shifts = {call: states.shifts for call, states in self._layers.items()}
        own = self.sums if sums is None else sums
        return quantized(self.values, chosen or {}, own, self.weights, shifts, runs=runs)

    def quantized_like(self, program: FloatProgram, chosen: Choice | None = None) -> Graph:
        """The graph of the same program at other sizes of its inputs, quantized with the same numbers."""
        group = self.weights.group
        other = Calibration(program, self._streams, fit_weights=False, group=group, by_rows=self._by_rows)
        own = {_key(stored): stored for stored in self.values.stored}
        same = {_key(stored): stored for stored in other.values.stored}
        for key in own.keys() & same.keys():
            same[key].met, same[key].own = own[key].met, own[key].own
        for call, states in other._layers.items():
            own_states = self._layers[call]
            states.hidden, states.state, states.steps = own_states.hidden, own_states.state, own_states.steps
        other.weights.take(self.weights)
        found = {(same[_key(s)], role): w for (s, role), w in (chosen or {}).items() if _key(s) in same}
        return other.quantized(found)


def _key(stored: Stored) -> tuple[object, ...]:
    """What tells values that are stored from all others, at all sizes of inputs."""
    return type(stored), stored.values[0], stored.storage
