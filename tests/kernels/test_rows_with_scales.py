"""Linears whose rows have scales that the device chooses: kernels against the reference, with all that may follow."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT16X4, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Residual, Rows
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.op_graphs import rng
from testbed.rows_with_scales import AFTER, CASES, alone, fused


@pytest.mark.parametrize("number", range(len(AFTER)))
def test_kernels(number: int, device: Device) -> None:
    """0 mismatches, of the general kernel and of one of the others; all of the way from the values."""
    after, setting = AFTER[number]
    for dtype in (INT16X4, FLOAT32)[: 1 if "curve" in after or number % 3 else 2]:
        index = CASES[number % len(CASES)]
        graph, values = fused(index, after, setting, dtype)
        (found,) = harness.run_poisoned(graph, values, None, device)
        np.testing.assert_array_equal(found, values[graph.outputs[0]], err_msg=dtype)
        single, given = alone(graph, values, graph.nodes[2])
        plans = list(harness.plans(single, index))
        for name, plan in (plans[-1], plans[number * 5 % len(plans)]):
            (found,) = harness.run_poisoned(single, given, plan, device)
            np.testing.assert_array_equal(found, values[graph.outputs[0]], err_msg=f"{name} {dtype}")


def test_a_row_is_rounded_within_half_a_step_of_its_largest_magnitude() -> None:
    """A scale is at most a 64th larger than the largest magnitude over 127, and at least 1."""
    largest = np.geomspace(1, 2.0**107, 5000).astype(np.float32)
    scale = arithmetic.row_scale(largest).astype(np.float64)
    ratio = scale * 127 / np.maximum(largest, 127).astype(np.float64)
    assert ratio.min() >= 1 and ratio.max() < 1.016
    r = scale / 2.0 ** (np.floor(np.log2(scale)) - 6)
    assert (r == np.rint(r)).all() and r.min() >= 64 and r.max() < 128
    inverse = arithmetic.row_inverse(scale).astype(np.float64)
    assert np.abs(inverse * scale - 1).max() < 2.0**-23


def test_what_follows_reads_the_product_of_a_multiplier_and_a_scale_rounded_once() -> None:
    generator = rng("multipliers")
    multiplier = np.exp(generator.uniform(-40, 16, 4000)).astype(np.float32)
    scale = arithmetic.row_scale(np.exp(generator.uniform(0, 60, 4000)))
    np.testing.assert_array_equal(arithmetic.row_multiplier(multiplier, scale), multiplier * scale)


def test_scales_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(GraphError, match=r"scales of shape \(3, 1\), found \(3,\)"):
        OPS["quantize_rows"].check((TensorType((3, 8)), TensorType((3,))), {})
    with pytest.raises(GraphError, match="rows have at least one dimension"):
        OPS["row_scale"].check((TensorType(()),), {})
    with pytest.raises(GraphError, match=r"rows of \(3, 4\) have scales of shape \(3, 1\)"):
        Rows().check(TensorType((3, 4)), (3, 4))
    with pytest.raises(GraphError, match="stages"):
        Epilogue((Residual(1), Rows(), Requantize(-128, 127)))
