"""Merges linears of one row that read the same value, such as queries, keys and values of one token.

With one row, starting a dispatch takes most of its time, and the weights of one linear do not fill a GPU. Each result
becomes a slice of the merged one. Multipliers and offsets are per output, so all bytes stay the same.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import PART_ALIGNMENT
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.rewriter import Rewriter


def join_linears(graph: Graph, target: Target) -> None:
    """Merges linears of one row that are rounded to int8 in the same range. All but the last must have a multiple of
    PART_ALIGNMENT outputs, so that each result is aligned within the merged buffer.

    Zero points are all even or all odd: the offset adds their difference before rounding, which takes a tie to the even
    number."""
    groups = defaultdict[object, list[Node]](list)
    for node in graph.nodes:
        if node.op in ("q8ta_linear", "q16ta_linear") and _can_merge(graph, node):
            weight, q = graph.types[node.inputs[1]].shape[1:], graph.types[node.output].q
            odd = q is not None and q.zero % 2
            groups[node.inputs[0], node.inputs[5:], weight, str(node.attrs["epilogue"]), odd].append(node)
    rewriter = Rewriter(graph)
    for nodes in groups.values():
        outputs = [graph.types[node.output].shape[-1] for node in nodes]
        aligned = [node for node, n in zip(nodes, outputs, strict=True) if n % PART_ALIGNMENT == 0]
        merged = [*aligned, *(node for node in nodes if node not in aligned)][: len(aligned) + 1]
        size = sum(graph.constants[node.inputs[1]].nbytes for node in merged)
        if len(merged) > 1 and size <= target.binding_size // 2 and _offsets(graph, merged) is not None:
            _merge(rewriter, nodes[0], merged)
    rewriter.commit()


def _can_merge(graph: Graph, node: Node) -> bool:
    """Whether a linear has one row, is no output of the graph, and has no epilogue stages but rounding and a scale for
    its row."""
    after = node.attrs["epilogue"]
    plain = len(after.stages) == 1 + after.rows and isinstance(after.stages[-1], Requantize)
    return plain and math.prod(graph.types[node.output].shape[:-1]) == 1 and node.output not in graph.outputs


def _offsets(graph: Graph, nodes: Sequence[Node]) -> Array | None:
    """The offsets of all outputs, which also make up for different zero points; None where one is too large."""
    zeros = [q.zero for node in nodes if (q := graph.types[node.output].q) is not None]
    found = [
        graph.constants[node.inputs[3]].astype(np.int64) + ((zero - zeros[0]) << arithmetic.FRACTION)
        for node, zero in zip(nodes, zeros, strict=True)
    ]
    offsets = np.concatenate(found)
    return offsets.astype(np.int32) if np.abs(offsets).max() <= arithmetic.OFFSET_LIMIT else None


def _merge(rewriter: Rewriter, first: Node, nodes: Sequence[Node]) -> None:
    """Inserts the merged linear before the first one, and replaces each by a slice of its result."""
    graph, offsets = rewriter.graph, _offsets(rewriter.graph, nodes)
    assert offsets is not None
    types = [graph.types[node.output] for node in nodes]
    ends = list(itertools.accumulate(t.shape[-1] for t in types))
    zero = types[0].q.zero if types[0].q is not None else 0
    to = replace(types[0], shape=(*types[0].shape[:-1], ends[-1]), q=QParams(1.0, zero))
    arrays = [np.concatenate([graph.constants[node.inputs[i]] for node in nodes]) for i in (1, 2, 4)]
    arrays.insert(2, offsets)
    names = ("weight", "multiplier", "offset", "correction")
    constants = (graph.add_constant(f"{first.output}.joint.{n}", a) for n, a in zip(names, arrays, strict=True))
    inputs = (first.inputs[0], *constants, *first.inputs[5:])
    joint = rewriter.insert(first, first.op, inputs, first.attrs, to, f"{first.output}.joint")
    for node, t, end in zip(nodes, types, ends, strict=True):
        dim, start = len(t.shape) - 1, end - t.shape[-1]
        attrs = {"dim": dim, "start": start, "end": end, "step": 1, "extent": ends[-1]}
        sliced = rewriter.insert(
            node, "slice", (joint,), attrs, TensorType(t.shape, t.dtype, to.q), f"{node.output}.part"
        )
        rewriter.replace(node, Node("view", (sliced,), node.output, {"shape": [LEFT] * len(t.shape)}, node.source))
