"""A small model made without torch: what the tests of files, sessions and the command line load and run."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from q8ta_wgpu import Session
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.size import BATCH, UNBOUNDED, Dynamic, Size
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes import run_passes

SHAPE = (2, 5, 6, 7)
CHANNELS = 6
X, MIDDLE, SUM = QParams(0.05, 3), QParams(0.11, -20), QParams(0.13, 7)


def small_model(channels: int = SHAPE[1]) -> Model:
    """A quantized convolution with a residual, a table and a second output: {'y': y, 'parts': (middle,)}."""
    return Model(run_passes(_graph(channels)), Structure({"dict": {"y": 0, "parts": {"tuple": [1]}}}))


def of_any_batch(graph: Graph) -> None:
    """Says of a graph that the first dimension of its input x may have any size."""
    size = Size({(BATCH,): 1}, {BATCH: graph.types["x"].shape[0]})
    graph.dynamic = Dynamic({BATCH: (1, UNBOUNDED)}, {("x", 0): size})


def small_input(seed: int = 0) -> Array:
    """An input of the small model."""
    return np.random.default_rng(seed).normal(0, 2, SHAPE).astype(np.float32)


def one_node(op: str, shape: tuple[int, ...], dtype: str = FLOAT32, inputs: int = 1) -> Model:
    """y = op(x0, x1, ...) on one dtype, for tests that need no particular network."""
    q = QParams(0.1, 3) if dtype == INT8X4 else None
    names = [f"x{i}" for i in range(inputs)]
    graph = Graph(inputs=names, outputs=["y"])
    graph.types = {name: TensorType(shape, dtype, q) for name in (*names, "y")}
    graph.nodes = [Node(op, tuple(names), "y", {"alpha": 1.0} if op == "add" else {})]
    return Model(graph, Structure(0))


@cache
def _expected() -> Any:
    return Session(small_model(), "reference")(small_input())


def same_bytes(found: Any, expected: Any = None) -> None:
    """Both outputs of the small model are those expected: of the reference on `small_input()`, if no others are."""
    expected = _expected() if expected is None else expected
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["parts"][0], expected["parts"][0])


def _graph(channels: int) -> Graph:
    generator = np.random.default_rng(7)
    graph = Graph(inputs=["x"], outputs=["y", "middle"])
    result = (SHAPE[0], CHANNELS, *SHAPE[2:])
    graph.types["x"] = TensorType((SHAPE[0], channels, *SHAPE[2:]))
    _convolution(graph, generator, "x", "first", channels)
    _convolution(graph, generator, "first", "second", CHANNELS)
    _node(graph, "add", ("second", "first"), "sum", TensorType(result), {"alpha": 1.0})
    _requantize(graph, "sum", SUM)
    table = graph.add_constant("table", generator.integers(-128, 128, 256).astype(np.int8))
    _node(graph, "q8ta_table", ("sum.q", table), "looked", TensorType(result, INT8X4, MIDDLE))
    _node(graph, "dequantize", ("looked",), "y", TensorType(result))
    _node(graph, "dequantize", ("first.q",), "middle", TensorType(result))
    return graph


def _convolution(graph: Graph, generator: np.random.Generator, x: str, name: str, depth: int) -> None:
    x_q = X if x == "x" else MIDDLE
    _requantize(graph, x, x_q)
    shape = (CHANNELS, depth, 3, 3)
    parts = (
        graph.add_constant(f"{name}.weight", generator.integers(-128, 128, shape).astype(np.int8)),
        graph.add_constant(f"{name}.scale", generator.uniform(0.001, 0.01, CHANNELS).astype(np.float32)),
        graph.add_constant(f"{name}.zero", np.zeros(CHANNELS, np.int32)),
    )
    bias = graph.add_constant(f"{name}.bias", generator.normal(0, 1, CHANNELS).astype(np.float32))
    _node(graph, "dequantize_weight", parts, f"{name}.w", TensorType(shape), {"axis": 0})
    attrs = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    inputs = (f"{x}.real", f"{name}.w", bias)
    _node(graph, "conv2d", inputs, f"{name}.float", TensorType((SHAPE[0], CHANNELS, *SHAPE[2:])), attrs)
    _requantize(graph, f"{name}.float", MIDDLE, name)


def _requantize(graph: Graph, x: str, q: QParams, name: str = "") -> None:
    """Adds `name`.q and its dequantization: `name`.real of a graph input, else `name` itself."""
    base, shape = name or x, graph.types[x].shape
    if f"{base}.q" not in graph.types:
        _node(graph, "quantize", (x,), f"{base}.q", TensorType(shape, INT8X4, q), {"lo": -128, "hi": 127})
    real = name or f"{x}.real"
    if real not in graph.types:
        _node(graph, "dequantize", (f"{base}.q",), real, TensorType(shape))


def _node(
    graph: Graph, op: str, inputs: tuple[str, ...], output: str, t: TensorType, attrs: dict[str, object] | None = None
) -> None:
    graph.types[output] = t
    graph.nodes.append(Node(op, inputs, output, attrs or {}, source=f"small.{output}"))
