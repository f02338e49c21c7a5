"""Chains of elementwise operators between two stored tensors: one dispatch, rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan
from q8ta_wgpu.runtime.device import Device
from testbed import epilogue_graphs, harness, op_graphs
from testbed.harness import stages_of
from testbed.sample import EVERYTHING, in_turn
from tests import oracle

IMAGE = (2, 5, 3, 7)
CHAINS: dict[str, tuple[Shape, ...]] = {
    # operators, those that read another tensor with its shape: one, or what broadcasts to the first operand's
    "batch_norm prelu": (IMAGE,),
    "batch_norm silu": ((3, 8),),
    "batch_norm relu": ((2, 6, 11),),
    "prelu": ((1, 17, 4, 4),),
    "prelu relu": ((3, 13),),
    "add batch_norm prelu": (IMAGE, IMAGE),
    "add batch_norm": ((2, 8, 4, 4), (2, 8, 1, 1)),
    "add hardswish": ((7, 1), (3, 1, 5)),
    "add prelu clamp": ((2, 3, 2, 3, 5), (2, 3, 2, 3, 5)),
    "mul add": (IMAGE, IMAGE, IMAGE),
    "mul add hardswish": ((2, 8, 4, 4), (2, 8, 1, 1), (2, 8, 4, 4)),
    "mul batch_norm add prelu": ((2, 6, 3, 5), (2, 6, 3, 5), (2, 6, 3, 5)),
    "batch_norm stored add": ((2, 6, 3, 5), (2, 6, 3, 5)),  # an int8 value between, in registers
}
STAGES = {"hardswish": "curve", "silu": "curve", "prelu": "slopes"}
WIDTHS = {
    # of the operands in order, the last one for all that follow, and of the result
    "streams": ((INT16X4,), INT16X4),
    "first": ((INT16X4, INT8X4), INT8X4),
    "others": ((INT8X4, INT16X4), INT16X4),
    "result": ((INT8X4,), INT16X4),
    "float32": ((FLOAT32,), INT8X4),
    "float32 to int16": ((FLOAT32,), INT16X4),
}
SETTINGS = {"random": 0.02, "saturate": 0.004, "ties": 2.0**-5}


def chain(
    operators: str, zeros: tuple[int, ...], mode: str, width: str = "", shapes: Sequence[Shape] = ()
) -> tuple[Graph, dict[str, Array]]:
    """dequantizes -> operators -> quantize, unfused, and its inputs: int8, or as one of WIDTHS says."""
    dtypes, result = WIDTHS[width] if width else ((INT8X4,), INT8X4)
    generator = op_graphs.rng(operators, zeros, mode)
    graph, inputs, shapes = Graph(outputs=["y"]), dict[str, Array](), list(shapes or CHAINS[operators])

    def real() -> str:
        position, shape = len(graph.inputs), shapes[len(graph.inputs)]
        if FLOAT32 in dtypes:
            graph.inputs.append("x0")
            graph.types["x0"] = TensorType(shape)
            inputs["x0"] = generator.normal(0.5, 3, shape).astype(np.float32)
            return "x0"
        scale = 2.0**-4 if mode == "ties" else float(np.float32(generator.uniform(0.01, 0.08)))
        q = QParams(scale, zeros[min(position, 1)])
        if dtypes[min(position, len(dtypes) - 1)] == INT16X4:
            q = QParams(scale / 256, 40 * q.zero, INT16X4)
        graph.inputs.append(f"x{position}")
        graph.types[f"x{position}"], graph.types[f"r{position}"] = TensorType(shape, q.dtype, q), TensorType(shape)
        graph.nodes.append(Node("dequantize", (f"x{position}",), f"r{position}"))
        inputs[f"x{position}"] = op_graphs.extremes(generator, shape, q.dtype)
        return f"r{position}"

    def numbers(channels: int, positive: bool = False) -> str:
        values = generator.normal(0, 1, channels) if mode != "ties" else generator.integers(-2, 3, channels)
        values = np.abs(values) + 0.5 if positive else values
        return graph.add_constant("numbers", values.astype(np.float32))

    last = real()
    shape = tuple(np.broadcast_shapes(*shapes))
    operands: tuple[str, ...]
    for operator in operators.split():
        if operator == "stored":
            between = QParams(2 * SETTINGS[mode], zeros[2])
            graph.types["stored"], graph.types["again"] = TensorType(shape, between.dtype, between), TensorType(shape)
            graph.nodes.append(Node("quantize", (last,), "stored", {"lo": -128, "hi": 127}))
            graph.nodes.append(Node("dequantize", ("stored",), "again"))
            last = "again"
            continue
        match operator:
            case "add" | "mul":
                operands, attrs = (last, real()), {"alpha": 1.0} if operator == "add" else {}
            case "batch_norm":
                parameters = (*(numbers(shape[1]) for _ in range(3)), numbers(shape[1], positive=True))
                operands, attrs = (last, *parameters), {"eps": 1e-5}
            case "prelu":
                operands, attrs = (last, numbers(shape[1])), {}
            case "clamp":
                operands, attrs = (last,), {"min": -0.75, "max": 1.5}
            case _:
                operands, attrs = (last,), {}
        last = graph.fresh(operator)
        graph.types[last] = TensorType(shape)
        graph.nodes.append(Node(operator, operands, last, attrs))
    q = QParams(SETTINGS[mode], zeros[2])
    if result == INT16X4:
        q = QParams(max(q.scale, 0.016) / 256, 256 * q.zero, INT16X4)  # beyond 2^19 steps a sum is not exact
    graph.types["y"] = TensorType(shape, q.dtype, q)
    low, high = q.range
    graph.nodes.append(Node("quantize", (last,), "y", {"lo": low, "hi": high - 3}))
    return graph, inputs


def fused(graph: Graph, operators: str) -> Graph:
    """The graph after the passes: one node."""
    found = run_passes(graph)
    assert len(found.nodes) == 1, found.notes
    (node,) = found.nodes
    first, *others = operators.split()
    wide = [graph.types[name].dtype == INT16X4 for name in (*graph.inputs, "y")]
    name = "q8ta_batch_norm" if first in ("batch_norm", "prelu") else f"q8ta_{first}_chain"
    name = "q8ta_quantize_channels" if graph.types["x0"].q is None else name
    name = "q16ta_add_chain" if first == "add" and any(wide[:2]) else name
    rounds = "requantize_int16" if wide[-1] else "requantize"
    if "stored" in others:
        stages = [rounds, "add"]
    else:
        stages = ["scaled_residual" if any(wide[-2:]) else "residual"] * ("add" in others)
        stages += [*(STAGES[o] for o in operators.split() if o in STAGES), rounds]
    assert (node.op, stages_of(node)) == (name, " ".join(stages)), found.notes
    return found


def graphs() -> Iterator[Graph]:
    """The fused graph of every chain, and of weighted sums with slopes."""
    for operators in CHAINS:
        yield fused(chain(operators, (3, -7, 5), "random")[0], operators)
    for operators, width in WIDE:
        yield fused(chain(operators, (3, -7, 5), "random", width)[0], operators)
    for name, index in SLOPED:
        yield run_passes(sloped(name, index)[0])


SLOPED = (("conv2d", 0), ("linear", 1), ("conv_transpose2d", 0))


def sloped(name: str, index: int) -> tuple[Graph, dict[str, Array]]:
    """A weighted sum, an addend and a prelu, unfused."""
    op = OPS[name]
    graph, inputs = epilogue_graphs.unfused_epilogue(op, op.cases[index], op_graphs.SETTINGS[0], "residual requantize")
    *before, rounds = graph.nodes
    shape = graph.types[rounds.inputs[0]].shape
    slopes = graph.add_constant("slopes", op_graphs.rng(name).normal(0, 1, shape[1]).astype(np.float32))
    graph.types["sloped"] = TensorType(shape)
    prelu = Node("prelu", (rounds.inputs[0], slopes), "sloped", {})
    graph.nodes = [*before, prelu, replace(rounds, inputs=("sloped",))]
    return graph, inputs


@pytest.mark.parametrize(("name", "index"), SLOPED)
def test_slopes_behind_a_weighted_sum(name: str, index: int, vulkan: Device) -> None:
    graph, inputs = sloped(name, index)
    found = run_passes(graph)
    (node,) = found.nodes
    assert (node.op, stages_of(node)) == (f"q8ta_{name}", "residual slopes requantize"), found.notes
    (y,) = graph.outputs
    values, near = oracle.run(graph, inputs, oracle.JOINED)
    apart = np.abs(reference.run(found, inputs)[y] - values[y].numpy())
    assert apart.max() <= 1
    assert not apart[~near[y].numpy()].any()
    _check(found, inputs, vulkan, list(harness.plans(found, index))[::8])


SETTINGS_OF = (((3, -7, 5), "random"), ((-128, 127, 127), "saturate"), ((0, 0, 0), "ties"))


@pytest.mark.parametrize("operators", CHAINS)
@pytest.mark.parametrize(("zeros", "mode"), SETTINGS_OF)
def test_the_reference_meets_torch(operators: str, zeros: tuple[int, int, int], mode: str) -> None:
    """As exact arithmetic rounds, but near ties."""
    _compare(*chain(operators, zeros, mode), operators, oracle.JOINED)


def _compare(graph: Graph, inputs: dict[str, Array], operators: str, tie: float) -> None:
    values, near = oracle.run(graph, inputs, tie)
    apart = np.abs(reference.run(fused(graph, operators), inputs)["y"] - values["y"].numpy())
    assert apart.max() <= sum(node.op == "quantize" for node in graph.nodes)
    assert not apart[~near["y"].numpy()].any()


@pytest.mark.parametrize("operators", CHAINS)
def test_the_kernel_is_the_reference(operators: str, vulkan: Device) -> None:
    """0 mismatches, in every sixth pair of layouts."""
    index = list(CHAINS).index(operators)
    for zeros, mode in SETTINGS_OF if EVERYTHING else (SETTINGS_OF[index % 2],):
        graph, inputs = chain(operators, zeros, mode)
        found = fused(graph, operators)
        _check(found, inputs, vulkan, in_turn(list(harness.plans(found, index)), index, 6))


@pytest.mark.parametrize("operators", ["add prelu", "add hardswish"])
def test_the_last_bits_of_terms_decide_some_of_many_sums(operators: str, vulkan: Device) -> None:
    """Terms that are rounded down give another result in one of these 65,536 sums."""
    graph, inputs = chain(operators, *SETTINGS_OF[0], "streams", [(256, 256)] * 2)
    found = fused(graph, operators)
    _check(found, inputs, vulkan, list(harness.plans(found, 0))[:1])


def _check(graph: Graph, inputs: dict[str, Array], device: Device, plans: list[tuple[str, Plan]]) -> None:
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    for name, plan in plans:
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(found, expected, err_msg=name)


WIDE = [
    (operators, width)
    for operators in CHAINS
    for width in WIDTHS
    if "stored" not in operators and ("float32" not in width or operators.startswith("batch_norm"))
]


@pytest.mark.parametrize(("operators", "width"), WIDE)
@pytest.mark.parametrize(("zeros", "mode"), SETTINGS_OF)
def test_the_reference_meets_torch_in_int16(operators: str, width: str, zeros: tuple[int, int, int], mode: str) -> None:
    _compare(*chain(operators, zeros, mode, width), operators, oracle.WIDE)


@pytest.mark.parametrize(("operators", "width"), WIDE)
def test_the_kernel_is_the_reference_in_int16(operators: str, width: str, device: Device) -> None:
    """0 mismatches, in a pair of layouts each."""
    index = WIDE.index((operators, width))
    graph, inputs = chain(operators, *SETTINGS_OF[index % 3], width)
    found = fused(graph, operators)
    plans = list(harness.plans(found, index))
    _check(found, inputs, device, [plans[index % len(plans)]])


def test_a_float_that_is_no_number(device: Device) -> None:
    """NaN counts as 0, infinities and what leaves int32 saturate, and 0 of an infinity is 0."""
    graph, inputs = chain("batch_norm prelu", (0, 0, 5), "random", "float32")
    gamma = next(name for name in graph.nodes[0].inputs if name in graph.constants)
    graph.constants[gamma][0] = 0
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0], np.float32)
    inputs["x0"][:] = special
    found = fused(graph, "batch_norm prelu")
    _check(found, inputs, device, list(harness.plans(found, 0))[:2])
    expected = reference.run(found, inputs)["y"]
    assert (expected[..., 0] == expected[..., 6]).all()
    assert (expected[:, 0] == expected[:1, :1, :1, 0]).all()
