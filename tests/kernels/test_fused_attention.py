"""q8ta_attention: where it reads and writes, by which kernel, and what a file may not say of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Graph
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.attention import DEEPEST
from q8ta_wgpu.kernels.attention.blocks import choose
from q8ta_wgpu.kernels.attention.round_shares import rounded_shares
from q8ta_wgpu.kernels.attention.sizes import STRIDES
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.attention_graphs import CHAINS, Chain, alone, chain_graph
from testbed.sample import in_turn


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_operands_are_read_in_place(chain: Chain, device: Device) -> None:
    """Where moves found them, and the result is written where it is read: 0 mismatches, by the reference and by every
    kernel, of attention in place and before."""
    graph, inputs = chain_graph(chain)
    (expected,) = reference.run(graph, inputs).values()
    assert np.unique(expected).size > 60
    lowered = lower(graph, BASELINE)
    moved = {"view"} if chain.form in ("slices", "planes") else {"view", "permute"}
    assert {node.op for node in lowered.nodes} - moved == {"q8ta_attention"}
    np.testing.assert_array_equal(value_of(lowered, inputs, graph.outputs[0]), expected)
    for single in (alone(lowered), alone(graph)):
        given = {name: value_of(graph, inputs, name) for name in single.inputs}
        (whole,) = reference.run(single, given).values()
        for name, plan in in_turn(list(harness.plans(single, 0)), CHAINS.index(chain), 2):
            (found,) = harness.run_poisoned(single, given, plan, device)
            np.testing.assert_array_equal(found, whole, err_msg=name)


def value_of(graph: Graph, inputs: dict[str, Array], name: str) -> Array:
    """A value of a graph, by the reference."""
    return inputs[name] if name in inputs else reference.run(replace(graph, outputs=[name]), inputs)[name]


def test_the_rule() -> None:
    """Units where there are some, else what a workgroup has the memory for; a workgroup a query where there are few."""
    single = alone(lower(chain_graph(CHAINS[0])[0], BASELINE))
    call = single.call(single.nodes[0])
    assert choose(call, harness.UNITS) == "units_16x64"
    assert [choose(call, replace(BASELINE, workgroup_memory=n)) for n in (16384, 6144, 4096)] == [
        "dots_32x64",
        "dots_16x64",
        "",
    ]
    assert choose(call, SOFTWARE) == ""
    few = replace(call, attrs={**call.attrs, "sizes": (4, 3, 4, 19, 8, 8, 3)})
    assert choose(few, BASELINE) == "query" and choose(few, SOFTWARE) == ""
    matrices = chain_graph(Chain("matrices", (1, 1, 4, 4096, 4, 4), (0, 0, 0, 0)))[0]
    assert [k.name for k in OPS["q8ta_attention"].kernels if k.runs(matrices.call(matrices.nodes[0]), BASELINE)] == [
        "q8ta_attention"
    ]


HOSTILE: dict[str, tuple[bool, Attrs]] = {
    "strides without sizes": (False, {"query": (0, 24, 4, 8)}),
    "too few strides": (True, {"key": (0, 24, 4)}),
    "beyond the last element": (True, {"sizes": (1, 3, 16, 65, 4, 84, 3)}),
    "heads that cannot share": (True, {"sizes": (1, 3, 16, 64, 4, 84, 2)}),
    "sums beyond int32": (True, {"sizes": (1, 3, 16, 1 << 24, 4, 84, 3), "key": (0,) * 4, "value": (0,) * 4}),
    "no whole words": (True, {"query": (2, 0, 0, 0)}),
    "infinite products": (True, {"multiplier": 3e38}),
}


@pytest.mark.parametrize(("placed", "edit"), HOSTILE.values(), ids=HOSTILE)
def test_what_a_file_may_not_say(placed: bool, edit: Attrs) -> None:
    graph = chain_graph(CHAINS[-1])[0]
    single = alone(lower(graph, BASELINE) if placed else graph)
    verify(single, RUNNABLE)
    single.nodes = [replace(node, attrs={**node.attrs, **edit}) for node in single.nodes]
    with pytest.raises(GraphError, match="attention"):
        verify(single, RUNNABLE)


def test_operands_have_rows() -> None:
    single = alone(chain_graph(Chain("matrices", (1, 1, 1, 4, 4, 4), (0, 0, 0, 0)))[0])
    (node,) = single.nodes
    attrs = {**node.attrs, "sizes": (1,) * 7, **dict.fromkeys(STRIDES, (0, 0, 0, 0))}
    scalars = [replace(single.types[name], shape=()) for name in node.inputs[:3]]
    with pytest.raises(GraphError, match="seven sizes"):
        OPS[node.op].check((*scalars, *(single.types[name] for name in node.inputs[3:])), attrs)


def test_queries_are_not_too_deep() -> None:
    """What a thread keeps: a compiler takes minutes for thousands of elements."""
    with pytest.raises(GraphError, match=f"takes {DEEPEST} elements"):
        chain_graph(Chain("matrices", (1, 1, 1, 4, DEEPEST + 4, 4), (0, 0, 0, 0)))


def test_shares_of_rows_without_weight() -> None:
    """They are 0, without a warning; those of other rows add up to 1."""
    shares = np.zeros((2, 3, 5), np.float32)
    shares[1] = 0.2
    found = rounded_shares(shares, np.zeros((1, 1, 1, 1), np.float32), fine=False)
    np.testing.assert_array_equal(found, shares)


def test_rounding_of_shares_takes_no_memory_beside_the_result() -> None:
    """Thousands of positions have gigabytes of shares. Rows in another order in memory give the same."""
    shares = np.random.default_rng(0).random((1, 4, 700, 500), np.float32)
    bias = np.ones((1, 1, 1, 500), np.float32)
    tracemalloc.start()
    found = rounded_shares(shares, bias, fine=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.5 * shares.nbytes
    turned = np.ascontiguousarray(shares.swapaxes(-1, -2)).swapaxes(-1, -2)
    np.testing.assert_array_equal(rounded_shares(turned, bias, fine=True), found)
