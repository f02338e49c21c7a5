"""A float32 transposed convolution is a convolution of its phases on software adapters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.transposed.conv_transpose2d import CASES
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.convolve_transposed import FEW_OUTPUTS
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs

OP = OPS["conv_transpose2d"]


def _wider(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes of x, weight and bias with at least FEW_OUTPUTS outputs."""
    x, (outputs, *taps), _ = shapes
    most = max(outputs, FEW_OUTPUTS)
    return x, (most, *taps), (most,)


PHASES = [replace(case, shapes=_wider(case.shapes)) for case in CASES if case.attrs["groups"] == 1]
"""Cases with outputs enough for a tile."""


@pytest.mark.parametrize("case", PHASES, ids=lambda case: f"{case.shapes[0]}-{case.shapes[1]}")
def test_phases_make_the_same_values(case: Case, vulkan: Device) -> None:
    graph, inputs = op_graphs.float_graph(OP, case)
    lowered = lower(graph, SOFTWARE)
    (sy, sx), kernel = case.attrs["stride"], case.shapes[1][2:]
    alone = set(case.attrs["dilation"]) != {1} or sy != sx or sy > min(kernel)
    assert ("conv_transpose2d" in {node.op for node in lowered.nodes}) == alone
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    np.testing.assert_allclose(reference.run(lowered, inputs)[graph.outputs[0]], expected, rtol=1e-5, atol=1e-4)
    (found,) = harness.run_poisoned(lowered, inputs, None, vulkan)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_few_outputs_and_groups_stay() -> None:
    for case in (CASES[0], next(case for case in CASES if case.attrs["groups"] > 1)):
        graph, _ = op_graphs.float_graph(OP, case)
        assert [node.op for node in lower(graph, SOFTWARE).nodes] == ["conv_transpose2d"]


def test_gpus_read_taps_one_by_one() -> None:
    graph, _ = op_graphs.float_graph(OP, PHASES[0])
    assert [node.op for node in lower(graph, BASELINE).nodes] == ["conv_transpose2d"]
