"""Rewrites a runnable graph for a target: all rewriting that depends on the device.

A model file holds the graph before. Plans, layout reports, tuning and programs are made from the graph after.
"""

from __future__ import annotations

from collections.abc import Callable

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.convolve_transposed import convolve_transposed
from q8ta_wgpu.passes.fold_moves import fold_moves
from q8ta_wgpu.passes.fold_producers import fold_expansions, fold_image, fold_stages
from q8ta_wgpu.passes.give_rows import give_rows
from q8ta_wgpu.passes.join_linears import join_linears, join_projections
from q8ta_wgpu.passes.join_states import join_states
from q8ta_wgpu.passes.run_steps import run_steps
from q8ta_wgpu.passes.split import split_cat, split_reductions
from q8ta_wgpu.passes.states import store_states
from q8ta_wgpu.passes.strided_attention import strided_attention
from q8ta_wgpu.passes.use_im2col import use_im2col

LOWERING: tuple[Callable[[Graph, Target], None], ...] = (
    # The first convolution reads the float image where quantizing while loading is faster.
    fold_image,
    # Convolutions read parts of stored tensors, before im2col, which stores windows, and before a cat is split.
    fold_moves,
    # Where a convolution reads one value as it is, that may be a gated one.
    fold_stages,
    # A depthwise convolution may make its image by the 1x1 convolution before it.
    fold_expansions,
    # Convolutions copy windows for a 1x1 convolution where ExecuTorch's rule says so and nothing was measured.
    use_im2col,
    # A float32 transposed convolution is a convolution of all its phases on software adapters.
    convolve_transposed,
    # The states of a recurrent layer and its last one are made by one dispatch.
    join_states,
    # Linears of one row that read the same value become one, before attention looks where its operands lie.
    join_linears,
    # Attention reads heads in place, where a linear wrote them.
    strided_attention,
    # Linears of several rows that an attention reads in place become one.
    join_projections,
    # A reduction to few elements would run few workgroups: it becomes two.
    split_reductions,
    # Results of uint8 are returned in row-major order.
    give_rows,
    # A dispatch binds a limited number of tensors.
    split_cat,
    # States are written in place, after all their readers.
    store_states,
)


def lower(graph: Graph, target: Target) -> Graph:
    """A copy of a runnable graph for `target`. Remaining values keep their names. Lowering again changes nothing."""

    def on_target(step: Callable[[Graph, Target], None]) -> Callable[[Graph], None]:
        return lambda graph: step(graph, target)

    return run_steps(graph, [(step.__name__, on_target(step)) for step in LOWERING], runnable=True)
