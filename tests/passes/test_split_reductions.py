"""Reductions of large tensors to few elements are two dispatches."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs

SHAPE = (2, 24, 31, 33)


@pytest.mark.parametrize("op", ["amax", "amin", "mean", "sum"])
@pytest.mark.parametrize(
    ("dims", "keepdim", "first"),
    [((0, 1, 2, 3), False, (2, 3)), ((1, 2, 3), True, (3,)), ((2, 3), False, ()), ((0, 1), True, ())],
)
def test_the_last_dimensions_are_reduced_first(
    op: str, dims: tuple[int, ...], keepdim: bool, first: tuple[int, ...], vulkan: Device
) -> None:
    graph, inputs = op_graphs.float_graph(OPS[op], Case((SHAPE,), {"dims": dims, "keepdim": keepdim}))
    lowered = lower(graph, BASELINE)
    assert [node.attrs["dims"] for node in lowered.nodes] == ([first, dims] if first else [dims])
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    (found,) = harness.run_poisoned(lowered, inputs, None, vulkan)
    if op in ("amax", "amin"):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)
