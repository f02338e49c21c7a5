"""Resizes a graph for inputs of other sizes: runs the shape rules again, and refuses numbers made for the old sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.size import BATCH
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.dynamic import at


def resized(graph: Graph, shapes: Sequence[Shape]) -> Graph:
    """A copy of a graph for inputs of these shapes, in order, with ranks as before. States keep their shapes.

    Raises GraphError if a node does not take the shapes, the graph contains numbers computed from a size that changes,
    or a state would be written in another shape.
    """
    shapes = [*shapes, *(graph.types[state.read].shape for state in graph.states)]
    point = graph.dynamic.point(dict(zip(graph.inputs, shapes, strict=True)))
    if isinstance(point, str):
        raise GraphError(point)
    found = at(graph, point) if point else graph.copy()
    for name, shape in zip(graph.inputs, shapes, strict=True):
        found.types[name] = replace(graph.types[name], shape=tuple(shape))
    for name, axis, step, why in ((n, a, *said) for n in graph.inputs for a, said in graph.values[n].fixed.items()):
        old, new = (g.types[name].shape[axis] for g in (graph, found))
        if new != old and (not step or (new - old) % step):
            rule = f"be {old}" if not step else f"differ from {old} by a multiple of {step}"
            raise GraphError(f"dimension {axis} of input {name} must {rule}, found {new}: {why}{_way_out(graph)}")
    for node in found.nodes:
        try:
            shape, _ = OPS[node.op].check(tuple(found.types[name] for name in node.inputs), node.attrs)
            found.types[node.output] = replace(graph.types[node.output], shape=shape)
            _check_repeated(graph, found, node)
        except GraphError as error:
            raise GraphError(f"{node.output}{node.origin}: {error}{_way_out(graph)}") from None
    for state in found.states:
        before, after = found.types[state.read].shape, found.types[state.written].shape
        if before != after:
            raise GraphError(
                f"it keeps {state.name} of shape {before} from call to call, and would write {after} there"
                + _way_out(graph)
            )
    return found


def _way_out(graph: Graph) -> str:
    """The part of a message that says how to get a model for other sizes; empty if the graph has dynamic sizes."""
    if graph.dynamic.symbols.keys() - {BATCH}:
        return ""
    return (
        "; if the module itself takes such inputs, quantize it with example_inputs of that size, or for any size with "
        "dynamic_shapes (an ONNX file with ranges in sizes)"
    )


def _check_repeated(graph: Graph, found: Graph, node: Node) -> None:
    """Raises GraphError if an operand now has extent 1 and would be broadcast to another operand, but before both had
    the same extent: the other one is probably a constant made for the old size."""
    operands = [graph.types[name].shape for name in node.inputs]
    if len(operands) < 2 or graph.types[node.output].shape != _broadcast(operands):
        return
    for name in node.inputs:
        pairs = zip(*(g.types[n].shape[::-1] for n in (name, node.output) for g in (graph, found)), strict=False)
        for axis, (old, new, whole, result) in enumerate(pairs, 1):
            if old == whole != 1 and new == 1 != result:
                raise GraphError(f"an operand has {result} elements in dimension -{axis}, made for {old}; {name} has 1")


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return None
