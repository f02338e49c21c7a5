"""A float program as it is calibrated: what depends on no input is computed, what programs write as several operators
is one, and factors and terms of channels behind a convolution or linear are part of its weight and bias, so that its
result is rounded once."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Normalization, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.fold_constants import fold_constants
from q8ta_wgpu.passes.plan.spellings import combined
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.simplify import simplify
from q8ta_wgpu.quantization.float_program import FloatProgram


def prepare(program: FloatProgram) -> None:
    """Makes a float program one that is calibrated."""
    graph = program.graph
    simplify(graph, {name: call for name, call in program.calls.items() if name not in program.observable})
    for step in (fold_constants, _fold_lines):
        graph.prune()
        step(graph)
    graph.prune()
    name_operators(program)
    graph.prune()


def name_operators(program: FloatProgram) -> None:
    """Replaces nodes by operators that compute the same, so that a norm or activation is one, however it is written."""
    for each in combined(program.graph, channels=True):
        call = program.calls[each.replaced[-1].output]
        parts = [(program.calls[node.output], name) for node in each.replaced for name in node.inputs]
        program.parts[call] = tuple(dict.fromkeys((*program.parts.get(call, ()), *parts)))
        program.calls |= {node.output: call for node in each.made}
        program.moving.pop(call, None)
        program.paths[call] = tuple(dict.fromkeys(path for part, _ in parts for path in program.paths.get(part, ())))


def _fold_lines(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        found = _line(graph, node)
        before = rewriter.only_producer(found[0]) if found is not None else None
        if found is None or before is None or not isinstance(OPS[before.op].int8, WeightedSum):
            continue
        if any(graph.values[each.output].in_float for each in (before, node)):  # one of them may be skipped alone
            continue
        line = _by_output(graph, before, node, *found[1:])
        if line is None or any(name not in graph.constants for name in before.inputs[1:]):
            continue
        factor, term = line
        weight, bias = (graph.constants[name].astype(np.float64) for name in before.inputs[1:3])
        changed = weight * factor.reshape(-1, *[1] * (weight.ndim - 1)), bias * factor + term
        arrays = [array.astype(np.float32) for array in changed]
        if all(np.isfinite(array).all() for array in arrays):
            names = (graph.add_constant(f"{node.output}.{n}", a) for n, a in zip(("w", "b"), arrays, strict=True))
            rewriter.replace(node, Node(before.op, (before.inputs[0], *names), node.output, before.attrs, node.source))
    rewriter.commit()


def _line(graph: Graph, node: Node) -> tuple[str, Array, Array] | None:
    """What a node multiplies and adds to, and the factor and term, which broadcast with it; of a batch norm as it has
    them, along dimension 1. None of any other node."""
    kind, one, none = OPS[node.op].int8, np.ones(1), np.zeros(1)
    given = [graph.constants.get(name) for name in node.inputs]
    constants = [array.astype(np.float64) for array in given if array is not None]
    if isinstance(kind, Normalization) and given[0] is None and len(constants) == len(given) - 1:
        axes = (-1, *[1] * (len(graph.types[node.output].shape) - 2))
        factor, term = kind.affine(constants, node.attrs)
        return node.inputs[0], factor.reshape(axes), term.reshape(axes)
    if node.op == "affine":
        return node.inputs[0], one * node.attrs["factor"], one * node.attrs["term"]
    if node.op == "divide":
        return node.inputs[0], one / node.attrs["divisor"], none
    if node.op not in ("add", "mul") or len(constants) != 1:
        return None
    second = given[1] is not None
    x, (array,) = node.inputs[0 if second else 1], constants
    if node.op == "mul":
        return x, array, none
    alpha = node.attrs["alpha"]
    return (x, one, alpha * array) if second else (x, one * alpha, array)


def _by_output(graph: Graph, sums: Node, node: Node, factor: Array, term: Array) -> tuple[Array, Array] | None:
    """Factor and term of each output of a weighted sum; None where they differ within one."""
    shape, outputs = graph.types[sums.output].shape, graph.types[sums.inputs[2]].shape[0]
    axis = len(shape) - 1 if sums.op == "linear" else 1
    if graph.types[node.output].shape != shape:
        return None
    found = []
    for array in (factor, term):
        wide = array.reshape(*[1] * (len(shape) - array.ndim), *array.shape)
        if any(size != 1 for i, size in enumerate(wide.shape) if i != axis):
            return None
        found.append(np.broadcast_to(wide.reshape(-1), (outputs,)))
    return found[0], found[1]
