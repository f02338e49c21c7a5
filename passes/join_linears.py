"""Merges linears that read the same value, such as those of queries, keys and values.

A small linear does not fill a GPU, and starting a dispatch takes much of its time. Multipliers and offsets are per
output, so all bytes stay the same. With one row each result becomes a slice of the merged one. With several rows such a
slice is not contiguous, so only linears are merged whose results an attention alone reads, in place, or whose heads a
permute moves to the front, where each result is a slice of all heads.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import PART_ALIGNMENT
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.attention.sizes import STRIDES, sizes_of
from q8ta_wgpu.kernels.epilogue.stages import Requantize, RequantizeInt16
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.strided_attention import WORD


def join_linears(graph: Graph, target: Target) -> None:
    """Merges linears of one row that are rounded in the same range. All but the last must have a multiple of
    PART_ALIGNMENT bytes, so that each result is aligned within the merged buffer."""
    rewriter = Rewriter(graph)
    for nodes in _alike(graph, (node for node in graph.nodes if math.prod(graph.types[node.output].shape[:-1]) == 1)):
        aligned = [node for node in nodes if _aligned(graph.types[node.output], graph.types[node.output].shape[-1])]
        merged = [*aligned, *(node for node in nodes if node not in aligned)][: len(aligned) + 1]
        if _fit(graph, merged, target):
            _slice(rewriter, nodes[0], merged)
    rewriter.commit()


def join_projections(graph: Graph, target: Target) -> None:
    """Merges linears of several rows after `strided_attention`: those that a q8ta_attention reads through offsets and
    steps, and those whose heads are moved to the front."""
    rewriter, steps = Rewriter(graph), {node.output: step for step, node in enumerate(graph.nodes)}
    for node in rewriter.nodes():
        if node.op == "q8ta_attention" and node.attrs["sizes"]:
            operands = sorted(set(node.inputs[: len(STRIDES)]) & set(steps), key=steps.__getitem__)
            for nodes in _alike(graph, filter(None, map(rewriter.only_producer, operands))):
                if _fit(graph, nodes, target) and _in_rows(graph, node, nodes):
                    _read_joint(rewriter, node, nodes)
    for nodes in _alike(graph, rewriter.nodes(), lambda node: _heads(rewriter, node)):
        if _heads(rewriter, nodes[0]) and _fit(graph, nodes, target):
            _permute_joint(rewriter, nodes)
    rewriter.commit()


def _alike(
    graph: Graph, nodes: Iterable[Node], also: Callable[[Node], object] = lambda node: None
) -> Iterable[list[Node]]:
    """Groups of linears that can be merged: they differ only in their outputs, and `also` gives the same of them.

    Zero points are all even or all odd: the offset adds their difference before rounding, which takes a tie to the even
    number."""
    groups = defaultdict[object, list[Node]](list)
    for node in nodes:
        if _can_merge(graph, node):
            weight, q = graph.types[node.inputs[1]].shape[1:], graph.types[node.output].q
            odd = q is not None and q.zero % 2
            key = node.op, node.inputs[0], node.inputs[5:], weight, str(node.attrs["epilogue"]), odd, also(node)
            groups[key].append(node)
    return groups.values()


def _fit(graph: Graph, nodes: Sequence[Node], target: Target) -> bool:
    """Whether there are several, and the weights, offsets and results of the merged linear are not too large."""
    most, results = target.binding_size // 2, (graph.types[node.output] for node in nodes)
    weights = sum(graph.constants[node.inputs[1]].nbytes for node in nodes)
    sums = sum(_bytes(t, t.numel) for t in results)
    return len(nodes) > 1 and max(weights, sums) <= most and _offsets(graph, nodes) is not None


def _aligned(t: TensorType, elements: int) -> bool:
    """Whether so many elements of a type are whole parts of a buffer."""
    return _bytes(t, elements) % PART_ALIGNMENT == 0


def _bytes(t: TensorType, elements: int) -> int:
    """Bytes of so many elements of a type, without padding."""
    return elements * (2 if t.dtype == INT16X4 else 1)


def _can_merge(graph: Graph, node: Node) -> bool:
    """Whether a node is a linear, is no output of the graph, and has no epilogue stages but a scale for its row and
    rounding."""
    if node.op not in ("q8ta_linear", "q16ta_linear") or node.output in graph.outputs:
        return False
    after = node.attrs["epilogue"]
    return len(after.stages) == 1 + after.rows and isinstance(after.stages[-1], Requantize | RequantizeInt16)


def _offsets(graph: Graph, nodes: Sequence[Node]) -> Array | None:
    """The offsets of all outputs, which also make up for different zero points; None where one is too large."""
    zeros = [q.zero for node in nodes if (q := graph.types[node.output].q) is not None]
    shift = arithmetic.fraction(graph.types[nodes[0].output].dtype)
    found = [
        graph.constants[node.inputs[3]].astype(np.int64) + ((zero - zeros[0]) << shift)
        for node, zero in zip(nodes, zeros, strict=True)
    ]
    offsets = np.concatenate(found)
    return offsets.astype(np.int32) if np.abs(offsets).max() <= arithmetic.OFFSET_LIMIT else None


def _joint(rewriter: Rewriter, first: Node, nodes: Sequence[Node]) -> tuple[str, list[int]]:
    """Inserts the merged linear before the first one; returns its name, and the last output of each, plus one."""
    graph, offsets = rewriter.graph, _offsets(rewriter.graph, nodes)
    assert offsets is not None
    types = [graph.types[node.output] for node in nodes]
    ends = list(itertools.accumulate(t.shape[-1] for t in types))
    arrays = [np.concatenate([graph.constants[node.inputs[i]] for node in nodes]) for i in (1, 2, 4)]
    arrays.insert(2, offsets)
    names = ("weight", "multiplier", "offset", "correction")
    constants = (graph.add_constant(f"{first.output}.joint.{n}", a) for n, a in zip(names, arrays, strict=True))
    inputs = (first.inputs[0], *constants, *first.inputs[5:])
    return rewriter.insert(first, first.op, inputs, first.attrs, f"{first.output}.joint", _unscaled(types[0])), ends


def _unscaled(t: TensorType) -> QParams | None:
    """The quantization of a type with scale 1."""
    return None if t.q is None else replace(t.q, scale=1.0)


def _slice(rewriter: Rewriter, first: Node, nodes: Sequence[Node]) -> None:
    """Merges linears, and replaces each by a slice of the merged result."""
    joint, ends = _joint(rewriter, first, nodes)
    for node, end in zip(nodes, ends, strict=True):
        _replace(rewriter, node, joint, len(rewriter.graph.types[joint].shape) - 1, end)


def _replace(rewriter: Rewriter, node: Node, joint: str, dim: int, end: int) -> None:
    """Replaces a node by a slice of `joint` that ends before `end`, and a view that gives it its zero point."""
    graph = rewriter.graph
    t, whole = graph.types[node.output], graph.types[joint]
    attrs = {"dim": dim, "start": end - t.shape[dim], "end": end, "step": 1, "extent": whole.shape[dim]}
    sliced = rewriter.insert(node, "slice", (joint,), attrs, f"{node.output}.part")
    rewriter.replace(node, Node("view", (sliced,), node.output, {"shape": [LEFT] * len(t.shape)}, node.source))


def _in_rows(graph: Graph, attention: Node, nodes: Sequence[Node]) -> bool:
    """Whether all steps but whole rows stay within a row of each linear, and the results begin at whole words."""
    outputs = {node.output: graph.types[node.output].shape[-1] for node in nodes}
    types = [graph.types[name] for name in attention.inputs]
    for name, strides, shape in zip(attention.inputs, STRIDES, sizes_of(types, attention.attrs).operands, strict=False):
        if name not in outputs:
            continue
        (offset, *steps), n = attention.attrs[strides], outputs[name]
        last = offset % n + sum((count - 1) * (step % n) for count, step in zip(shape, steps, strict=False))
        if last + shape[-1] > n or n % WORD:
            return False
    return True


def _read_joint(rewriter: Rewriter, attention: Node, nodes: Sequence[Node]) -> None:
    """Merges linears, and lets the attention read each at its columns of the merged result. Views of all of it keep
    their zero points apart."""
    graph = rewriter.graph
    joint, ends = _joint(rewriter, nodes[0], nodes)
    inputs, attrs, total = list(attention.inputs), dict(attention.attrs), ends[-1]
    for node, end in zip(nodes, ends, strict=True):
        own = graph.types[node.output]
        n, kept = own.shape[-1], {"shape": [LEFT] * len(own.shape)}
        view = rewriter.insert(attention, "view", (joint,), kept, f"{node.output}.part", _unscaled(own))
        for position, strides in enumerate(STRIDES):
            if attention.inputs[position] == node.output:
                inputs[position] = view
                offset, *steps = (at // n * total + at % n for at in attrs[strides])
                attrs[strides] = (offset + end - n, *steps)
    rewriter.replace(attention, Node(attention.op, tuple(inputs), attention.output, attrs, attention.source))


def _heads(rewriter: Rewriter, node: Node) -> tuple[int, ...]:
    """The shape (1, rows, 1, elements of a head) of a linear whose result a view divides into heads, which a permute
    moves before the rows; () of another one, and where the slices of all heads would not be aligned."""
    types = rewriter.graph.types
    view = rewriter.only_reader(node.output)
    moved = rewriter.only_reader(view.output) if view is not None and view.op == "view" else None
    if moved is None or moved.op != "permute" or tuple(moved.attrs["dims"]) != (0, 2, 1, 3):
        return ()
    batch, heads, rows, size = types[moved.output].shape
    whole = (batch, rows, heads * size) == (1, *types[node.output].shape[-2:]) and _aligned(
        types[moved.output], rows * size
    )
    return (batch, rows, 1, size) if whole else ()


def _permute_joint(rewriter: Rewriter, nodes: Sequence[Node]) -> None:
    """Merges linears, permutes the merged result once, and replaces each permute by a slice of all heads."""
    _, rows, _, size = _heads(rewriter, nodes[0])
    moved = [rewriter.readers(rewriter.readers(node.output)[0].output)[0] for node in nodes]
    joint, ends = _joint(rewriter, nodes[0], nodes)
    heads, name = ends[-1] // size, joint
    for op, attrs in (("view", {"shape": (1, rows, heads, size)}), ("permute", {"dims": (0, 2, 1, 3)})):
        name = rewriter.insert(nodes[0], op, (name,), attrs, f"{joint}.{op}")
    for node, end in zip(moved, ends, strict=True):
        _replace(rewriter, node, name, 1, end // size)
