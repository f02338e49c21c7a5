"""Steps: a value that may be stored in more than 8 bits for those who read it in one role, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.ir.int8 import Product, Recurrent, Rowwise, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.lib.thresholds import MACS_A_BYTE
from q8ta_wgpu.quantization.stored import Choice, Reading, Shares, Stored, StoredValues, Table, Width, is_moved
from q8ta_wgpu.quantization.tuned import NOTHING

_MACS_A_BYTE = MACS_A_BYTE["tiled"]
"""Multiply-adds that take as long as moving a byte."""

_PARTS = 8
"""By what factor an attention costs more if its operands are wide: it becomes three operators with several products
each."""

_LITTLE = 2.0**15
"""Bytes that move in less time than a dispatch takes to begin. Nobody notices that time either."""


@dataclass(frozen=True)
class Step:
    """A value that may be stored in more than 8 bits.

    Attributes:
        reading: the value and the role in which it is read.
        width: its width instead of the plan's.
        cost: in bytes moved.
        rule: the name of the rule that asked for it; empty where its noise did.
        reason: why, as the report says it.
        noise: the noise to signal that its rounding to 8 bits makes in the outputs; 0 where it was not measured.
        gain: by how much the step lowers that noise.
    """

    reading: Reading
    width: Width
    cost: float
    rule: str = ""
    reason: str = ""
    noise: float = 0.0
    gain: float = math.inf


def widths(steps: Iterable[Step]) -> Choice:
    """The width of each value for each role by these steps; the last one of a reading counts."""
    return {step.reading: step.width for step in steps}


def reads_int16(node: Node) -> bool:
    """Whether an operator has a kernel that reads int16."""
    int8 = OPS[node.op].int8
    return int8 is not None and not isinstance(int8, Recurrent) and int8.reads_int16


def multiplies_rows(values: StoredValues, stored: Stored) -> bool:
    """Whether all weighted sums that read values are linears with weights of the network, of which the device may round
    each row by a scale of its own."""
    readers = values.readers_of(stored, "sums")
    return bool(readers) and all(_reads_rows(values, node) for node in readers)


def _reads_rows(values: StoredValues, node: Node) -> bool:
    int8 = OPS[node.op].int8
    constant = node.inputs[1] in values.graph.constants if len(node.inputs) > 1 else False
    narrow = constant and not values.graph.values[node.output].in_float
    return isinstance(int8, WeightedSum) and int8.reads_rows and narrow and not _is_in_layer(values, node)


def _is_in_layer(values: StoredValues, node: Node) -> bool:
    """Whether a node projects the input of a recurrent layer."""
    return any(isinstance(OPS[n.op].int8, Recurrent) for n in values.readers.get(node.output, ()))


class Costs:
    """What widening values costs, in bytes moved.

    Args:
        values: what a graph stores.
    """

    def __init__(self, values: StoredValues) -> None:
        self.values = values
        self.traffic = sum(self._traffic(stored) for stored in values.stored if not isinstance(stored, Shares | Table))

    @property
    def unnoticed(self) -> float:
        """A cost that nobody notices."""
        return max(NOTHING * self.traffic, _LITTLE)

    def of(self, reading: Reading, width: Width) -> float:
        """The cost of a width for a reading."""
        stored, role = reading
        if isinstance(stored, Table):  # what a file grows by
            return float(self.size(stored.values[0]))
        readers = self.values.readers_of(stored, role)
        names = dict.fromkeys(name for _, name in stored.edges(role))
        size = float(sum(self.size(name) for name in names))
        if isinstance(stored, Shares):
            return size + sum(map(self.macs, readers)) / _MACS_A_BYTE
        exact = width == "int16" and all(map(reads_int16, readers))
        moved = size * (1 + len(readers)) * (1 if exact else 4)
        macs = sum(self.macs(node) * (_PARTS if self._attends(node) else 1) for node in readers)
        return max(1.0, moved + macs / _MACS_A_BYTE * (1 if width == "int16" else 4))

    def size(self, name: str) -> int:
        """The number of elements of a value."""
        return self.values.graph.types[name].numel

    def macs(self, node: Node) -> int:
        """The multiply-adds of a node."""
        return OPS[node.op].macs(self.values.graph.call(node))

    def _attends(self, node: Node) -> bool:
        """Whether a node is a product that a softmax reads or feeds: of an attention that is one operator."""
        if not isinstance(OPS[node.op].int8, Product):
            return False
        before = [self.values.producers[name] for name in node.inputs if name in self.values.producers]
        around = (*before, *self.values.readers.get(node.output, ()))
        return any(isinstance(int8 := OPS[n.op].int8, Rowwise) and int8.masked for n in around)

    def _traffic(self, stored: Stored) -> float:
        """The cost of a value in int8, with the multiply-adds of its readers."""
        readers = [(name, node) for call, name in stored.roles for node in self.values.nodes((call, name))]
        macs = sum(self.macs(node) for _, node in readers)
        return sum(float(self.size(name)) for name, _ in readers) + macs / _MACS_A_BYTE

    def is_exact(self, reading: Reading) -> bool:
        """Whether int16 leaves nothing to float32, in which devices differ in the last bit. If one slice of a weighted
        sum is wider than the others, the sum is computed in float32."""
        stored, role = reading
        wide = all(map(reads_int16, self.values.readers_of(stored, role)))
        return stored.width == "int8" and wide and not self.sliced(stored)

    def sliced(self, stored: Stored) -> set[str]:
        """The weighted sums, by output, of whose results values are slices that are stored each by itself."""
        found = set()
        for name in stored.values:
            made = moved_from(self.values, name)
            if made is not None and isinstance(OPS[made.op].int8, WeightedSum):
                found.update([made.output] if self.size(name) < self.size(made.output) else [])
        return found


def moved_from(values: StoredValues, name: str) -> Node | None:
    """The node whose result a value is, before it was moved or a part of it taken; None for inputs and constants."""
    node = values.producers.get(name)
    while node is not None and is_moved(node):
        node = values.producers.get(node.inputs[0])
    return node
