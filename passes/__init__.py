"""The way from an imported graph to one that runs: the passes, in order, and why each comes where it does.

Comes in: a graph of float operators between quantizes and dequantizes. Goes out: the runnable one, which a model file
holds, and by `lower` the one that runs on a target. May use: model, kernels, ir.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.cancel_qdq import cancel_qdq
from q8ta_wgpu.passes.center_weights import center_weights
from q8ta_wgpu.passes.fold_constants import fold_constants, fold_weights
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues
from q8ta_wgpu.passes.fold_tables import fold_tables
from q8ta_wgpu.passes.fuse_attention import fuse_attention
from q8ta_wgpu.passes.fuse_embedding import fuse_embedding
from q8ta_wgpu.passes.fuse_int8 import fuse_int8
from q8ta_wgpu.passes.move_bytes import hoist_quantize, sink_dequantize, sink_moves
from q8ta_wgpu.passes.plan.masks import gather_masks
from q8ta_wgpu.passes.plan.spellings import combine
from q8ta_wgpu.passes.read_rows import read_rows
from q8ta_wgpu.passes.round_scores import round_scores
from q8ta_wgpu.passes.round_states import round_states
from q8ta_wgpu.passes.scale_slices import scale_slices
from q8ta_wgpu.passes.simplify import simplify
from q8ta_wgpu.passes.whole_numbers import whole_numbers

Pass = Callable[[Graph], None]

PASSES: tuple[Pass, ...] = (
    # No-op views and equal quantizes would hide the patterns below from each other.
    simplify,
    # A result that is given as uint8 is rounded once.
    whole_numbers,
    # Quantizes of constants become int8 constants, views of weights become weights.
    fold_constants,
    # Weights with zero points, which files of uint8 weights have, are int8 about zero.
    center_weights,
    # States are the integers that are read and written, before anything is moved past a quantize.
    round_states,
    # Operators that programs write as several, while nothing is fused.
    combine,
    # Slices of a sum that have scales of their own are one int8 tensor before byte-moving operators take it apart.
    scale_slices,
    # However masks of scores are written they are one, before softmax and attention look for it; what they mask may be
    # moved behind them.
    gather_masks,
    # Byte-moving operators leave the float side: dequantizes move down past them, activations and quantizes up.
    sink_dequantize,
    sink_moves,
    hoist_quantize,
    whole_numbers,
    # Equal quantizations that follow each other, around moves as well, are one: a product sees what its operand is.
    cancel_qdq,
    # Scales of rows are chosen from int16 where that is stored.
    read_rows,
    # What masks were taken out of may be computed from int8 values, and rounded by nobody.
    round_scores,
    # Two products of activations and a softmax between them that nobody quantized, or int16 holds, are an attention.
    fuse_attention,
    # dequantize -> x -> (activation, clamps) -> quantize becomes the int8 form of x.
    fuse_int8,
    # What fusion left: dequantize -> quantize becomes nothing or a table.
    cancel_qdq,
    # Tables that clamp fold into their producer's range, tables of tables into one.
    fold_tables,
    # An add, a table or a dequantize behind a convolution or linear joins its dispatch; tables must be final.
    fold_epilogues,
    # Tables of int8 rows, before they become float constants.
    fuse_embedding,
    # Weights no int8 operator took become float constants.
    fold_weights,
    # What the passes above made equal or dead.
    simplify,
)


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES) -> Graph:
    """Runs the passes over a copy of `graph`, verifying after each; returns the runnable graph."""
    graph = graph.copy()
    verify(graph, "import")
    for step in passes:
        step(graph)
        graph.prune()
        verify(graph, step.__name__)
    verify(graph, RUNNABLE)
    return graph
