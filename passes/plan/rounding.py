"""Where the values of a float graph are rounded, and how each is stored: what a quantizer needs to know of a network.

A value is rounded once for each tensor that is stored: where a region ends. Operators that move elements keep the scale
of what they read. Scores are rounded without their mask, slices of a sum each at a scale of its own, sums that norms
read in 16 bits (passes/plan/streams.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from q8ta_wgpu.ir.graph import BOOL, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import (
    Arithmetic,
    Elementwise,
    Int8,
    Monotonic,
    Moves,
    Normalization,
    PRelu,
    Product,
    Rowwise,
    WeightedSum,
)
from q8ta_wgpu.passes.plan.attention import context_of, scores_of
from q8ta_wgpu.passes.plan.calls import Call, Calls
from q8ta_wgpu.passes.plan.masked import masked_values
from q8ta_wgpu.passes.plan.masks import gather_masks
from q8ta_wgpu.passes.plan.regions import Region, Regions, kind_of, scales_operand
from q8ta_wgpu.passes.plan.slices import slices_of
from q8ta_wgpu.passes.plan.spellings import combined
from q8ta_wgpu.passes.plan.storage import INT8, INT16, SLICE, WHOLE, Rounding, Shared, Storage
from q8ta_wgpu.passes.plan.streams import widen
from q8ta_wgpu.passes.plan.widths import Widths
from q8ta_wgpu.passes.rewriter import Rewriter


def rounding_of(
    graph: Graph,
    observable: Collection[str],
    calls: Mapping[str, str],
    moving: Mapping[str, Int8],
    states: Collection[str] = (),
    streams: bool = True,
) -> Rounding:
    """Says how the values of a float graph are stored.

    Args:
        graph: without quantizes, but for those of bools; it is not changed.
        observable: names of the values that can be stored: floats that operators of the user's program give.
        calls: the operator of the user's program that each node is part of, by the node's output.
        moving: kinds of the calls that give elements of what they read, several nodes though they may be.
        states: calls that move nothing but first states of recurrent layers, which stay in float.
        streams: whether residual streams are stored in 16 bits.
    """
    planner = _Planner(graph, observable, calls, moving, states)
    found = planner.run()
    if streams:
        widen(planner.calls, found)
    return found


class _Planner:
    """Goes over the calls of a graph once, in order."""

    def __init__(
        self,
        graph: Graph,
        observable: Collection[str],
        calls: Mapping[str, str],
        moving: Mapping[str, Int8],
        states: Collection[str],
    ) -> None:
        self.graph, self.observable, self.states = graph.copy(), observable, states
        self.written = {node.output: each.written for each in combined(self.graph) for node in each.made}
        made = {name: calls[nodes[-1].output] for name, nodes in self.written.items()}
        self.call_of = {**made, **calls}
        self.rewriter = Rewriter(self.graph)
        self.regions = Regions(self.rewriter, observable)
        moves = {call: kind for call, kind in moving.items() if call not in made.values()}
        self.calls = Calls(self.graph, observable, self.call_of, moves)
        self._attention: dict[str, Sequence[str]] = {}
        self.found = Rounding()

    def run(self) -> Rounding:
        """The storage of all values."""
        for call in reversed(list(self.calls)):
            if isinstance(call.kind, Moves | Monotonic) and all(map(self._only_float_reads, call.outputs)):
                self.graph.in_float.update(node.output for node in call.nodes)
                self.found.in_float.append(call.name)
        self.regions.taken |= self.graph.in_float
        self.widths = Widths(self.regions, self.found.gives)
        self.masked = masked_values(self.graph)
        self._scored = {node.output for node, _ in self.masked.scores}
        inside = self._find_attention()
        self.regions.taken |= self.masked.values | inside
        for call in self.calls:
            if self.regions.taken.isdisjoint(node.output for node in call.nodes) and call.name not in self.states:
                self._plan(call)
        for node, name in self.masked.scores:
            if node.output not in inside:
                self._read(node, name)
        return self.found

    def _find_attention(self) -> set[str]:
        """Notes the operands that each attention's products read from without; returns what lies between them, which
        is not stored."""
        gathered = self.graph.copy()
        gather_masks(gathered)
        rewriter, inside = Rewriter(gathered), set[str]()
        for softmax in list(rewriter.nodes()):
            scores = scores_of(rewriter, softmax)
            context = None if scores is None else context_of(rewriter, softmax, scores)
            if scores is None or context is None or self._only_float_reads(context.output):
                continue
            between = self._between(softmax, scores.product) | {softmax.output}
            if self.regions.taken.isdisjoint({scores.product.output, context.output, *between}):
                self._attention[scores.product.output] = scores.product.inputs
                self._attention[context.output] = context.inputs[1:]
                product, call = self.call_of[scores.product.output], self.call_of[softmax.output]
                self.found.attention.append((product, call, self.call_of[context.output]))
                inside |= between
        return inside

    def _between(self, softmax: Node, product: Node) -> set[str]:
        """The nodes by which a softmax reads a product: those that it reads and that follow from the product."""
        behind = {product.output}
        for node in self.graph.nodes[self.regions.places[product.output] + 1 : self.regions.places[softmax.output]]:
            if not behind.isdisjoint(node.inputs):
                behind.add(node.output)
        waiting, found = [*self.graph.nodes[self.regions.places[softmax.output]].inputs], set[str]()
        while waiting:
            name = waiting.pop()
            if name in behind and name != product.output and name not in found:
                found.add(name)
                made = self.rewriter.producer(name)
                waiting += made.inputs if made is not None else ()
        return found

    def _plan(self, call: Call) -> None:
        """The storage of what one call reads and gives."""
        node, kind = call.main, call.kind
        if not call.outputs:
            if isinstance(kind, Arithmetic | Elementwise):
                self._read_operands(node)  # of a comparison what is compared, not the bools
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
                self._store(node, ())  # of what is masked a function reads floats
            case Arithmetic() | Product() | Elementwise():
                self._store(node, node.inputs)
                if isinstance(kind, Arithmetic):
                    self._read_finely(node, kind.fine)
            case Normalization() | PRelu():
                self._store(node, () if self.widths.takes_input(node) else node.inputs[:1])
            case Moves() | Monotonic() if self.masked.values.isdisjoint(call.inputs):
                if not self.widths.moves_input(call.outputs[0]):
                    self._share(call)

    def _only_float_reads(self, name: str) -> bool:
        """Whether all that reads a value was asked to stay in float."""
        name = self.regions.result(name)
        readers = self.rewriter.readers(name)
        skipped = all(r.output in self.graph.in_float for r in readers)
        return bool(readers) and name not in self.graph.outputs and skipped

    # --- what is read and given ---

    def _read(self, node: Node, name: str) -> None:
        """Lets the call of a node read a value as it is stored."""
        source, written = self.regions.source(name), self.written.get(node.output)
        for reader in written or [node]:  # of an operator written as several, all that read it
            if written is None or source in reader.inputs:
                self.found.reads[self.call_of[reader.output], source] = self._storage(source)

    def _read_operands(self, node: Node, names: Iterable[str] | None = None) -> None:
        """Lets a node read operands as they are stored, but for those that a product takes with their factor."""
        for name in node.inputs if names is None else names:
            source = self.regions.source(name)
            made = self.regions.maker(source)
            stored = source in self.observable or source in self.graph.constants
            if stored and not (made is not None and scales_operand(self.regions, made)):
                self._read(node, name)
        self.regions.taken.add(node.output)

    def _read_finely(self, node: Node, positions: Iterable[int]) -> None:
        """Lets a node read operands in 16 bits, however they are stored for others."""
        for source in (self.regions.source(node.inputs[i]) for i in positions):
            for reader in self.written.get(node.output, [node]):
                if (self.call_of[reader.output], source) in self.found.reads:
                    self.found.reads[self.call_of[reader.output], source] = INT16

    def _storage(self, name: str) -> Storage:
        """How a value is stored where something reads it: as it is given, or as what it is moved from is read."""
        if (given := self.found.gives.get(name)) in (SLICE, WHOLE, INT16):
            return given
        if name in self.widths.inputs:
            return INT16
        made = self.regions.maker(name)
        match made and kind_of(made):
            case Moves() | Monotonic() if made is not None:
                return self._storage(self.regions.source(made.inputs[0]))
            case Rowwise(_, QParams() as result):
                return result
        return INT8

    def _store(self, node: Node, operands: Iterable[str], result: Storage = INT8) -> None:
        """One region, rounded once, unless nothing asks for its result in int8."""
        region = self.regions.find(node)
        self._read_operands(node, () if self._becomes_integers(region) else operands)
        for joined in region.nodes[1:]:
            self.regions.taken.add(joined.output)
            if joined.op == "add" and region.addend is not None and region.addend in joined.inputs:
                self._read(joined, region.addend)
        end = self.regions.result(region.end)
        if not self._ends_in_float(region):
            if end in self.observable:
                whole = result == INT8 and any(map(_gives_whole, region.nodes))
                self.found.gives[end] = WHOLE if whole else INT16 if self.widths.needs_16(region) else result
            return
        waiting = self.rewriter.readers(end)
        integers = self._integers_follow(end)
        while waiting:
            reader = waiting.pop()
            if kind_of(reader) is not None:
                self.regions.taken.add(reader.output)
                waiting += self.rewriter.readers(reader.output) if integers else []

    def _ends_in_float(self, region: Region) -> bool:
        """Whether nothing asks for a region's result in int8: what only operators that stay in float read, functions
        of one value that are compared with numbers, functions and weighted sums that are made integers, and a weighted
        sum that no operator with an int8 form reads, but a pixel_shuffle at the end, which joins the sum."""
        if self._only_float_reads(region.end) or self._is_compared(region) or self._becomes_integers(region):
            return True
        if isinstance(kind_of(region.first), WeightedSum) and self._integers_follow(self.regions.result(region.end)):
            return True
        norms = all(isinstance(kind_of(node), Normalization) for node in region.nodes[1:])
        if not isinstance(kind_of(region.first), WeightedSum) or not norms:
            return False
        return all(self._stays_float(r) for r in self.rewriter.readers(self.regions.result(region.end)))

    def _becomes_integers(self, region: Region) -> bool:
        """Whether a region is functions of one value whose result is made integers, and nothing else."""
        elementwise = isinstance(kind_of(region.first), Elementwise)
        return elementwise and self._integers_follow(self.regions.result(region.end))

    def _integers_follow(self, name: str) -> bool:
        """Whether a value, functions of it and what is moved of those are made integers, and nothing else."""
        readers = self.rewriter.readers(name)
        return bool(readers) and name not in self.graph.outputs and all(map(self._makes_integers, readers))

    def _makes_integers(self, node: Node) -> bool:
        """Whether a node makes integers of what it reads, itself or by what follows it."""
        if node.op == "trunc" and node.output not in self.observable:
            return True
        kind = kind_of(node)
        passes = isinstance(kind, Elementwise) or (isinstance(kind, Moves) and len(node.inputs) == 1)
        return passes and self._integers_follow(self.regions.result(node.output))

    def _is_compared(self, region: Region) -> bool:
        """Whether a region is functions of one value whose result is compared with numbers alone, as one more
        function."""
        end = self.regions.result(region.end)
        readers = self.rewriter.readers(end)
        if not isinstance(kind_of(region.first), Elementwise) or not readers:
            return False
        return all(self._gives_bools(r) and self._reads_numbers(r, end) for r in readers)

    def _gives_bools(self, node: Node) -> bool:
        bools = self.rewriter.only_reader(node.output)
        stored = self.graph.types[bools.output].q if bools is not None and bools.op == "quantize" else None
        return isinstance(kind_of(node), Elementwise | Arithmetic) and stored == BOOL

    def _reads_numbers(self, node: Node, beside: str) -> bool:
        constants = self.graph.constants
        return all(n == beside or (n in constants and constants[n].size == 1) for n in node.inputs)

    def _stays_float(self, node: Node) -> bool:
        """Whether a reader does not ask for int8."""
        if kind_of(node) is None or node.output in self.masked.values - self._scored or self._makes_integers(node):
            return True
        return (
            node.op == "pixel_shuffle" and node.output in self.graph.outputs and not self.rewriter.readers(node.output)
        )

    def _store_slices(self, node: Node) -> None:
        """Slices of a sum are rounded each by itself, with one zero point, so that they are stored as one tensor."""
        ends = {self.regions.result(part.value) for part in slices_of(self.rewriter, node)}
        passed = self._passed(node, ends) if ends and ends.issubset(self.observable) else set()
        if not passed or passed & self.regions.taken:
            return
        self.found.gives.pop(self.regions.result(node.output), None)
        self.found.gives.update(dict.fromkeys(ends, SLICE))
        self.regions.taken |= passed

    def _passed(self, node: Node, ends: set[str]) -> set[str]:
        """What lies between a sum and its slices, these included."""
        waiting, found = [node.output], set[str]()
        while waiting:
            for reader in self.rewriter.readers(waiting.pop()):
                found.add(reader.output)
                waiting += [] if reader.output in ends else [reader.output]
        return found

    def _share(self, call: Call) -> None:
        """What moves elements keeps the scale of what it reads first."""
        if not call.inputs:
            return
        for place, name in enumerate(call.inputs):
            self.found.reads[call.name, name] = Shared(call.name) if place else self._storage(name)
        self.found.gives.update(dict.fromkeys(call.outputs, Shared(call.name)))
        self.regions.taken.update(node.output for node in call.nodes)


def _gives_whole(node: Node) -> bool:
    """Whether a node rounds to whole numbers."""
    kind = kind_of(node)
    return isinstance(kind, Elementwise) and kind.whole
