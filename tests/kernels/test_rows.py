"""Rows shared by teams of threads: how many a team has, and rows that hold infinities."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.lib.rows import THREADS, Rows, lanes
from q8ta_wgpu.kernels.lib.thresholds import MANY_THREADS
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs


@pytest.mark.parametrize("rows", [1, 197, 2364, 75648])
@pytest.mark.parametrize("length", [1, 5, 196, 197, 768, 50000])
@pytest.mark.parametrize("size", [1, 4])
def test_teams_divide_a_workgroup_and_fill_the_gpu(rows: int, length: int, size: int) -> None:
    found = lanes(Rows(rows, length, 1, length), size)
    assert THREADS % found == 0
    assert rows * found >= MANY_THREADS or found == THREADS or 2 * found > length // size


def test_one_thread_a_row_where_neighbours_are_rows() -> None:
    assert lanes(Rows(1 << 14, 21, 1 << 14, 1), 1) == 1
    assert lanes(Rows(4, 21, 2, 1), 1) > 1


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("length", [197, 196])
def test_masked_elements_take_no_part(op: str, length: int, device: Device) -> None:
    """Whole lanes of -inf are nothing beside finite ones; a row of nothing else is NaN, as in torch."""
    graph, inputs = op_graphs.float_graph(OPS[op], Case(((5, length),), {"dim": 1}))
    (x,) = inputs.values()
    x[0, 3:] = -np.inf
    x[1, : length - 1] = -np.inf
    x[2, ::2] = -np.inf
    x[3] = -np.inf
    x[4] = np.linspace(-3e38, 3e38, length)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        expected = reference.run(graph, inputs)["y"]
    assert np.isnan(expected[3]).all()
    for name, plan in harness.plans(graph, 0):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
