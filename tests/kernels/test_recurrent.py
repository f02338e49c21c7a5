"""Recurrent layers whose result is float32 or int16: what nothing rounds is exact, and is the same bytes everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.op_graphs import SETTINGS, float_ended, unfused_graph
from testbed.sample import EVERYTHING

SEQUENCES = [(cell, index, wide) for cell in ("lstm", "gru") for index in (0, 1) for wide in (False, True)]


@pytest.mark.parametrize(("cell", "index", "wide"), SEQUENCES if EVERYTHING else SEQUENCES[::3])
def test_a_result_that_is_not_int8(cell: str, index: int, wide: bool, device: Device) -> None:
    """Layers of int8 weights ran in float32 where a float32 or an int16 value was read of them."""
    setting = replace(SETTINGS[0], dtypes=(INT8X4, INT8X4, INT16X4))
    unfused, inputs = (unfused_graph if wide else float_ended)(OPS[cell], OPS[cell].cases[index], setting)
    graph = run_passes(unfused)
    assert [node.op for node in graph.nodes] == [f"q8ta_{cell}"]
    (name,) = graph.outputs
    expected = reference.run(graph, inputs)[name]
    for _, plan in harness.plans(graph, 0):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(found, expected)
    close = reference.run(unfused, inputs)[name]
    np.testing.assert_allclose(expected, close, atol=8 if wide else 1e-3)  # products read 13 bits of states
