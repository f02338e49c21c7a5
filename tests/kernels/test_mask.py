"""The mask of softmax and attention: an operand that a call may leave out, and what a file may not say of it."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, QParams, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.lib.mask import shortened, spread
from q8ta_wgpu.model.verify import RUNNABLE, verify
from testbed.attention_graphs import CHAINS, alone, chain_graph, masked_softmax


@pytest.mark.parametrize("op", ["q8ta_softmax", "q8ta_attention"])
def test_the_mask_may_be_left_out(op: str) -> None:
    """It alone: one operand less, or one more, is refused with both counts there may be."""
    masked = next(chain for chain in CHAINS if chain.mask)
    graph = masked_softmax((2, 3, 5, 7), (2, 1, 1, 7))[0] if op == "q8ta_softmax" else alone(chain_graph(masked)[0])
    (node,) = graph.nodes
    types = [graph.types[name] for name in node.inputs]
    assert OPS[op].check(tuple(types), node.attrs) == OPS[op].check(tuple(types[:-1]), node.attrs)
    least = len(types) - 1
    for wrong in (types[: least - 1], [*types, types[-1]]):
        with pytest.raises(GraphError, match=f"takes {least} or {least + 1} inputs, found {len(wrong)}"):
            OPS[op].check(tuple(wrong), node.attrs)


@pytest.mark.parametrize(
    ("shape", "mask", "why"),
    [
        ((6, 3, 5, 7), TensorType((2, 1, 5, 7), INT8X4, BOOL), ""),
        ((6, 3, 5, 7), TensorType((4, 1, 5, 7), INT8X4, BOOL), "divide"),
        ((6, 3, 5, 7), TensorType((1, 1, 1, 6), INT8X4, BOOL), "must be 1 or that"),
        ((6, 3, 5, 7), TensorType((5, 7), INT8X4, BOOL), "must be 1 or that"),
        ((6, 5, 7), TensorType((2, 1, 7), INT8X4, BOOL), "must be 1 or that"),
        ((2, 3, 4, 5, 7), TensorType((2, 3, 1, 5, 7), INT8X4, BOOL), ""),
        ((2, 3, 4, 5, 7), TensorType((2, 1, 4, 5, 7), INT8X4, BOOL), "all 1 or all equal"),
        ((6, 3, 5, 7), TensorType((1, 1, 1, 7), INT8X4, QParams(0.5, 0)), "must be bools"),
    ],
)
def test_masks_of_other_shapes_and_scales_are_refused(shape: Shape, mask: TensorType, why: str) -> None:
    graph = masked_softmax(shape, shape)[0]
    graph.types["mask"] = mask
    if not why:
        verify(graph, RUNNABLE)
        return
    with pytest.raises(GraphError, match=why):
        verify(graph, RUNNABLE)


@pytest.mark.parametrize("shape", [(2, 1, 5, 7), (1, 3, 1, 7), (6, 3, 5, 7), (1, 1, 1, 7)])
def test_a_shortened_mask_spreads_to_the_same(shape: Shape) -> None:
    whole: Array = spread(np.random.default_rng(0).integers(0, 2, shape).astype(np.int8), (6, 3, 5, 7))
    found = shortened(whole)
    assert found.shape == shape
    np.testing.assert_array_equal(spread(found, whole.shape), whole)
