"""Which kernel the rules choose for depthwise convolutions and for products of few rows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Graph, TensorType
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from testbed import graphs

SWIFTSHADER = replace(SOFTWARE, unroll=False)
NVIDIA = replace(BASELINE, name="NVIDIA H100")
EMULATED = replace(BASELINE, packed_dot=False, fast_dot=False)


def preferred(graph: Graph, target: Target) -> list[str]:
    """The kernels that a target prefers for a graph's node, but the general ones."""
    call = graph.call(graph.nodes[0])
    found = (kernel for kernel in OPS[call.op].kernels if kernel.runs(call, target) and kernel.preferred(call, target))
    return [name for name in (kernel.name.partition(".")[2] for kernel in found) if name != "direct"]


@pytest.mark.parametrize(
    ("batch", "size", "kernel", "target", "strip"),
    [
        (32, 56, 3, BASELINE, "dw_turned_4"),
        (1, 56, 3, BASELINE, "dw_turned_2"),
        (1, 56, 5, NVIDIA, "dw_2x1"),
        (32, 56, 5, NVIDIA, "dw_4x2"),
        (32, 56, 3, NVIDIA, "dw_turned_4"),
        (32, 56, 5, BASELINE, "dw_turned_2"),
        (32, 56, 3, EMULATED, "dw_2x1"),
        (1, 56, 3, SOFTWARE, "dw_4x4"),
        (1, 56, 3, SWIFTSHADER, "dw_4x2"),
    ],
)
def test_depthwise_strips(batch: int, size: int, kernel: int, target: Target, strip: str) -> None:
    assert preferred(graphs.conv((batch, 144, size, size), 144, kernel, 1, 144), target) == [strip]


@pytest.mark.parametrize(
    ("rows", "inputs", "target", "shares_k"),
    [
        (8, 1024, BASELINE, False),
        (8, 1280, BASELINE, True),
        (4, 256, BASELINE, False),
        (4, 512, BASELINE, True),
        (1, 64, SOFTWARE, True),
    ],
)
def test_few_rows(rows: int, inputs: int, target: Target, shares_k: bool) -> None:
    """A linear, and a convolution of images of one pixel, which squeeze-and-excite has."""
    for graph in (graphs.linear(rows, inputs, 100), graphs.conv((rows, inputs, 1, 1), 100, 1)):
        (found,) = preferred(graph, target)
        assert found.startswith("gemv") == shares_k


def test_a_product_of_other_depths_names_both_shapes() -> None:
    """As they are given: the second one of a matmul is not transposed in the message."""
    with pytest.raises(GraphError, match=re.escape("last dimension of (2, 3) and dimension -2 of (4, 5)")):
        OPS["matmul"].infer((TensorType((2, 3)), TensorType((4, 5))), {})
