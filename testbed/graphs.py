"""Graphs of one node for the benchmarks, with weights that fill the int8 range, and the plans that run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, RANGES, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import Layout, Shape, word_count
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.attention import COARSE, powers
from q8ta_wgpu.kernels.attention.sizes import STRIDES
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Stage
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Residual
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step, sync_layouts
from q8ta_wgpu.passes.layout_sync.limits import allowed, input_layouts
from q8ta_wgpu.runtime.device import Device

ROUNDED = Epilogue((Requantize(-128, 127),))


def one_node(
    op: str, shapes: Sequence[Shape], attrs: dict[str, Any], constants: Sequence[Array] = (), dtype: str = INT8X4
) -> Graph:
    """A graph of one node: activations x0, x1, ... of `shapes` and `dtype`, constants c0, c1, ... after the first."""
    graph = Graph()
    for i, shape in enumerate(shapes):
        graph.types[f"x{i}"] = TensorType(shape, dtype, QParams(0.02, -3 + i) if dtype == INT8X4 else None)
        graph.inputs.append(f"x{i}")
    stored = [graph.add_constant(f"c{i}", c) for i, c in enumerate(constants)]
    inputs = (graph.inputs[0], *stored, *graph.inputs[1:])
    shape, result = OPS[op].check(tuple(graph.types[n] for n in inputs), attrs)
    graph.types["y"] = TensorType(shape, result, QParams(0.04, 5) if result == INT8X4 else None)
    graph.nodes.append(Node(op, inputs, "y", attrs))
    graph.outputs.append("y")
    return graph


def weights(shape: Shape, zero: int = -3) -> tuple[Array, ...]:
    """Random int8 weights of `shape`, multiplier, offset and correction, such that results fill the int8 range."""
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, shape, dtype=np.int8)
    channels, depth = shape[0], int(np.prod(shape[1:]))
    multiplier = rng.uniform(0.5, 1.5, channels).astype(np.float32) * np.float32(2**14 * 60 / (73 * 73 * depth**0.5))
    offset = rng.integers(-(2**19), 2**19, channels).astype(np.int32)
    correction = (zero * w.reshape(channels, -1).sum(1, dtype=np.int64)).astype(np.int32)
    return w, multiplier, offset, correction


def bits(shape: tuple[int, int], group: int) -> tuple[Array, ...]:
    """The same for weights of 4 bits (outputs, inputs) with a factor for each `group` inputs. The zero point is 0."""
    rng = np.random.default_rng(0)
    outputs, inputs = shape
    packed = rng.integers(-128, 128, (outputs, inputs // group, 1 + group // 2), dtype=np.int8)
    packed[..., 0] |= 64
    multiplier = np.full(outputs, 2**14 / (73 * 5 * 73 * inputs**0.5), np.float32)
    return packed, multiplier, np.zeros(outputs, np.int32), np.zeros(outputs, np.int32)


def conv(x: Shape, channels: int, kernel: int, stride: int = 1, groups: int = 1, residual: bool = False) -> Graph:
    """A q8ta_conv2d with padding kernel // 2, with or without a residual."""
    attrs: dict[str, Any] = {
        "stride": (stride, stride),
        "padding": (kernel // 2,) * 4,
        "dilation": (1, 1),
        "groups": groups,
    }
    shapes: list[Shape] = [x]
    stages: tuple[Stage, ...] = ROUNDED.stages
    if residual:
        stages = (Residual(9000), *stages)
        shapes.append((x[0], channels, -(-x[2] // stride), -(-x[3] // stride)))
    stored = weights((channels, x[1] // groups, kernel, kernel))
    return one_node("q8ta_conv2d", shapes, {**attrs, "epilogue": Epilogue(stages)}, stored)


def linear(m: int, k: int, n: int, group: int = 0) -> Graph:
    """A q8ta_linear with weights of 8 bits, or of 4 bits in groups of `group` inputs."""
    if not group:
        return one_node("q8ta_linear", [(m, k)], {"epilogue": ROUNDED}, weights((n, k)))
    graph = one_node("q8ta_linear", [(m, k)], {"epilogue": ROUNDED}, bits((n, k), group))
    graph.types["x0"] = TensorType((m, k), INT8X4, QParams(0.02, 0))
    return graph


def product(a: Shape, b: Shape) -> Graph:
    """A product of two activations, rounded to int8. Both have the summed dimension last."""
    multiplier = float(np.float32(2**14 * 60 / (73 * 73 * a[-1] ** 0.5)))
    return one_node("q8ta_matmul", (a, b), {"multiplier": multiplier, "epilogue": ROUNDED})


def attention(batch: int, heads: int, tokens: int, depth: int) -> Graph:
    """Attention with queries, keys and values side by side in the result of one linear."""
    row = 3 * heads * depth
    strides = {name: (i * heads * depth, tokens * row, depth, row) for i, name in enumerate(STRIDES)}
    multipliers = {"score_multiplier": float(np.float32(COARSE.steps / (73.0**2 * depth**0.5))), "multiplier": 2.0**-23}
    attrs = {
        "sizes": (batch, heads, tokens, tokens, depth, depth, heads),
        **strides,
        **multipliers,
        "even": False,
        "lo": -128,
        "hi": 127,
    }
    graph = Graph(["x0"], ["y"])
    graph.types["x0"] = TensorType((batch, tokens, row), INT8X4, QParams(0.02, 0))
    graph.types["y"] = TensorType((batch, tokens, heads * depth), INT8X4, QParams(0.04, 5))
    constants = {"powers": powers(), "bias": np.zeros((1, 1, 1, 1), np.int32)}
    inputs = ("x0", "x0", "x0", *(graph.add_constant(name, array) for name, array in constants.items()))
    graph.nodes = [Node("q8ta_attention", inputs, "y", attrs)]
    return graph


def plan_for(graph: Graph, kernel: Kernel, layout: Layout | None = None) -> Plan:
    """The plan of one node with `kernel`, in `layout` where that is allowed, else in the kernel's first layouts."""
    node = graph.nodes[0]
    call = graph.call(node)
    picked = [layout if layout in o else o[0] if o else None for o in input_layouts(kernel, call)]
    outs = allowed(kernel.output, call.output.dtype)
    out = layout if layout is not None and layout in outs else outs[0]
    placed = {name: chosen for name, chosen in zip(node.inputs, picked, strict=True) if chosen is not None}
    return Plan((Step(node, call, Variant(kernel, tuple(picked), out)),), {**placed, node.output: out})


def candidates(graph: Graph, device: Device) -> Iterator[Kernel]:
    """All kernels that can run the graph's node."""
    node = graph.nodes[0]
    call = graph.call(node)
    return (kernel for kernel in OPS[node.op].kernels if kernel.runs(call, device.target))


def chosen(graph: Graph, device: Device) -> Kernel:
    """The kernel that layout sync chooses for the graph's node."""
    return next(step.variant.kernel for step in sync_layouts(graph, device.target).steps if step.node.output == "y")


def random_words(graph: Graph, plan: Plan) -> list[Array]:
    """Random bytes for every input."""
    rng = np.random.default_rng(1)
    words = []
    for name in graph.inputs:
        t, layout = graph.types[name], plan.layouts.get(name, Layout.DEFAULT)
        words.append(
            rng.integers(0, 1 << 32, word_count(t.shape, layout), dtype=np.uint32)
            if layout.is_int8
            else rng.normal(0, 1, t.shape).astype(np.float32)
        )
    return words


def transposed(x: Shape, channels: int, kernel: int, stride: int, padding: int) -> Graph:
    """A q8ta_conv_transpose2d whose result has the input's size times the stride."""
    missing = stride - (kernel - 2 * padding)
    attrs: dict[str, Any] = {
        "stride": (stride, stride),
        "padding": (padding, padding),
        "output_padding": (max(missing, 0),) * 2,
        "dilation": (1, 1),
        "groups": 1,
        "epilogue": ROUNDED,
    }
    weight, multiplier, offset, _ = weights((channels, x[1], kernel, kernel))
    # -3 is the zero point of one_node's inputs. An output position sums every stride-th tap.
    sums = [
        weight[:, :, y::stride, z::stride].sum((1, 2, 3), dtype=np.int64) for y in range(stride) for z in range(stride)
    ]
    return one_node(
        "q8ta_conv_transpose2d", [x], attrs, (weight, multiplier, offset, (-3 * np.array(sums)).astype(np.int32))
    )


def macs(graph: Graph) -> int:
    """Multiply-accumulates of the graph's first node."""
    return OPS[graph.nodes[0].op].macs(graph.call(graph.nodes[0]))


def between_integers(
    op: str, shapes: tuple[Shape, ...], constants: tuple[Shape, ...], attrs: dict[str, Any], dtype: str
) -> Graph:
    """The runnable graph of an operator between integers of a dtype."""
    rng, graph, inputs = np.random.default_rng(0), Graph(), []
    step = 4.0 / RANGES[dtype][1]
    for i, shape in enumerate(shapes):
        graph.types |= {f"x{i}": TensorType(shape, dtype, QParams(step, 0, dtype)), f"r{i}": TensorType(shape)}
        graph.inputs.append(f"x{i}")
        graph.nodes.append(Node("dequantize", (f"x{i}",), f"r{i}"))
        inputs.append(f"r{i}")
    for i, shape in enumerate(constants):
        inputs.append(
            _dequantized(graph, rng, shape) if len(shape) > 1 else graph.add_constant(f"c{i}", _near_one(rng, shape))
        )
    shape, _ = OPS[op].check(tuple(graph.types[name] for name in inputs), attrs)
    graph.types |= {"real": TensorType(shape), "y": TensorType(shape, dtype, QParams(step, 0, dtype))}
    low, high = RANGES[dtype]
    graph.nodes += [Node(op, tuple(inputs), "real", attrs), Node("quantize", ("real",), "y", {"lo": low, "hi": high})]
    graph.outputs.append("y")
    return run_passes(graph)


def _near_one(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)


def _dequantized(graph: Graph, rng: np.random.Generator, shape: Shape) -> str:
    """Adds a dequantized int8 weight to a graph; returns its name."""
    scale = np.full(shape[0], 0.01 / np.prod(shape[1:]) ** 0.5, np.float32)
    parts: tuple[Array, ...] = (rng.integers(-127, 128, shape, dtype=np.int8), scale, np.zeros(shape[0], np.int32))
    names = tuple(graph.add_constant(f"w{i}", part) for i, part in enumerate(parts))
    graph.types["w"] = TensorType(shape)
    graph.nodes.append(Node("dequantize_weight", names, "w", {"axis": 0}))
    return "w"
