"""The numpy references against torch in float64, over all cases of all operators: no device takes part."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Recurrent, WeightedSum
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from testbed import attention_graphs, epilogue_graphs, harness, int16_graphs, op_graphs
from testbed.op_graphs import Setting
from tests import oracle
from tests.kernels import test_chains

ULP = 2.0**-23
"""References compute in float64 and round once to float32."""

ONE_BY_ONE = [op for op in OPS.values() if op.cases and op.name in oracle.TORCH and op_graphs.takes_floats(op)]
INT8 = [op for op in ONE_BY_ONE if op.int8]
WEIGHTED = [op for op in INT8 if isinstance(op.int8, WeightedSum)]

WITHOUT = {
    "q8ta_im2col": "windows for a product: tests/passes/test_im2col.py compares both with the convolution",
    "q8ta_conv2d_image": "quantize and q8ta_conv2d in one: test_image.py compares it with the two",
    "q8ta_conv2d_parts": "moves and q8ta_conv2d in one: test_prologues.py compares it with them",
    "q8ta_conv2d_expanded": "two q8ta_conv2d in one: test_expanded.py compares it with the two",
    "q8ta_take_channels": "moves in one: test_prologues.py compares it with them",
    "update_rows": "an update that writes a part of a state: tests/session/test_state.py compares it with the whole",
    "q8ta_rotary_update": "rotary and update_rows in one: tests/passes/test_rotary.py compares it with the two",
    "row_scale": "torch has no such scale: tests/kernels/test_rows_with_scales.py shows its bounds in float64",
    "quantize_rows": "of scales that torch has not: tests/kernels/test_rows_with_scales.py compares it with float64",
    "round_shares": "noise that no kernel makes: tests/frontend/test_precision.py holds what it decides",
}
"""Operators that no torch function is compared with, and why."""


def _id(op: Op) -> str:
    return op.name


@pytest.mark.parametrize("op", ONE_BY_ONE, ids=_id)
def test_float(op: Op) -> None:
    """Float references equal torch's float64 result rounded to float32; special values and NaN included."""
    for case in op.cases:
        graph, inputs = op_graphs.float_graph(op, case)
        exact = oracle.run(graph, inputs)[0]["y"].numpy()
        found = reference.run(graph, inputs)["y"]
        assert found.shape == exact.shape, case
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(found, exact.astype(np.float32), rtol=ULP, atol=1e-30, err_msg=str(case))


@pytest.mark.parametrize("op", INT8, ids=_id)
def test_int8(op: Op) -> None:
    """dequantize -> operator -> quantize: the fused graph gives the bytes of exact arithmetic."""
    for index, case in enumerate(op.cases):
        for setting in op_graphs.settings_for(op, index):
            graph, inputs = op_graphs.unfused_graph(op, case, setting)
            if case.attrs.get("result") in ("state", "both"):
                found = reference.run(run_passes(graph), inputs)["real"]
                np.testing.assert_allclose(found, oracle.run(graph, inputs)[0]["real"], atol=2.0**-11)
            else:
                tie = oracle.CARRIED if isinstance(op.int8, Recurrent) else oracle.TIE
                compare(graph, inputs, setting, tie)


MET = {
    (op.name, epilogue): [i for i in range(len(op.cases)) if epilogue in epilogue_graphs.epilogues_of(op, i)]
    for op in WEIGHTED
    for epilogue in epilogue_graphs.EPILOGUES
}
"""By operator and epilogue, the cases that meet it."""


@pytest.mark.parametrize(("op", "epilogue"), [key for key, cases in MET.items() if cases])
def test_epilogues(op: str, epilogue: str) -> None:
    """What follows a weighted sum in its dispatch, with the int8 values between that the graph stores."""
    tie = oracle.JOINED if "residual" in epilogue else oracle.BENT if "curve" in epilogue else oracle.TIE
    for index in MET[op, epilogue]:
        case = OPS[op].cases[index]
        for setting in op_graphs.settings_for(OPS[op], index):
            if setting.mode == "overflow" and "curve" in epilogue:
                continue  # an activation 2^30 steps tall has no curve: it stays in float32
            graph, inputs = epilogue_graphs.unfused_epilogue(OPS[op], case, setting, epilogue)
            if epilogue.startswith("scale"):
                _compare_sums(graph, inputs)
            else:
                compare(graph, inputs, setting, tie)


def test_int16() -> None:
    """Where an operand or the result is int16, and on the way between int16, int8 and float32."""
    for name, setting, graph, inputs in (*int16_graphs.wide_graphs(), *int16_graphs.products_of_int16()):
        if name.startswith("dequantize"):
            exact = oracle.run(graph, inputs)[0]["y"].numpy()
            np.testing.assert_allclose(reference.run(graph, inputs)["y"], exact, rtol=ULP)
        else:
            compare(graph, inputs, setting, oracle.WIDE)


def test_weighted_sums_of_int16() -> None:
    """As sums of int8. Of a float32 result, two roundings."""
    for name, setting, graph, inputs in int16_graphs.sums_of_int16():
        if graph.outputs == ["real"]:
            exact = oracle.run(graph, inputs)[0]["real"].numpy()
            found = reference.run(run_passes(graph), inputs)["real"]
            assert np.abs(found - exact).max() <= 2 * ULP * np.abs(exact).max(), name
        else:
            compare(graph, inputs, setting, 2.0**-3 if "curve" in name else oracle.WIDE)


def compare(
    graph: Graph, inputs: dict[str, Array], setting: Setting, tie: float = oracle.TIE, least: float = 0.7
) -> None:
    """Equal wherever no rounding was within `tie` steps of a tie, at most a step for each rounding apart elsewhere;
    where scales are powers of two and nothing joins the sum, halves are even for both.

    An 'overflow' sum saturates beyond 2^16 steps before its bias is added: four of five are equal. `least`: the part of
    the elements that must be far from ties.
    """
    (name,), fused = graph.outputs, run_passes(graph)
    if setting.mode == "overflow" and fused.notes:
        assert "too far apart" in fused.notes[0]
        return
    assert not fused.notes, fused.notes
    values, doubts = oracle.run(graph, inputs, tie)
    exact, near = values[name].numpy(), doubts[name].numpy()
    found = reference.run(fused, inputs)[fused.outputs[0]]
    assert found.shape == exact.shape
    last = next(node.output for node in reversed(graph.nodes) if node.op == "quantize")
    q = graph.types[last].q
    assert q is not None
    step = 1.0 if graph.types[name].q else q.scale
    apart = np.rint(np.abs(found - exact) / step)
    if setting.mode == "overflow":
        assert (apart == 0).mean() >= 0.8, setting
        return
    assert apart.max() <= sum(node.op == "quantize" for node in graph.nodes), setting
    assert not apart[~near].any(), setting
    assert setting.mode != "ties" or tie > oracle.TIE or not apart.any(), setting
    few = near.size < 32 or np.unique(exact).size <= 8  # whole numbers and signs may be half a step, all of them
    assert setting.mode == "ties" or few or (~near).mean() > least, "hardly anything is compared"


def _compare_sums(graph: Graph, inputs: dict[str, Array]) -> None:
    """A float result: the bias is rounded to a step of the sum, the rest to float32."""
    (name,), weight = graph.outputs, graph.constants["w.scale"]
    q = graph.types["x0"].q
    assert q is not None
    exact = oracle.run(graph, inputs)[0][name].numpy()
    fused = run_passes(graph)
    found = reference.run(fused, inputs)[fused.outputs[0]]
    assert np.abs(found - exact).max() <= 0.5 * q.scale * weight.max() + ULP * np.abs(exact).max()


@pytest.mark.parametrize("index", range(len(OPS["quantize"].cases)))
def test_quantize(index: int) -> None:
    """NaN is the zero point, infinities saturate."""
    graph, inputs = op_graphs.float_graph(OPS["quantize"], OPS["quantize"].cases[index])
    values, near = oracle.run(graph, inputs)
    apart = np.abs(reference.run(graph, inputs)["y"] - values["y"].numpy())
    assert apart.max() <= 1
    assert not apart[~near["y"].numpy()].any()


def test_dequantize() -> None:
    every = np.arange(-128, 128).astype(np.int8)
    for q in (QParams(0.037, -11), QParams(1e-7, 127), QParams(3e5, -128)):
        graph = Graph(["x"], ["y"], [Node("dequantize", ("x",), "y")])
        graph.types = {"x": TensorType(every.shape, INT8X4, q), "y": TensorType(every.shape)}
        exact = oracle.run(graph, {"x": every})[0]["y"].numpy()
        np.testing.assert_allclose(reference.run(graph, {"x": every})["y"], exact, rtol=ULP)


def test_every_operator_meets_torch() -> None:
    """A new operator has a row in `oracle.TORCH`, is what a float operator with a row becomes, or is in `WITHOUT`."""
    found = (*(g for g, _ in harness.plain_graphs()), *test_chains.graphs(), *attention_graphs.fused_graphs())
    made = {node.op for graph in found for node in graph.nodes}
    compared = {op.name for op in ONE_BY_ONE} | {name for name in made if name.startswith(("q8ta_", "q16ta_"))}
    assert set(OPS) - compared - set(oracle.BORDER) - set(WITHOUT) == set()
    assert (set(oracle.TORCH) | set(oracle.BORDER) | set(WITHOUT)) <= set(OPS), "rows of operators that are gone"
