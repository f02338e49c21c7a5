"""Splits a cat of more tensors than a dispatch can bind into a tree of cats."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.cat import MAX_INPUTS
from q8ta_wgpu.passes.rewriter import Rewriter


def split_cat(graph: Graph, target: Target) -> None:
    """Splits each cat of more inputs than its kernels and the target allow: one storage buffer each, and the result's.
    Consecutive inputs are grouped until one cat is left."""
    limit = min(MAX_INPUTS, target.storage_buffers - 1)
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        cat = node
        while cat.op == "cat" and len(cat.inputs) > limit:
            operands: list[str] = []
            for start in range(0, len(cat.inputs), limit):
                group = cat.inputs[start : start + limit]
                if len(group) > 1:
                    group = (rewriter.insert(cat, "cat", group, cat.attrs, f"{cat.output}.part"),)
                operands += group
            cat = rewriter.replace(cat, replace(cat, inputs=tuple(operands)))
    rewriter.commit()
