"""Loops of any length: software adapters end them after 65,535 turns of a thread, silently (q8ta_wgpu/ir/target.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import q8ta_wgpu as q8
from q8ta_wgpu.errors import DeviceError, GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import no_turns
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.ir.target import BASELINE, LOOP_TURNS, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.runtime import probe
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs

POOL: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0, 0, 0), "ceil_mode": False}
CONV: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
SIDE = 300
IMAGE, WINDOW = (1, 5, SIDE, SIDE), (SIDE, SIDE)
LONG = 280_000
"""Elements of a row: past the limit as words, too."""

BEYOND = {
    "mean": Case((IMAGE,), {"dims": (2, 3), "keepdim": True}),
    "sum": Case(((2, 3, LONG),), {"dims": (2,), "keepdim": False}),
    "amax": Case((IMAGE,), {"dims": (1, 2, 3), "keepdim": False}),
    "amin": Case(((70_000, 2, 3),), {"dims": (0,), "keepdim": False}),
    "avg_pool2d": Case((IMAGE,), {**POOL, "kernel": WINDOW, "count_include_pad": True, "divisor_override": 0}),
    "adaptive_avg_pool2d": Case((IMAGE,), {"output_size": (1, 1)}),
    "max_pool2d": Case((IMAGE,), {**POOL, "kernel": (SIDE, SIDE - 1), "dilation": (1, 1)}),
    "adaptive_max_pool2d": Case((IMAGE,), {"output_size": (1, 1)}),
    "argmax": Case(((2, LONG),), {"dim": 1, "keepdim": False}),
    "argmin": Case(((LONG, 2),), {"dim": 0, "keepdim": True}),
    "softmax": Case(((2, LONG),), {"dim": 1}),
    "log_softmax": Case(((LONG + 1, 2),), {"dim": 0}),
    "layer_norm": Case(((2, LONG), (LONG,), (LONG,)), {"eps": 1e-5}),
    "rms_norm": Case(((2, LONG), (LONG,)), {"eps": 1e-5}),
    "group_norm": Case(((1, 2, LONG + 1), (2,), (2,)), {"eps": 1e-5, "groups": 2}),
    "cumsum": Case(((2, LONG),), {"dim": 1}),
    "row_scale": Case(((2, LONG),)),
    "matmul": Case(((9, LONG), (LONG, 3))),
    "linear": Case(((9, LONG), (5, LONG), (5,))),
    "conv2d": Case(((1, 4, SIDE, SIDE), (5, 4, SIDE, SIDE), (5,)), {**CONV, "groups": 1}),
    "conv_transpose2d": Case(
        ((1, 4, 2, 3), (3, 4, SIDE, SIDE), (3,)),
        {"stride": (1, 1), "padding": (149, 149), "output_padding": (0, 0), "dilation": (1, 1), "groups": 1},
    ),
}
"""A call of every operator with a window or a reduction that takes one thread, or a word's one, past the limit."""

QUADRATIC = {"rank", "ranked"}
"""Whose work grows with the square of a row: such a call takes a software adapter minutes. Teams share their loop as
that of argmax (kernels/lib/share.py)."""


RUNNING = {"cumprod"}
"""Whose kernel is that of cumsum."""


SEQUENTIAL = {"lstm", "gru"}
"""Whose steps wait for each other, so that no team shares them: a layer of too many is refused."""


WRITTEN = {"update", "update_rows"}
"""Whose threads walk through a list of places: one of too many is refused."""


def bounded(op: Op) -> bool:
    """Whether the turns of some kernel of an operator grow with the call."""
    return any(kernel.turns is not no_turns for kernel in op.kernels)


def test_every_operator_with_a_window_or_a_reduction_is_tested() -> None:
    """An int8 form is reached from its float operator."""
    made = {op.name for op in OPS.values() if bounded(op) and op.name.startswith(("q8ta_", "q16ta_"))}
    others = QUADRATIC | RUNNING | SEQUENTIAL | WRITTEN
    assert {op.name for op in OPS.values() if bounded(op)} - made == BEYOND.keys() | others


def run_beyond(graph: Graph, inputs: dict[str, Array], device: Device, tolerance: float) -> None:
    """The kernel of the rules, and every team in a layout, give the reference's result; one thread would not."""
    (node,) = graph.nodes
    call, expected = graph.call(node), reference.run(graph, inputs)[graph.outputs[0]]
    size = max(float(np.abs(expected).max()), 1.0)
    rows = all("rows" in kernel.linked(call)[0] for kernel in OPS[node.op].kernels)  # by teams, however short
    assert rows or any(
        kernel.turns(call) > LOOP_TURNS for kernel in OPS[node.op].kernels if kernel.supports(call, BASELINE)
    )
    teams = {plan.steps[0].variant.kernel: plan for _, plan in harness.plans(graph, 0)}
    plans = [(kernel.name, plan) for kernel, plan in teams.items() if "share" in kernel.linked(call)[0]]
    for name, plan in (("by the rules", None), *plans):
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * size, err_msg=name)


@pytest.mark.parametrize("name", BEYOND)
def test_float(name: str, device: Device) -> None:
    op, case = OPS[name], BEYOND[name]
    run_beyond(*op_graphs.float_graph(op, case), device, 10 * op.tolerance)


@pytest.mark.parametrize("height", [21_503, 21_504, 32_000])
@pytest.mark.parametrize("name", ["avg_pool2d", "max_pool2d"])
def test_narrow_windows(name: str, height: int, vulkan: Device) -> None:
    """Of one column: the inner loop ends as often as it turns, which counts. The first height is one thread's last."""
    attrs = {n: v for n, v in BEYOND[name].attrs.items() if n != "kernel"}
    case = Case(((1, 1, height + 1, 1),), {**attrs, "kernel": (height, 1)})
    graph, inputs = op_graphs.float_graph(OPS[name], case)
    inputs["x0"] = np.linspace(0, 1, height + 1, dtype=np.float32).reshape(1, 1, -1, 1)
    plan = sync_layouts(graph, replace(BASELINE, shares_memory=False))
    assert plan.steps[0].variant.kernel.name.endswith("shared") == (height > 21_503)
    (found,) = harness.run_poisoned(graph, inputs, plan, vulkan)
    np.testing.assert_allclose(found, reference.run(graph, inputs)["y"], rtol=1e-4)


BOUNDED_INT8 = ("matmul",)
"""Operators whose int8 form takes no call as long: its sums could pass int32."""


@pytest.mark.parametrize("name", [name for name in BEYOND if OPS[name].int8 and name not in BOUNDED_INT8])
def test_int8(name: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 mismatches. Values are small, so that no sum could pass int32."""
    monkeypatch.setattr(op_graphs, "extremes", lambda g, shape, *_: g.integers(-16, 16, shape, dtype=np.int8))
    graph, inputs = op_graphs.int8_graph(OPS[name], BEYOND[name], op_graphs.SETTINGS[0])
    assert not graph.notes
    run_beyond(graph, inputs, device, 0.0)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("q8ta_mean", {"dims": (2, 3)}),
        ("q8ta_sum", {"dims": (2, 3)}),
        ("q8ta_adaptive_avg_pool2d", {"output_size": (1, 1)}),
    ],
)
def test_a_sum_that_could_pass_int32_has_no_integer_form(name: str, attrs: dict[str, Any]) -> None:
    """A model file may ask for one."""
    attrs = {"keepdim": True, "lo": -128, "hi": 127, "ratio": 1.0, **attrs}
    fits, passes = (TensorType((1, 1, 1 << 11, height), INT8X4, QParams(1.0, 0)) for height in (4000, 4096))
    assert OPS[name].infer((fits,), attrs) == ((1, 1, 1, 1), INT8X4)
    with pytest.raises(GraphError, match=r"a sum of \d+ elements could pass int32"):
        OPS[name].infer((passes,), attrs)


def layer(op: Op, int8: bool, steps: int) -> tuple[Graph, dict[str, Array]]:
    """A recurrent layer of 64 units, whose weights are small, so that differences of rounding do not grow."""
    gates, states = op.cases[0].shapes[1][0] // op.cases[0].shapes[1][1], op.cases[0].shapes[3:]
    case = Case(((steps, 1, gates * 64), (gates * 64, 64), (gates * 64,), *((1, 64),) * len(states)), op.cases[0].attrs)
    graph, inputs = op_graphs.int8_graph(op, case, op_graphs.SETTINGS[0]) if int8 else op_graphs.float_graph(op, case)
    if not int8:
        graph.constants["c1"] /= np.float32(64)
    return graph, inputs


@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_layers_of_as_many_steps_as_a_thread_may_take(name: str, int8: bool, vulkan: Device) -> None:
    """All of them are taken, and one more is refused."""

    def turns(steps: int) -> int:
        graph, _ = layer(OPS[name], int8, steps)
        (node,) = graph.nodes
        return OPS[node.op].kernels[0].turns(graph.call(node))

    most = 1 + (LOOP_TURNS - turns(1)) // (turns(2) - turns(1))
    graph, inputs = layer(OPS[name], int8, most)
    expected = reference.run(graph, inputs)["y"]
    (found,) = harness.run_poisoned(graph, inputs, None, vulkan)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if int8 else 1e-5)
    with pytest.raises(DeviceError, match="loop turns of a thread"):
        sync_layouts(layer(OPS[name], int8, most + 1)[0], BASELINE)


@pytest.mark.parametrize("count", [LOOP_TURNS, LOOP_TURNS + 1])
def test_rows_written_at_as_many_places_as_a_thread_may_take(count: int) -> None:
    """One more is refused."""
    graph, _ = op_graphs.float_graph(OPS["update"], Case(((2, 3), (count, 3), (count,)), {"dim": 0, "from_end": False}))
    if count == LOOP_TURNS:
        assert sync_layouts(graph, BASELINE).steps
        return
    with pytest.raises(DeviceError, match="loop turns of a thread"):
        sync_layouts(graph, BASELINE)


@pytest.mark.parametrize("target", [BASELINE, SOFTWARE], ids=lambda target: target.name)
@pytest.mark.parametrize("name", [name for name in BEYOND if not name.startswith(("softmax", "log_softmax"))])
def test_teams_run_only_where_one_thread_may_not(name: str, target: Target) -> None:
    """A plan takes no team for a call of ordinary size: ResNet-50's max_pool by teams took 5 ms, by 4C words 0.07."""
    op = OPS[name]
    graphs = [op_graphs.float_graph(op, op.cases[0])[0]]
    if op.int8:
        graphs.append(op_graphs.int8_graph(op, op.cases[0], op_graphs.SETTINGS[0])[0])
    for graph in graphs:
        names = [step.variant.kernel.name for step in sync_layouts(graph, target).steps]
        assert not [found for found in names if found.endswith("shared")]


def test_what_no_kernel_can_turn_is_refused() -> None:
    case = Case(((1, 7_000_001),), {"dim": 1})
    graph = Graph(["x"], ["y"], [Node("softmax", ("x",), "y", case.attrs)])
    graph.types = dict.fromkeys(("x", "y"), TensorType(case.shapes[0]))
    with pytest.raises(DeviceError, match="loop turns of a thread"):
        sync_layouts(graph, BASELINE)
    assert sync_layouts(graph, replace(BASELINE, loop_turns=1 << 17)).steps


def test_the_probe_finds_a_device_that_ends_loops_earlier(device: Device) -> None:
    assert probe.loop_turns(device) == LOOP_TURNS
    assert probe.loop_turns(device, 1 << 20) > 1 << 15


def test_a_pool_over_a_large_image_through_the_public_call(device: Device) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.AdaptiveAvgPool2d(1)).eval()
    x = torch.randn(1, 3, SIDE, SIDE)
    model = q8.compile(q8.quantize(network, (x,), calibration=[x]))
    with q8.Session(model, device=device) as session, q8.Session(model, device="reference") as expected:
        np.testing.assert_array_equal(session(x), expected(x))
    float_model = q8.compile(torch.export.export(network, (x,)))
    with q8.Session(float_model, device=device) as session:
        np.testing.assert_allclose(session(x), network(x).detach().numpy(), rtol=1e-4, atol=1e-5)
