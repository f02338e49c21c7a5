"""int16 activations: kernels against the reference, what is refused, and a residual stream from torch to the device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from tests import harness

EVERY = 6
"""Of the kernels of a graph, the general one and every so-manieth of the others run; test_wgsl.py compiles all."""

GRAPHS = {name: (graph, inputs) for name, _, graph, inputs in harness.wide_graphs()}


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels(name: str, device: Device) -> None:
    """0 mismatches."""
    unfused, inputs = GRAPHS[name]
    graph = run_passes(unfused)
    assert not graph.notes, graph.notes
    assert len(graph.nodes) == 1
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    by_kernel = [
        (kernel, next(plans))
        for kernel, plans in itertools.groupby(harness.plans(graph, 0), lambda item: item[1].steps[0].variant.kernel)
    ]
    turn = list(GRAPHS).index(name)
    for place, (_, (what, plan)) in enumerate(by_kernel):
        if place == len(by_kernel) - 1 or (place + turn) % (EVERY * (3 if harness.sampled(device) else 1)) == 0:
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=what)
