"""q8ta_attention: what becomes of the chains of modules, and its bytes: those of the operators it is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.blocks import choose
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from tests import harness
from tests.attention_graphs import CHAINS, Chain, alone, chain_graph


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_operands_are_read_in_place(chain: Chain, device: Device) -> None:
    """Where moves found them, and the result is written where it is read: 0 mismatches, by the reference and by every
    kernel, of attention in place and before."""
    graph, inputs = chain_graph(chain)
    (expected,) = reference.run(graph, inputs).values()
    assert np.unique(expected).size > 60
    lowered = lower(graph, BASELINE)
    moved = {"view"} if chain.form in ("slices", "planes") else {"view", "permute"}
    assert {node.op for node in lowered.nodes} - moved == {"q8ta_masked_attention" if chain.mask else "q8ta_attention"}
    np.testing.assert_array_equal(value_of(lowered, inputs, graph.outputs[0]), expected)
    for single in (alone(lowered), alone(graph)):
        given = {name: value_of(graph, inputs, name) for name in single.inputs}
        (whole,) = reference.run(single, given).values()
        first, step = (CHAINS.index(chain) % 2, 2) if harness.sampled(device) else (0, 1)
        for name, plan in list(harness.plans(single, 0))[first::step]:
            (found,) = harness.run_poisoned(single, given, plan, device)
            np.testing.assert_array_equal(found, whole, err_msg=name)


def value_of(graph: Graph, inputs: dict[str, Array], name: str) -> Array:
    """A value of a graph, by the reference."""
    return inputs[name] if name in inputs else reference.run(replace(graph, outputs=[name]), inputs)[name]


def test_the_rule() -> None:
    """Larger blocks where there are many, units where there are some, and what a workgroup has the memory for."""
    single = alone(lower(chain_graph(CHAINS[0])[0], BASELINE))
    call = single.call(single.nodes[0])
    many = replace(call, attrs={**call.attrs, "sizes": (256, 4, 49, 49, 8, 8)})
    assert [choose(c, harness.UNITS) for c in (call, many)] == ["units_16x64", "units_32x32"]
    assert [choose(call, replace(BASELINE, workgroup_memory=n)) for n in (16384, 7168, 4096)] == [
        "dots_32x64",
        "dots_16x64",
        "",
    ]
    assert choose(call, SOFTWARE) == ""
    long = chain_graph(Chain("matrices", (1, 1, 4, 2048, 4, 4), (0, 0, 0, 0)))[0]
    assert [k.name for k in OPS["q8ta_attention"].kernels if k.runs(long.call(long.nodes[0]), BASELINE)] == [
        "q8ta_attention"
    ]
