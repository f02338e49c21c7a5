"""The passes that make an imported graph runnable, in order, and why each comes where it does.

Comes in: a graph of float operators between quantizes and dequantizes. Goes out: the runnable graph, which a model file
holds; `lower` makes of it the graph for a target. May use: model, kernels, ir.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model.verify import verify
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
from q8ta_wgpu.passes.run_steps import run_steps
from q8ta_wgpu.passes.scale_slices import scale_slices
from q8ta_wgpu.passes.simplify import simplify
from q8ta_wgpu.passes.states import round_states
from q8ta_wgpu.passes.store_islands import store_islands
from q8ta_wgpu.passes.whole_numbers import whole_numbers

Pass = Callable[[Graph], None]

PASSES: tuple[Pass, ...] = (
    # First, because no-op views and repeated quantizes would hide the patterns of later passes.
    simplify,
    # The quantize of a uint8 result takes over the rounding and clamping before it: x.round().clamp(0, 255).
    whole_numbers,
    # Quantizes of constants become int8 constants, views of weights become weights.
    fold_constants,
    # Weights with zero points, as files with uint8 weights have, become int8 weights with zero point 0.
    center_weights,
    # States are stored as the integers that are read and written, before anything moves past a quantize.
    round_states,
    # Operators that programs write as several become one, before anything is fused.
    combine,
    # Slices of a weighted sum that have a scale each become one int8 tensor, before moves are taken to the int8 side.
    scale_slices,
    # All masks of scores become one, added last, before softmax and attention look for it.
    gather_masks,
    # Moves of elements work on int8: dequantizes sink below them, activations and quantizes rise above them.
    sink_dequantize,
    sink_moves,
    hoist_quantize,
    whole_numbers,
    # Equal quantizations in a row become one, so that a product sees the quantization of its operand.
    cancel_qdq,
    # Scales of rows are computed from int16 where that is stored.
    read_rows,
    # Scores that gather_masks separated from masks, and that no quantizer saw, are quantized.
    round_scores,
    # Two products with a softmax between, whose scores are not quantized or int16, become one attention.
    fuse_attention,
    # dequantize -> x -> (activation, clamps) -> quantize becomes the int8 form of x.
    fuse_int8,
    # The remaining dequantize -> quantize pairs vanish, or become tables.
    cancel_qdq,
    # Tables that only clamp become their producer's range, a table of a table becomes one table.
    fold_tables,
    # An add, a table or a dequantize after a convolution or linear becomes part of its dispatch; tables are final now.
    fold_epilogues,
    # A gather from a quantized table becomes an embedding, before the table becomes a float constant.
    fuse_embedding,
    # Weights that no int8 operator reads become float constants.
    fold_weights,
    # Last, to drop nodes that the passes above made equal or dead.
    simplify,
)

OF_STATIC_FILES: tuple[Pass, ...] = tuple(
    each for step in PASSES for each in ((step, store_islands) if step is combine else (step,))
)
"""The passes over a graph that a static ONNX file quantizes in part."""


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES) -> Graph:
    """Runs the passes over a copy of `graph`, verifying after each that changed it; returns the runnable graph."""
    verify(graph, "import")
    return run_steps(graph, [(step.__name__, step) for step in passes])
