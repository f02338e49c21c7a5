"""Makes q8ta_matmul -> q8ta_softmax -> q8ta_matmul one q8ta_attention, which reads its operands where moves found them.

A view, a permute or a slice is where elements lie: the moves between a linear and attention become part of how its
operands are read, and the one that puts heads side by side again is how its result is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Call, Graph, Node, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.move.strided import Digit, cut, merged, strides
from q8ta_wgpu.passes.rewriter import Rewriter

ATTENTION, PRODUCT, SOFTMAX = "q8ta_attention", "q8ta_matmul", "q8ta_softmax"
WORD = 4
"""Elements of a word: rows of attention's operands are whole ones."""


@dataclass(frozen=True)
class _Place:
    """Where the elements of a value lie in another one, `root`: the first, and of each dimension extent and step."""

    root: str
    offset: int
    dims: tuple[Digit, ...]

    def walk(self, shape: Shape) -> tuple[int, ...] | None:
        """The first element and the steps between batches, heads and rows of (batch, heads, rows, elements)."""
        dims = _reshaped(self.dims, shape)
        return (self.offset, *(step for _, step in dims[:3])) if dims and dims[3][1] == 1 else None


def fuse_attention(graph: Graph, target: Target) -> None:
    """Makes one q8ta_attention of the chain where nothing else reads what lies between and `target` has a kernel for
    it. Software computes products in registers faster."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes() if target.shares_memory else ():
        weights = rewriter.only_producer(node.inputs[0]) if node.op == PRODUCT and len(set(node.inputs)) == 2 else None
        scores = rewriter.only_producer(weights.inputs[0]) if weights is not None and weights.op == SOFTMAX else None
        if weights is None or scores is None or scores.op != PRODUCT:
            continue
        fused = _fused(rewriter, scores, weights, node)
        if fused is not None and _runs(graph, fused, target):
            _write(rewriter, fused, node)
    rewriter.commit()


def _fused(rewriter: Rewriter, scores: Node, weights: Node, node: Node) -> Node | None:
    """The attention that a chain is, as a node that writes (batch, queries, heads * width); None where it is none."""
    graph = rewriter.graph
    given, weighed, out = (graph.types[n.output] for n in (scores, weights, node))
    first, last = scores.attrs["epilogue"].stages[0], node.attrs["epilogue"].stages[0]
    rounds = all(len(n.attrs["epilogue"].stages) == 1 for n in (scores, node))
    if not rounds or weights.attrs["dim"] != len(given.shape) - 1 or len(out.shape) not in (3, 4):
        return None
    assert (
        isinstance(first, Requantize) and isinstance(last, Requantize) and given.q is not None and weighed.q is not None
    )
    q, k, v = (_place(rewriter, name) for name in (*scores.inputs, node.inputs[1]))
    v = replace(v, dims=(*v.dims[:-2], v.dims[-1], v.dims[-2]))
    lead = out.shape[:2] if len(out.shape) == 4 else _lead(q, k, v)
    (queries, keys), depth, width = given.shape[-2:], q.dims[-1][0], out.shape[-1]
    shapes = ((queries, depth), (keys, depth), (keys, width))
    walks = [place.walk((*lead, *shape)) for place, shape in zip((q, k, v), shapes, strict=True)]
    mask = _mask(graph, weights.inputs[2], (*lead, queries, keys))
    if any(walk is None for walk in walks) or mask is None:
        return None
    attrs = {
        "sizes": (*lead, queries, keys, depth, width),
        **dict(zip(("query", "key", "value"), walks, strict=True)),
        "score_multiplier": scores.attrs["multiplier"],
        **{"score_zero": given.q.zero, "score_lo": first.lo, "score_hi": first.hi},
        **{"weight_zero": weighed.q.zero, "weight_lo": weights.attrs["lo"], "weight_hi": weights.attrs["hi"]},
        "multiplier": node.attrs["multiplier"],
        **{"lo": last.lo, "hi": last.hi},
    }
    inputs = (q.root, k.root, v.root, weights.inputs[1], mask)
    return Node(ATTENTION, inputs, node.output, attrs, node.source)


def _place(rewriter: Rewriter, name: str) -> _Place:
    """Where a value's elements lie in the value that moves of whole words made it of."""
    graph, node, shape = rewriter.graph, rewriter.producer(name), rewriter.graph.types[name].shape
    here = _Place(name, 0, tuple(zip(shape, strides(shape), strict=True)))
    if node is None or node.op not in ("view", "permute", "slice"):
        return here
    before = _place(rewriter, node.inputs[0])
    root, q = graph.types[before.root], graph.types[name].q
    if root.shape[-1] % WORD or (root.q and q and root.q.zero != q.zero):
        return here
    dims = list(before.dims)
    if node.op == "permute":
        return replace(before, dims=tuple(dims[d] for d in node.attrs["dims"]))
    if node.op == "slice":
        (extent, step), dim = dims[node.attrs["dim"]], node.attrs["dim"]
        taken = range(extent)[node.attrs["start"] : node.attrs["end"] : node.attrs["step"]]
        dims[dim] = len(taken), step * taken.step
        return replace(before, offset=before.offset + taken.start * step, dims=tuple(dims))
    viewed = _reshaped(dims, shape)
    return here if viewed is None else replace(before, dims=viewed)


def _reshaped(dims: Sequence[Digit], shape: Shape) -> tuple[Digit, ...] | None:
    """The same walk with other dimensions; None where one of them is no steps of one length."""
    ends = [math.prod(shape[i:]) for i in range(len(shape) + 1)]
    pieces = cut(merged(dims), ends) if ends[0] == math.prod(n for n, _ in dims) else None
    if pieces is None:
        return None
    found = []
    for last, first in itertools.pairwise(ends):
        digits = merged(
            [(end // place, step) for place, end, step in reversed(pieces) if first <= place and end <= last]
        )
        if len(digits) > 1:
            return None
        found.append(digits[0] if digits else (1, 0))
    return tuple(found)


def _lead(*places: _Place) -> tuple[int, int]:
    """Batch and heads where they are one dimension: as an operand that has them apart says."""
    leads = [merged(place.dims[:-2]) for place in places]
    apart = next((lead for lead in leads if len(lead) == 2), None)
    return (apart[0][0], apart[1][0]) if apart else (1, math.prod(n for n, _ in leads[0]))


def _mask(graph: Graph, name: str, scores: Shape) -> str | None:
    """A softmax's mask for scores of four dimensions; None where it does not divide so."""
    mask = graph.constants[name]
    if mask.ndim == len(scores):
        return name
    lead = (1, 1) if mask.shape[0] == 1 else scores[:2]
    if math.prod(lead) != mask.shape[0]:
        return None
    return graph.add_constant(f"{name}.heads", np.ascontiguousarray(mask.reshape(*lead, *mask.shape[1:])))


def _result(graph: Graph, fused: Node) -> TensorType:
    """The type of its result, with the scale and zero point that it is to have."""
    shape, dtype = OPS[ATTENTION].check(tuple(graph.types[name] for name in fused.inputs), fused.attrs)
    return TensorType(shape, dtype, graph.types[fused.output].q)


def _runs(graph: Graph, fused: Node, target: Target) -> bool:
    """Whether the operator takes it, and a kernel runs it on the target."""
    try:
        call = Call(ATTENTION, fused.attrs, tuple(graph.types[n] for n in fused.inputs), _result(graph, fused))
    except GraphError:  # rows are no whole words
        return False
    arrays = [graph.constants.get(name) for name in fused.inputs]
    wrong = any(operand.valid and operand.valid(call, arrays) for operand in OPS[ATTENTION].operands)
    return not wrong and any(kernel.runs(call, target) for kernel in OPS[ATTENTION].kernels)


def _write(rewriter: Rewriter, fused: Node, node: Node) -> None:
    """Writes the attention in place of its last product and, where that is what follows, of the permute that puts heads
    side by side; what else it is to be, moves make of it."""
    graph = rewriter.graph
    batch, heads, queries, _, _, width = fused.attrs["sizes"]
    split, end = (batch, heads, queries, width), node
    reader = rewriter.only_reader(end.output)
    if reader is not None and reader.op == "view" and graph.types[reader.output].shape == split:
        end, reader = reader, rewriter.only_reader(reader.output)
    order = [0, 2, 1, 3]
    if reader is not None and reader.op == "permute" and graph.types[end.output].shape == split:
        end, order = reader, [order[d] for d in reader.attrs["dims"]]
    to = _result(graph, fused)
    name = rewriter.insert(end, ATTENTION, fused.inputs, fused.attrs, to, f"{node.output}.attention")
    shape = graph.types[end.output].shape
    if order != [0, 1, 2, 3]:
        apart = replace(to, shape=(batch, queries, heads, width))
        name = rewriter.insert(end, "view", (name,), {"shape": apart.shape}, apart, f"{node.output}.heads")
        turned = replace(to, shape=tuple(apart.shape[d] for d in order))
        name = rewriter.insert(end, "permute", (name,), {"dims": tuple(order)}, turned, f"{node.output}.turned")
    rewriter.replace(end, Node("view", (name,), end.output, {"shape": shape}, end.source))
