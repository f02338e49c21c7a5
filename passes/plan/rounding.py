"""Decides which values of a float graph are rounded, and how each is stored.

The result of each region is rounded once. Operators that move elements keep the scale of their operand. Scores are
rounded before a mask is added. Slices of a weighted sum have a scale each. Residual streams are stored in 16 bits
(passes/plan/streams.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from q8ta_wgpu.ir.graph import FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import (
    Arithmetic,
    Elementwise,
    Int8,
    Monotonic,
    Moves,
    Normalization,
    PRelu,
    Product,
    Recurrent,
    Rowwise,
    WeightedSum,
)
from q8ta_wgpu.passes.plan.joins import joined_values
from q8ta_wgpu.passes.plan.masked import masked_values
from q8ta_wgpu.passes.plan.masks import gather_masks
from q8ta_wgpu.passes.plan.match_attention import context_of, scores_of
from q8ta_wgpu.passes.plan.regions import Region, Regions, is_move, kind_of, scales_operand
from q8ta_wgpu.passes.plan.slices import slices_of
from q8ta_wgpu.passes.plan.storage import INT8, INT16, SLICE, WHOLE, Attention, Rounding, Shared, Storage
from q8ta_wgpu.passes.plan.streams import widen
from q8ta_wgpu.passes.plan.user_calls import UserCall, UserCalls
from q8ta_wgpu.passes.plan.widths import Widths
from q8ta_wgpu.passes.rewriter import Rewriter

_READ_IN_FLOAT, _WHOLE = "all that read it stay in float32", "it gives no floats but integers or bools"
"""Why a call that moves elements stays in float32."""

_MOVED = "it gives elements of an input as results, with which nothing is computed"
"""Why a call that only moves an input to results stays in float32."""

_JOINED = "what it joins is given as an output or taken apart again, and each part keeps a scale of its own"
"""Why a call that joins values stays in float32."""


def rounding_of(
    graph: Graph,
    observable: Collection[str],
    calls: Mapping[str, str],
    moving: Mapping[str, Int8],
    states: Collection[str] = (),
    streams: bool = True,
    kept: Collection[str] = (),
) -> Rounding:
    """Plans how the values of a float graph are stored.

    Args:
        graph: a graph whose only quantizes are those of bools, with one node for what programs write as several; it
            is not changed.
        observable: names of the values that can be stored: float results of the user's calls.
        calls: the user's call that each node is part of, by the node's output.
        moving: kinds of the calls that only move elements, though several nodes may do it.
        states: calls that only move initial states of recurrent layers; they stay in float32.
        streams: whether residual streams are stored in 16 bits.
        kept: names of the values that states keep from call to call.
    """
    planner = _Planner(graph, observable, calls, moving, states, kept)
    found = planner.run()
    if streams:
        widen(planner.calls, found)
    return found


class _Planner:
    """Plans the calls of a graph one by one, in execution order."""

    def __init__(
        self,
        graph: Graph,
        observable: Collection[str],
        calls: Mapping[str, str],
        moving: Mapping[str, Int8],
        states: Collection[str],
        kept: Collection[str],
    ) -> None:
        self.graph, self.observable, self.states, self.kept = graph.copy(), observable, states, {*kept}
        self.call_of = calls
        self.rewriter = Rewriter(self.graph)
        self.regions = Regions(self.rewriter, observable)
        self.calls = UserCalls(self.graph, observable, calls, moving)
        only_moved = {node.output for call in self.calls if isinstance(call.kind, Moves) for node in call.nodes}
        self.joined = joined_values(self.graph, only_moved, kept)
        self._joins = {self.call_of[name] for name in (*self.joined.values, *self.joined.pieces)}
        self._attention: dict[str, Sequence[str]] = {}
        self.found = Rounding(in_float=dict.fromkeys(sorted(self._joins), _JOINED))

    def run(self) -> Rounding:
        """Plans all values."""
        for call in reversed(list(self.calls)):
            if reason := self._why_moved_in_float(call):
                self.found.in_float[call.name] = reason
                self.graph.values.leave_in_float({node.output: reason for node in call.nodes})
        in_float = {node.output for node in self.graph.nodes if self.graph.values[node.output].in_float}
        self.regions.claimed |= in_float | self.joined.values | self.joined.pieces
        self.widths = Widths(self.regions, self.found.gives)
        self.masked = masked_values(self.graph)
        scored = {node.output for node, _ in self.masked.scores}
        joins = {name for name, call in self.call_of.items() if call in self._joins}
        self.read_float = (self.masked.values - scored) | joins
        inside = self._find_attention()
        self.regions.claimed |= self.masked.values | inside
        for call in self.calls:
            if self.regions.claimed.isdisjoint(node.output for node in call.nodes) and call.name not in self.states:
                self._plan(call)
        for node, name in self.masked.scores:
            if node.output not in inside:
                self._read(node, name)
        return self.found

    def _why_moved_in_float(self, call: UserCall) -> str:
        """Why a call that moves elements stays in float32, once the calls behind it are known; empty if it need not."""
        if not isinstance(call.kind, Moves | Monotonic):
            return ""
        if all(map(self._only_float_reads, call.outputs)):
            return _READ_IN_FLOAT if call.outputs else _WHOLE
        readers = [reader for name in call.outputs for reader in self.rewriter.readers(name)]
        in_float = all(self.graph.values[reader.output].in_float == _MOVED for reader in readers)
        if not in_float or not isinstance(call.kind, Moves) or not self.kept.isdisjoint(call.outputs):
            return ""
        return _MOVED if call.inputs and all(map(self._is_moved_input, call.inputs)) else ""

    def _only_float_reads(self, name: str) -> bool:
        """Whether all readers of a value were asked to stay in float32."""
        name = self.regions.result(name)
        readers = self.rewriter.readers(name)
        skipped = all(self.graph.values[r.output].in_float for r in readers)
        return bool(readers) and name not in self.graph.outputs and skipped

    def _ends_in_float(self, region: Region) -> bool:
        """Whether no reader needs a region's result in int8: only operators that were asked to stay in float32 read it,
        or it is a weighted sum that no operator with an int8 form reads."""
        if self._only_float_reads(region.end):
            return True
        norms = all(isinstance(kind_of(node), Normalization) for node in region.nodes[1:])
        if not isinstance(kind_of(region.first), WeightedSum) or not norms:
            return False
        return all(map(self._reads_float, self.rewriter.readers(self.regions.result(region.end))))

    def _before_integers(self, name: str) -> set[str] | None:
        """The values between a value and integers, if functions and moves lead to conversions to integers alone: then
        the integers are its int8 form, as in `(y * 255).round().clamp(0, 255).byte()`. None if not."""
        waiting, found = [name], set[str]()
        while waiting:
            last = waiting.pop()
            readers = self.rewriter.readers(last)
            if not readers or last in self.graph.outputs:
                return None
            for reader in readers:
                if reader.op == "trunc" and reader.output not in self.observable:
                    continue
                if not isinstance(kind_of(reader), Elementwise) and not is_move(reader):
                    return None
                found.add(reader.output)
                waiting.append(self.regions.result(reader.output))
        return found

    def _reads_float(self, node: Node) -> bool:
        """Whether a node needs no operand in int8. A pixel_shuffle that gives an output is fused into a sum."""
        last = node.output in self.graph.outputs and not self.rewriter.readers(node.output)
        return kind_of(node) is None or node.output in self.read_float or (node.op == "pixel_shuffle" and last)

    def _is_moved_input(self, name: str) -> bool:
        """Whether a value is an input of the network, moved or not."""
        while (made := self.rewriter.producer(name)) is not None and is_move(made):
            name = made.inputs[0]
        return name in self.graph.inputs

    def _find_attention(self) -> set[str]:
        """Finds attentions and the operands of their products; returns the values within, which are not stored."""
        gathered = self.graph.copy()
        gather_masks(gathered)
        rewriter, inside = Rewriter(gathered), set[str]()
        for softmax in list(rewriter.nodes()):
            scores = scores_of(rewriter, softmax)
            context = None if scores is None else context_of(rewriter, softmax, scores)
            if scores is None or context is None or self._only_float_reads(context.output):
                continue
            between = self._between(scores.product, softmax) | {softmax.output}
            if self.regions.claimed.isdisjoint({scores.product.output, context.output, *between}):
                self._attention[scores.product.output] = scores.product.inputs
                self._attention[context.output] = context.inputs[1:]
                found = Attention(scores.product.output, softmax.output, context.output, scores.numbers)
                self.found.attention.append(found)
                inside |= between
        return inside

    def _between(self, product: Node, softmax: Node) -> set[str]:
        """The values on the ways from a product to a softmax, both excluded."""
        dependent, positions = {product.output}, self.regions.positions
        for node in self.graph.nodes[positions[product.output] + 1 : positions[softmax.output]]:
            if not dependent.isdisjoint(node.inputs):
                dependent.add(node.output)
        waiting, found = [*self.graph.nodes[positions[softmax.output]].inputs], set[str]()
        while waiting:
            name = waiting.pop()
            if name in dependent and name != product.output and name not in found:
                found.add(name)
                producer = self.rewriter.producer(name)
                waiting += producer.inputs if producer is not None else ()
        return found

    def _plan(self, call: UserCall) -> None:
        """Plans the operands and results of one call."""
        node, kind = call.main, call.kind
        if not call.outputs:
            if isinstance(kind, Arithmetic | Elementwise):
                self._read_operands(node)  # a comparison: its operands are stored, its result is bools
            return
        if any(isinstance(kind_of(n), Recurrent) for n in call.nodes):
            self._store_recurrent(call)
            return
        match kind:
            case Product() if node.output in self._attention:
                operands = self._attention[node.output]
                self._store(node, operands) if len(operands) == 1 else self._read_operands(node)
            case WeightedSum():
                self._store(node, node.inputs[:1])
                self._store_slices(node)
            case Rowwise(_, result):
                masked = node.inputs[0] in self.masked.values
                self._store(node, () if masked else node.inputs[:1], result or INT8)
            case Elementwise() if scales_operand(self.regions, node):
                self._read_operands(node)
            case Elementwise() if node.inputs[0] in self.masked.values:
                self._store(node, ())  # masked scores are not rounded
            case Arithmetic() | Product() | Elementwise():
                self._store(node, node.inputs)
                if isinstance(kind, Arithmetic):
                    self._read_finely(node, kind.fine)
            case Normalization() | PRelu():
                self._store(node, () if self.widths.takes_input(node) else node.inputs[:1])
            case Moves() | Monotonic() if self.masked.values.isdisjoint(call.inputs):
                if not self.widths.moves_input(call.outputs[0]):
                    self._share(call)

    def _store_recurrent(self, call: UserCall) -> None:
        """Plans the input of a recurrent layer and the hidden states of all steps. Other states stay in float32."""
        self._read_operands(call.main, call.main.inputs[:1])
        steps = sum(self.graph.types[n.output].numel for n in call.nodes if n.attrs.get("result") == "sequence")
        whole = [name for name in call.outputs if self.graph.types[name].numel == steps]
        self.found.gives.update(dict.fromkeys(whole[:1], INT8))
        self.regions.claimed.update(node.output for node in call.nodes)

    # --- operands and results ---

    def _read(self, node: Node, name: str) -> None:
        """Plans that a node's call reads a value as it is stored."""
        source = self.regions.source(name)
        self.found.reads[self.call_of[node.output], source] = self._storage(source)

    def _read_operands(self, node: Node, names: Iterable[str] | None = None) -> None:
        """Plans that a node reads its operands, or those named, as they are stored. An operand `q * 0.125` of a product
        is not stored: the product reads `q`, and its rounding takes in the factor."""
        for name in node.inputs if names is None else names:
            source = self.regions.source(name)
            producer = self.regions.producer(source)
            number = source in self.graph.constants and self.graph.types[source].dtype == FLOAT32
            stored = source in self.observable or number
            if stored and not (producer is not None and scales_operand(self.regions, producer)):
                self._read(node, name)
        self.regions.claimed.add(node.output)

    def _read_finely(self, node: Node, positions: Iterable[int]) -> None:
        """Plans that a node reads the operands at these positions in 16 bits, however they are stored for others."""
        for edge in ((self.call_of[node.output], self.regions.source(node.inputs[i])) for i in positions):
            if edge in self.found.reads:
                self.found.reads[edge] = INT16

    def _storage(self, name: str) -> Storage:
        """How a value is stored for its readers: as it was planned, or as the value that it was moved from."""
        while True:
            if (planned := self.found.gives.get(name)) in (SLICE, WHOLE, INT16):
                return planned
            if name in self.joined.pieces:
                return INT8
            producer = self.regions.producer(name)
            kind = kind_of(producer) if producer is not None else None
            if producer is None or not isinstance(kind, Moves | Monotonic):
                return kind.result if isinstance(kind, Rowwise) and kind.result is not None else INT8
            name = self.regions.source(producer.inputs[0])

    def _store(self, node: Node, operands: Iterable[str], result: Storage = INT8) -> None:
        """Plans the region that begins with a node: its operands, and its result unless no reader needs it in int8."""
        region = self.regions.find(node)
        self._read_operands(node, operands)
        for fused in region.nodes[1:]:
            self.regions.claimed.add(fused.output)
            if fused.op == "add" and region.addend is not None and region.addend in fused.inputs:
                self._read(fused, region.addend)
        end = self.regions.result(region.end)
        before_integers = self._before_integers(end) if isinstance(kind_of(region.first), WeightedSum) else None
        if before_integers is not None:
            self.regions.claimed |= before_integers
        elif self._ends_in_float(region):
            self.regions.claimed |= {r.output for r in self.rewriter.readers(end) if kind_of(r) is not None}
        elif end in self.observable:
            whole = result == INT8 and any(map(_rounds_to_whole, region.nodes))
            self.found.gives[end] = WHOLE if whole else INT16 if self.widths.needs_16(region) else result

    def _store_slices(self, node: Node) -> None:
        """Plans a scale for each slice of a weighted sum; they share a zero point, so that one tensor stores them."""
        ends = {self.regions.result(s.value) for s in slices_of(self.rewriter, node)}
        moved = self._moved_until(node, ends) if ends and ends.issubset(self.observable) else set()
        if not moved or moved & self.regions.claimed:
            return
        self.found.gives.pop(self.regions.result(node.output), None)
        self.found.gives.update(dict.fromkeys(ends, SLICE))
        self.regions.claimed |= moved

    def _moved_until(self, node: Node, ends: set[str]) -> set[str]:
        """The values from a node's result to some ends, these included."""
        waiting, found = [node.output], set[str]()
        while waiting:
            for reader in self.rewriter.readers(waiting.pop()):
                found.add(reader.output)
                waiting += [] if reader.output in ends else [reader.output]
        return found

    def _share(self, call: UserCall) -> None:
        """Plans a call that moves elements: other operands and the results share the scale of its first operand."""
        if not call.inputs:
            return
        for position, name in enumerate(call.inputs):
            self.found.reads[call.name, name] = Shared(call.name) if position else self._storage(name)
        self.found.gives.update(dict.fromkeys(call.outputs, Shared(call.name)))
        self.regions.claimed.update(node.output for node in call.nodes)


def _rounds_to_whole(node: Node) -> bool:
    """Whether a node is a function whose results are whole numbers, such as `floor`."""
    kind = kind_of(node)
    return isinstance(kind, Elementwise) and kind.whole
