"""Writes the quantizes and dequantizes of a quantized graph into the torch graph that its float program was read from.

Comes in: a plain torch graph, the FloatProgram read from it, and the quantized Graph that `quantization/` made of that.
Goes out: the same torch graph with calls of torch's quantized_decomposed in it, and int8 weights as buffers. Each call
keeps its name, so that a later step finds what it is in the float graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import new_constant, set_constants
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.nodes import origins
from q8ta_wgpu.frontend.notes import IN_FLOAT, JOINED, MADE_OF, SHIFTS, SIZES, note, noted
from q8ta_wgpu.frontend.roundings import Integers, Roundings
from q8ta_wgpu.frontend.row_scales import round_rows
from q8ta_wgpu.ir.graph import INT16X4, Array, Graph, QParams
from q8ta_wgpu.quantization.float_program import FloatProgram

_qdq = torch.ops.quantized_decomposed
"""Operators that torch registers where the module _decomposed is imported."""


def write_qdq(module: GraphModule, program: FloatProgram, quantized: Graph, given: Collection[str] = ()) -> None:
    """Writes what is rounded in a quantized graph into the torch graph of its float program.

    Args:
        module: the torch graph, which is changed.
        program: read from it.
        quantized: its graph with quantizes and dequantizes, and with rounded weights.
        given: values that are rounded where they are computed, if they are. Calls that the graph lacks read them so.
    """
    roundings, writer = Roundings(program, quantized), _Writer(module)
    named = {node.name: node for node in module.graph.nodes}
    for (call, value), steps in roundings.edges.items():
        source = named[program.names[value]]
        read = writer.rounded(source, steps)
        named[call].replace_input_with(source, writer.rows(read) if (call, value) in roundings.rows else read)
    for (call, value), weight in roundings.weights.items():
        source = named[program.names[value]]
        named[call].replace_input_with(source, writer.weight(source, weight))
    for call, bias in roundings.biases.items():
        set_constants(module, named[call], {"bias": torch.from_numpy(bias)})
    for value, steps in roundings.results.items():
        source = named[program.names[value]]
        module.graph.output_node().replace_input_with(source, writer.rounded(source, steps))
    calls = {*program.calls.values()}
    first = {node.inputs[0]: node.output for node in quantized.nodes if node.op == "quantize"}
    for value in (value for value in first if value in given):
        source, q = named[program.names[value]], quantized.types[first[value]].q
        for user in [user for user in source.users if user.op == "call_function" and user.name not in calls]:
            if user.name in named and q is not None:  # no quantize that was written here
                user.replace_input_with(source, writer.rounded(source, (q,)))
    for call, shifts in roundings.shifts.items():
        note(named[call], SHIFTS, list(shifts))
    for output, known in quantized.values.items():
        if known.in_float and output in program.calls:
            note(named[program.calls[output]], IN_FLOAT, known.in_float)
    for call in program.joined:
        note(named[call], JOINED, True)
    fold(module, quantizing=True)


class _Writer:
    """Adds quantizes and dequantizes to a torch graph, each once."""

    def __init__(self, module: GraphModule) -> None:
        self._module, self._made = module, dict[Any, Node]()
        self._inputs = module.graph.find_nodes(op="placeholder")

    def rounded(self, source: Node, steps: Sequence[QParams]) -> Node:
        """A value rounded to each of these steps, one after the other. Each reader has a dequantize of its own: what
        is passed between the device and torch is then stored in integers."""
        if not steps:
            return source
        *before, q = steps
        how = (q.scale, q.zero, *q.range, torch.int16 if q.dtype == INT16X4 else torch.int8)
        graph, key = self._module.graph, (source, tuple(steps))
        if key not in self._made:
            read = self.rounded(source, before)
            with graph.inserting_after(self._inputs[-1] if read.op == "placeholder" else read):
                self._made[key] = graph.call_function(_qdq.quantize_per_tensor.default, (read, *how))
        with graph.inserting_after(self._made[key]):
            return graph.call_function(_qdq.dequantize_per_tensor.default, (self._made[key], *how))

    def rows(self, read: Node) -> Node:
        """Rounded values, each row of them rounded once more by a scale that the device chooses."""
        with self._module.graph.inserting_after(read):
            return self._module.graph.call_function(round_rows, (read, read.args[1]))

    def weight(self, source: Node, found: Integers) -> Node:
        """A parameter as integers with a scale for each index along an axis."""
        ints, key = found.values, (source, id(found.source))
        if key not in self._made:
            place = source.next
            arrays = (ints, found.scale, found.zero.astype(np.int64))
            names = (f"{source.target}_{hint}".replace(".", "_") for hint in (ints.dtype, "scale", "zero"))
            made = [self._constant(place, name, each) for name, each in zip(names, arrays, strict=True)]
            note(made[0], MADE_OF, origins(source))
            if "shape" in (said := noted(source, SIZES, {})):  # rounding keeps the shape
                note(made[0], SIZES, said)
            most = 127 if ints.dtype == np.int8 else 2**15 - 1
            dtype = torch.int8 if ints.dtype == np.int8 else torch.int16
            with self._module.graph.inserting_before(place):
                self._made[key] = self._module.graph.call_function(
                    _qdq.dequantize_per_channel.default, (*made, found.axis, -most, most, dtype)
                )
        return self._made[key]

    def _constant(self, before: Node, name: str, array: Array) -> Node:
        found, count = name, 0
        while hasattr(self._module, found):
            found, count = f"{name}_{count}", count + 1
        made = new_constant(self._module, before, found, torch.from_numpy(np.ascontiguousarray(array)))
        made.meta = {}
        return made
