"""Graphs that reach kernels: an operator's case, as a model would hold it, and operators that only fusion makes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import (
    BOOL,
    DTYPES,
    FLOAT32,
    INT8,
    INT8X4,
    INT16X4,
    INT32,
    RANGES,
    Attrs,
    Graph,
    Node,
    QParams,
    TensorType,
)
from q8ta_wgpu.ir.int8 import Recurrent, WeightedSum
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.program import known_results

_Q = QParams(0.0625, 3)
_WIDE = QParams(_Q.scale / 256, 300, INT16X4)


def graph_of(
    op: Op,
    case: Case,
    quantized: bool,
    image: bool,
    activation: str = "",
    int16: bool = False,
) -> Graph:
    """A case as a graph: on float values, `quantized` on int8 values, or as an `image` on floats quantized first.

    Constants are random. An `activation` is added before the quantize at the end. With `int16` operands and
    result are int16, where the operator takes and gives them.
    """
    reads = _WIDE if int16 and op.int8 and op.int8.reads_int16 else _Q
    gives = _WIDE if int16 and op.int8 and op.int8.gives_int16 else _Q
    graph, names = Graph(), list[str]()
    for position, shape in enumerate(case.shapes):
        operand = op.operand(position, case.attrs)
        if operand.constant:
            names.append(_constant_of(graph, op, case, position, quantized))
            continue
        q = op.int8.projected if isinstance(op.int8, Recurrent) else reads
        rounded = quantized and not operand.real
        dtype = q.dtype if (rounded and not image) or FLOAT32 not in operand.dtypes else FLOAT32
        dtype = INT32 if operand.dtypes == (INT32,) else dtype
        name = f"x{position}"
        graph.inputs.append(name)
        graph.types[name] = TensorType(shape, dtype, q if dtype in RANGES else None)
        if dtype == INT32:
            graph.values.set(name, bounds=(-(1 << 31), (1 << 31) - 1))
        if image and rounded:
            name = _requantized(graph, name, q)
        names.append(_appended(graph, "dequantize", name) if rounded else name)
    _, dtype = op.check(tuple(graph.types[name] for name in names), case.attrs)
    y = _appended(graph, op.name, names, case.attrs, _Q if dtype == INT8X4 else None)
    if activation:
        y = _appended(graph, activation, y)
    graph.outputs.append(_requantized(graph, y, gives) if quantized else y)
    return graph


def _constant_of(graph: Graph, op: Op, case: Case, position: int, quantized: bool) -> str:
    dtype, shape = op.operand(position, case.attrs).dtypes[0], case.shapes[position]
    if dtype in (INT8, INT32):
        return graph.add_constant("numbers", np.zeros(shape, DTYPES[dtype]))
    weight = quantized and position == 1 and isinstance(op.int8, WeightedSum | Recurrent)
    group = int(case.values.removeprefix("bits")) if case.values.startswith("bits") else 0
    return _constant(graph, position, shape, weight, group)


def runnable() -> Iterator[Graph]:
    """Runnable graphs of operators for which no case is given."""
    yield from (_rows_with_scales(), _written(), *known_results.attentions())


def fused() -> Iterator[Graph]:
    """Graphs that passes make one operator of: one that no program has."""
    yield from (_narrowed(), _normalized(), _masked(3), _masked(1), _moved(7, 1), _moved(32, 3), _expanded())


def _moved(channels: int, kernel: int) -> Graph:
    """A convolution that reads parts of two tensors. With a 1x1 window their channels are in another order, and some
    are stored as well; with a larger one a tensor is upsampled."""
    graph, shape = Graph(), (2, channels, 18, 26)
    small = (2, channels, 9, 13) if kernel > 1 else shape
    for name, size in (("a", shape), ("b", small)):
        graph.inputs.append(name)
        graph.types[name] = TensorType(size, INT8X4, _Q)
    other = "b"
    if kernel > 1:
        sizes: Attrs = {"scale": (2.0, 2.0), "size": (0, 0), "exact": False}
        other = _appended(graph, "upsample_nearest", "b", sizes)
    both = _appended(graph, "cat", ["a", other], {"dim": 1})
    if kernel == 1:
        both = _appended(graph, "channel_shuffle", both, {"groups": 2})
        first: Attrs = {"dim": 1, "start": 0, "step": 1, "extent": 0, "end": channels}
        graph.outputs.append(_appended(graph, "slice", both, first))
    weight = _constant(graph, 1, (21, 2 * channels, kernel, kernel), weight=True)
    read = [_appended(graph, "dequantize", both), weight]
    read.append(_constant(graph, 2, (21,), weight=False))
    attrs: Attrs = {"stride": (1, 1), "padding": (kernel // 2,) * 4, "dilation": (1, 1), "groups": 1}
    graph.outputs.append(_requantized(graph, _appended(graph, "conv2d", read, attrs), _Q))
    return graph


def _expanded() -> Graph:
    """A depthwise convolution that makes its image by the 1x1 convolution before it."""
    graph = Graph(["x"], types={"x": TensorType((2, 16, 9, 17), INT8X4, _Q)})
    attrs: Attrs = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    read = [_appended(graph, "dequantize", "x"), _constant(graph, 1, (24, 16, 1, 1), weight=True)]
    read.append(_constant(graph, 2, (24,), weight=False))
    image = _requantized(graph, _appended(graph, "conv2d", read, attrs), _Q)
    attrs = {**attrs, "padding": (1, 1, 1, 1), "groups": 24}
    read = [_appended(graph, "dequantize", image), _constant(graph, 3, (24, 1, 3, 3), weight=True)]
    read.append(_constant(graph, 4, (24,), weight=False))
    graph.outputs.append(_requantized(graph, _appended(graph, "conv2d", read, attrs), _Q))
    return graph


def _rows_with_scales() -> Graph:
    """Rows of float32 in int8, of which some saturate."""
    graph = Graph(["x"], types={"x": TensorType((5, 260))})
    scales = np.array([[2**23], [100 * 2**21], [2**28], [2**29], [2**30]], np.float32)
    inputs = ["x", graph.add_constant("scales", scales)]
    graph.outputs.append(_appended(graph, "quantize_rows", inputs, q=arithmetic.row_unit(None)))
    return graph


def _written() -> Graph:
    """Turned rows at all the places of a state."""
    shapes = {"x": (2, 7, 16), "cos": (7, 16), "sin": (7, 16)}
    graph = Graph(list(shapes), types={name: TensorType(shape, INT16X4, _WIDE) for name, shape in shapes.items()})
    places = graph.add_constant("places", np.array([3, 0, 6, 1, -2, 4, 2], np.float32))
    low, high = _WIDE.range
    factors = {f"{name}_multiplier": 2.0**-8 for name in ("cos", "sin")}
    attrs = {"pairs": False, "lo": low, "hi": high, **factors, "dim": 1, "extent": 7, "from_end": True}
    graph.outputs.append(_appended(graph, "q8ta_rotary_update", [*shapes, places], attrs, _WIDE))
    return graph


def _narrowed() -> Graph:
    """An int16 value requantized to int8."""
    graph = Graph(["x"])
    graph.types["x"] = TensorType((3, 257), INT16X4, QParams(0.05, -7, INT16X4))
    graph.outputs.append(_requantized(graph, _appended(graph, "dequantize", "x"), _Q))
    return graph


def _normalized() -> Graph:
    """A batch norm of a float32 input, quantized."""
    graph = Graph(["x"], types={"x": TensorType((2, 21, 5, 70))})
    numbers = (np.linspace(0.5, 1.5, 21), np.linspace(-1, 1, 21), np.linspace(-2, 2, 21), np.linspace(0.5, 2, 21))
    stored = [graph.add_constant(f"p{i}", each.astype(np.float32)) for i, each in enumerate(numbers)]
    y = _appended(graph, "batch_norm", ["x", *stored], {"eps": 1e-5})
    graph.outputs.append(_requantized(graph, y, _Q))
    return graph


def _masked(dim: int) -> Graph:
    """A softmax over the elements that bools select."""
    shape = (2, 21, 5, 70)
    graph = Graph(["x", "chosen"])
    graph.types["x"] = TensorType(shape, INT8X4, _Q)
    graph.types["chosen"] = TensorType(shape, INT8X4, BOOL)
    steps = np.arange(256) * _Q.scale
    powers = np.rint(np.stack((np.exp(-256 * steps) * 2.0**31, np.exp(-steps) * (2.0**32 - 1)))).astype(np.uint32)
    inputs = ["x", graph.add_constant("powers", powers.view(np.int32)), "chosen"]
    attrs = {"dim": dim, "even": True, "inverse": 256.0, "lo": -128, "hi": 127}
    graph.outputs.append(_appended(graph, "q8ta_softmax", inputs, attrs, QParams(1 / 256, -128)))
    return graph


def _requantized(graph: Graph, x: str, q: QParams) -> str:
    low, high = q.range
    return _appended(graph, "quantize", x, {"lo": low, "hi": high}, q)


def _appended(
    graph: Graph, op: str, inputs: str | list[str], attrs: Attrs | None = None, q: QParams | None = None
) -> str:
    """The value of a node added at the end."""
    node = Node(op, (inputs,) if isinstance(inputs, str) else tuple(inputs), graph.fresh(op), attrs or {})
    graph.types[node.output] = infer(graph, node, q)
    graph.nodes.append(node)
    return node.output


def _constant(graph: Graph, position: int, shape: tuple[int, ...], weight: bool, group: int = 0) -> str:
    """Random numbers around 1. The weight of a quantized sum is int8 with a scale for each row, or of 4 bits
    with a factor for each `group` of inputs; it spreads the sums as its operands are spread."""
    rng = np.random.default_rng(position)
    if not weight:
        return graph.add_constant(f"c{position}", rng.uniform(0.5, 1.5, shape).astype(np.float32))
    spread = 1 / (74 * math.prod(shape[1:]) ** 0.5)
    scales = rng.uniform(0.5 * spread, spread, shape[0])
    weights = rng.integers(-127, 128, shape)
    if group:
        factors = rng.integers(1, 17, (shape[0], -(-shape[1] // group)))
        weights = weights // 16 * np.repeat(factors, group, axis=1)[:, : shape[1]]
    parts = [
        graph.add_constant("weight", weights.astype(np.int16 if group else np.int8)),
        graph.add_constant("scale", scales.astype(np.float32)),
        graph.add_constant("zero", np.zeros(shape[0], np.int32)),
    ]
    return _appended(graph, "dequantize_weight", parts, {"axis": 0})
