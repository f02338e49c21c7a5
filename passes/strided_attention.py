"""Attention reads its operands and writes its result through strides, instead of moves before and after it.

A view, permute, slice or expand between a linear and q8ta_attention becomes an offset and steps by which the attention
reads the linear's result. The permute that puts heads side by side again becomes the order in which it writes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.attention.attention import without_repeats
from q8ta_wgpu.kernels.attention.sizes import STRIDES, sizes_of
from q8ta_wgpu.kernels.move.strided import Digit, cut, merged, strides
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.passes.rewriter import Rewriter

WORD = 4
"""Elements of a word. Rows of attention's operands are whole words."""


@dataclass(frozen=True)
class _StridedView:
    """A value as a strided view of another one.

    Attributes:
        root: name of the other value.
        offset: index of the first element in the root.
        dims: for each dimension its (extent, step) pairs, outermost first; usually one pair.
    """

    root: str
    offset: int
    dims: tuple[tuple[Digit, ...], ...]

    def strides(self, lead: tuple[int, int], shared: int, matrix: Shape) -> tuple[int, ...] | None:
        """(offset, steps between batches, heads and rows) of matrices (batch, heads, *matrix); None where a dimension
        has no single step. There are `shared` different heads, each repeated for as many heads in a row."""
        batch, heads = lead
        dims = _reshaped(self.digits(), (batch, shared, heads // shared, *matrix))
        if dims is None or any(len(dim) > 1 for dim in dims):
            return None
        steps = [dim[0][1] if dim else 0 for dim in dims]
        return None if steps[2] or steps[4] != 1 else (self.offset, *steps[:2], steps[3])

    def digits(self, last: int | None = None) -> list[Digit]:
        """The (extent, step) pairs of all dimensions, or of those before `last`."""
        return list(itertools.chain(*self.dims[:last]))

    def repeats(self) -> int:
        """How often each head is repeated, as with grouped queries."""
        return next((extent for extent, step in self.digits(-2) if step == 0 and extent > 1), 1)


def strided_attention(graph: Graph, target: Target) -> None:
    """Replaces each q8ta_attention whose operands have strides by one that reads them in place, on any target."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op == "q8ta_attention" and not node.attrs["sizes"]:
            strided = _strided(rewriter, node)
            if strided is not None:
                _write(rewriter, strided, node)
    rewriter.commit()


def _strided(rewriter: Rewriter, node: Node) -> Node | None:
    """The attention that reads its operands in place and writes (batch, queries, heads * width); None where an operand
    has no single step along a dimension."""
    graph = rewriter.graph
    q, k, v = (_view_of(rewriter, name) for name in node.inputs[:3])
    found, shape = sizes_of([graph.types[name] for name in node.inputs], node.attrs), graph.types[node.output].shape
    lead = shape[:2] if len(shape) == 4 else _lead(q, k, v)
    rows = ((found.queries, found.depth), (found.keys, found.depth), (found.keys, found.width))
    for shared in (lead[1] // k.repeats() or 1, lead[1]):
        counts = (lead[1], shared, shared)
        strides = [view.strides(lead, n, row) for view, n, row in zip((q, k, v), counts, rows, strict=True)]
        if None not in strides:
            break
    if None in strides or len(shape) not in (3, 4):
        return None
    all_sizes = (*lead, found.queries, found.keys, found.depth, found.width, shared)
    attrs = {**node.attrs, "sizes": all_sizes, **dict(zip(STRIDES, strides, strict=True))}
    inputs = (q.root, k.root, v.root, node.inputs[3], _bias(graph, node.inputs[4], lead), *node.inputs[5:])
    placed = Node(node.op, inputs, node.output, attrs, node.source)
    try:
        infer(graph, placed, graph.types[node.output].q)
    except GraphError:  # rows are not whole words there, or a mask has batch and heads as one dimension
        return None
    return placed


def _view_of(rewriter: Rewriter, name: str) -> _StridedView:
    """A value as a view of the earliest value that it is moved from in whole words."""
    path = list[Node]()
    while (node := rewriter.producer(name)) is not None and node.op in ("view", "permute", "slice", "expand"):
        path.append(node)
        name = node.inputs[0]
    found = _itself(rewriter.graph, name)
    for each in reversed(path):
        found = _moved(rewriter.graph, found, each)
    return found


def _itself(graph: Graph, name: str) -> _StridedView:
    """A value as a view of itself."""
    shape = graph.types[name].shape
    return _StridedView(name, 0, tuple((digit,) for digit in zip(shape, strides(shape), strict=True)))


def _moved(graph: Graph, before: _StridedView, node: Node) -> _StridedView:
    """A move's result as a view of what its operand is a view of, if it is one in whole words; else of itself."""
    here, shape = _itself(graph, node.output), graph.types[node.output].shape
    root, q = graph.types[before.root], graph.types[node.output].q
    if root.shape[-1] % WORD or (root.q and q and root.q.zero != q.zero):
        return here
    dims = list(before.dims)
    if node.op == "permute":
        return replace(before, dims=tuple(dims[d] for d in node.attrs["dims"]))
    if node.op == "expand":
        old = (1,) * (len(shape) - len(dims)) + graph.types[node.inputs[0]].shape
        dims = [()] * (len(shape) - len(dims)) + dims
        return replace(before, dims=tuple(d if n == m else ((m, 0),) for d, n, m in zip(dims, old, shape, strict=True)))
    if node.op == "slice":
        dim = node.attrs["dim"]
        if len(dims[dim]) != 1:
            return here
        ((extent, step),) = dims[dim]
        indices = range(extent)[node.attrs["start"] : node.attrs["end"] : node.attrs["step"]]
        dims[dim] = ((len(indices), step * indices.step),)
        return replace(before, offset=before.offset + indices.start * step, dims=tuple(dims))
    viewed = _reshaped(before.digits(), shape)
    return here if viewed is None else replace(before, dims=viewed)


def _reshaped(dims: Sequence[Digit], shape: Shape) -> tuple[tuple[Digit, ...], ...] | None:
    """(extent, step) pairs of the same elements in another shape; None where a pair cannot be divided so."""
    ends = [math.prod(shape[i:]) for i in range(len(shape) + 1)]
    pieces = cut(merged(dims), ends) if ends[0] == math.prod(n for n, _ in dims) else None
    if pieces is None:
        return None
    found = []
    for last, first in itertools.pairwise(ends):
        digits = merged(
            [(end // place, step) for place, end, step in reversed(pieces) if first <= place and end <= last]
        )
        found.append(tuple(digits))
    return tuple(found)


def _lead(*views: _StridedView) -> tuple[int, int]:
    """(batch, heads) where the attention has both as one dimension: from an operand with different steps for them."""
    leads = [merged(view.digits(-2)) for view in views]
    separate = next((lead for lead in leads if len(lead) == 2), None)
    return (separate[0][0], separate[1][0]) if separate else (1, math.prod(n for n, _ in leads[0]))


def _bias(graph: Graph, name: str, lead: tuple[int, int]) -> str:
    """The name of a bias with batch and heads as two dimensions."""
    bias = graph.constants[name]
    if bias.shape[1] == 1 or bias.shape[1] == lead[1]:
        return name
    return graph.add_constant(f"{name}.heads", without_repeats(bias.reshape(*lead, *bias.shape[2:])))


def _write(rewriter: Rewriter, fused: Node, node: Node) -> None:
    """Replaces an attention, and the permute that puts heads side by side if it follows, by the strided one. Moves
    after it restore the shape and order that readers expect."""
    graph = rewriter.graph
    batch, heads, queries, _, _, width, _ = fused.attrs["sizes"]
    split, end = (batch, heads, queries, width), node
    reader = rewriter.only_reader(end.output)
    if reader is not None and reader.op == "view" and graph.types[reader.output].shape == split:
        end, reader = reader, rewriter.only_reader(reader.output)
    order = [0, 2, 1, 3]
    if reader is not None and reader.op == "permute" and graph.types[end.output].shape == split:
        end, order = reader, [order[d] for d in reader.attrs["dims"]]
    q = graph.types[node.output].q
    name = rewriter.insert(end, fused.op, fused.inputs, fused.attrs, f"{node.output}.attention", q)
    shape = graph.types[end.output].shape
    if order != [0, 1, 2, 3]:
        apart = {"shape": (batch, queries, heads, width)}
        name = rewriter.insert(end, "view", (name,), apart, f"{node.output}.heads")
        name = rewriter.insert(end, "permute", (name,), {"dims": tuple(order)}, f"{node.output}.turned")
    rewriter.replace(end, Node("view", (name,), end.output, {"shape": shape}, end.source))
