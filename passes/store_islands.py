"""Stores in 16 bits what a quantized file leaves in float32 between int8 values: biases, functions, norms, residuals.

Such files quantize what products read and give. `int8 -> add -> gelu -> int8` then goes through float32, whose last
bits differ between devices and flip roundings. The range of a sum or function of int8 values follows from theirs, so it
can be stored in 16 bits, in steps far below those of the int8 values around it. Every operator then has an int8 form.
"""

from __future__ import annotations

from q8ta_wgpu.ir.graph import FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.passes.plan.intervals import intervals
from q8ta_wgpu.passes.plan.recursion import readers_behind_moves
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.store import int16_within, store


def store_islands(graph: Graph) -> None:
    """Quantizes float values in 16 bits that follow from int8 values, have a known range, and lead to int8 values."""
    rewriter, known = Rewriter(graph), intervals(graph)
    leads = _leads_to_integers(graph)
    for node in rewriter.nodes():
        if node.output not in known or node.output not in leads:
            continue
        if _is_stored(rewriter, node):
            for reader in (each for each in rewriter.readers(node.output) if each.op != "quantize"):
                store(rewriter, node.output, reader, int16_within(*known[node.output]))
        for name in dict.fromkeys(node.inputs) if node.op in ("add", "mul") else ():
            if name in graph.constants and graph.constants[name].size > 1:
                node = store(rewriter, name, node, int16_within(*known[name]))
    rewriter.commit()


def _leads_to_integers(graph: Graph) -> set[str]:
    """The float values that become int8 values, and not the file's outputs, all the way through float operators."""
    found = {node.inputs[0] for node in graph.nodes if node.op == "quantize"}
    for node in reversed(graph.nodes):
        kind = kind_of(node)
        jumps = isinstance(kind, Elementwise) and (kind.jumps or kind.whole)  # whose operand must be exact
        if node.output in found and node.op not in ("quantize", "dequantize") and not jumps:
            found.update(node.inputs)
    return found


def _is_stored(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node's result is to be stored: it computes, and a reader does not round it at once."""
    kind, graph = kind_of(node), rewriter.graph
    if kind is None or not kind.gives_int16 or node.op in ("dequantize", "quantize") or is_move(node):
        return False
    if graph.types[node.output].dtype != FLOAT32 or node.output in graph.outputs:
        return False
    readers = list(readers_behind_moves(rewriter, node.output))
    if len(readers) == 1 and readers[0] is not None and isinstance(kind_of(readers[0]), Elementwise):
        readers = list(readers_behind_moves(rewriter, readers[0].output))  # a sum and its function are rounded once
    return any(reader is None or reader.op != "quantize" for reader in readers)
