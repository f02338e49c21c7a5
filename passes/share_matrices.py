"""Lets a product read a repeated matrix once: the heads of queries that share keys become rows of one product.

`q @ k.repeat_interleave(2, 1).mT` of grouped queries multiplies two matrices of queries with the same keys. Both
together are one matrix of twice the rows, so nothing has to be copied. The sums are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.rewriter import Rewriter

PRODUCTS = ("q8ta_matmul", "q16ta_matmul", "matmul")


def share_matrices(graph: Graph, target: Target) -> None:
    """Takes repeats out of the second operands of products, on any target."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op in PRODUCTS and len(node.inputs) == 2:
            _share(rewriter, node)
    rewriter.commit()


def _share(rewriter: Rewriter, product: Node) -> None:
    """Replaces rows (..., groups * repeats, n, depth) times one matrix a group, repeated, by rows
    (..., groups, repeats * n, depth) times that matrix."""
    types, (left, right) = rewriter.graph.types, product.inputs
    permute, out = rewriter.producer(right), types[product.output]
    swaps = permute is not None and permute.op == "permute" and _swaps_last_two(permute.attrs["dims"])
    repeated = permute.inputs[0] if permute is not None and swaps else right
    source = _source(rewriter, repeated)
    if source is None or not types[left].shape[:-2] == types[repeated].shape[:-2] == out.shape[:-2]:
        return
    groups = types[source].shape[:-3]
    matrix = _view(rewriter, product, source, (*groups, *types[source].shape[-2:]))
    if swaps:
        dims = (*range(len(groups)), len(groups) + 1, len(groups))
        matrix = rewriter.insert(product, "permute", (matrix,), {"dims": dims}, f"{matrix}.turned")
    n = math.prod(out.shape[:-1]) // math.prod(groups)
    rows = _view(rewriter, product, left, (*groups, n, types[left].shape[-1]))
    shared = rewriter.insert(product, product.op, (rows, matrix), product.attrs, f"{product.output}.shared", out.q)
    rewriter.replace(product, Node("view", (shared,), product.output, {"shape": list(out.shape)}, product.source))


def _swaps_last_two(dims: Sequence[int]) -> bool:
    return list(dims) == [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]


def _source(rewriter: Rewriter, name: str) -> str | None:
    """The value (..., groups, 1, rows, columns) that an expand repeats along its third dimension from the end, and a
    view may then have made (..., groups * repeats, rows, columns); None where it is something else."""
    types, node = rewriter.graph.types, rewriter.producer(name)
    expand = rewriter.producer(node.inputs[0]) if node is not None and node.op == "view" else node
    if expand is None or expand.op != "expand":
        return None
    (source,), (*groups, repeats, rows, columns) = expand.inputs, types[expand.output].shape
    merged = (*groups[:-1], math.prod(groups[-1:]) * repeats, rows, columns)
    alone = types[source].shape == (*groups, 1, rows, columns)
    return source if alone and types[name].shape in (merged, types[expand.output].shape) else None


def _view(rewriter: Rewriter, before: Node, name: str, shape: Shape) -> str:
    return rewriter.insert(before, "view", (name,), {"shape": list(shape)}, f"{name}.shared")
