"""From a runnable graph to the one that runs on a target: everything that depends on the device, once and here.

A model file holds the graph before; plans, layout reports, tuning and programs are made from the graph after.
"""

from __future__ import annotations

from collections.abc import Callable

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.fold_image import fold_image
from q8ta_wgpu.passes.give_rows import give_rows
from q8ta_wgpu.passes.im2col import use_im2col
from q8ta_wgpu.passes.join_linears import join_linears
from q8ta_wgpu.passes.share_matrices import share_matrices
from q8ta_wgpu.passes.split_cat import split_cat
from q8ta_wgpu.passes.split_reductions import split_reductions
from q8ta_wgpu.passes.store_states import store_states
from q8ta_wgpu.passes.strided_attention import strided_attention

LOWERING: tuple[Callable[[Graph, Target], None], ...] = (
    # The first convolution reads the float image where quantizing while loading is faster.
    fold_image,
    # Convolutions copy their windows for a 1x1 product where upstream's rule holds unmeasured.
    use_im2col,
    # Linears of one row that read the same value are one, before attention asks where its operands lie.
    join_linears,
    # Attention reads heads where a linear wrote them.
    strided_attention,
    # Products of other heads read matrices that several heads share once.
    share_matrices,
    # Few results of a large tensor are few workgroups.
    split_reductions,
    # Results of uint8 come back in rows.
    give_rows,
    # A dispatch binds only so many tensors.
    split_cat,
    # States are written where they are read, after all that reads them.
    store_states,
)


def lower(graph: Graph, target: Target) -> Graph:
    """A copy of a runnable graph as `target` runs it. Values that are left keep their names; twice is as once."""
    graph = graph.copy()
    for step in LOWERING:
        step(graph, target)
        graph.prune()
        verify(graph, step.__name__)
    verify(graph, RUNNABLE)
    return graph
