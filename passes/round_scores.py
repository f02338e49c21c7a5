"""Quantizes scores that no quantizer saw, because the program adds a mask before a bias or a factor.

`(q @ k + mask) + bias` has no value without the mask that calibration could observe. After `gather_masks` it is
`(q @ k + bias) + mask`. The range of `q @ k + bias` follows from the ranges of its int8 operands.
"""

from __future__ import annotations

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.passes.plan.intervals import intervals
from q8ta_wgpu.passes.plan.masks import reads_masks
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.store import int8_within, store


def round_scores(graph: Graph) -> None:
    """Quantizes the scores of each masked softmax whose range follows from int8 values, and constants that they add."""
    rewriter, known = Rewriter(graph), intervals(graph)
    for node in rewriter.nodes():
        add = rewriter.producer(node.inputs[0]) if reads_masks(node) else None
        for name in add.inputs if add is not None and add.op == "add" else ():
            scores = rewriter.producer(name)
            if add is None or scores is None or scores.op == "dequantize" or name not in known:
                continue
            for operand in scores.inputs if scores.op == "add" else ():
                if operand in graph.constants:
                    scores = store(rewriter, operand, scores, int8_within(*known[operand]))
            add = store(rewriter, name, add, int8_within(*known[name]))
    rewriter.commit()
