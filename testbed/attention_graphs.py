"""Attention in int8 and the moves around it, as modules become them: where operands and results lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, INT8X4, INT16X4, RANGES, Array, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.attention import COARSE, EXCLUDED, FINE, powers
from q8ta_wgpu.kernels.attention.sizes import STRIDES
from q8ta_wgpu.kernels.norm import q8ta_softmax
from q8ta_wgpu.passes.lower import lower
from testbed import harness, op_graphs


@dataclass(frozen=True)
class Chain:
    """One attention.

    Attributes:
        form: 'slices' and 'planes' of one packed value, 'values' of their own, 'matrices' without heads, or 'shared':
            heads of keys and values that serve two of queries.
        sizes: batch, heads, queries, keys, depth, width.
        zeros: zero points of queries, keys, values and the result.
        bias: shape of what is added to scores; with EXCLUDED above its diagonal, and everywhere in its first row.
        mask: shape of bools that say what takes part, if any are given.
        fine: dtype of the result of one with weights of fourteen bits.
        even: whether rows of which the mask leaves nothing have equal shares.
    """

    form: str
    sizes: tuple[int, int, int, int, int, int]
    zeros: tuple[int, int, int, int]
    bias: tuple[int, int, int, int] = (1, 1, 1, 1)
    mask: tuple[int, ...] = ()
    fine: str = ""
    even: bool = False


CHAINS = (
    Chain("slices", (4, 3, 19, 19, 8, 8), (3, 3, 3, 5), bias=(2, 1, 1, 19)),
    Chain("planes", (1, 2, 67, 67, 32, 32), (-128, -128, -128, -128), bias=(1, 1, 67, 67)),
    Chain("values", (1, 2, 37, 150, 16, 16), (127, -128, 127, 127)),
    Chain("values", (2, 1, 33, 65, 56, 20), (0, 11, -128, -128), mask=(2, 1, 33, 65), even=True),
    Chain("matrices", (1, 3, 16, 64, 4, 84), (-5, 127, 0, -1), bias=(1, 3, 16, 64)),
    Chain("slices", (2, 3, 19, 19, 8, 8), (3, 3, 3, 5), bias=(2, 1, 1, 19), fine=INT8X4),
    Chain("values", (1, 2, 37, 150, 16, 16), (127, -128, 127, 12700), fine=INT16X4),
    Chain("values", (2, 1, 33, 65, 56, 20), (0, 11, -128, -128), mask=(2, 1, 1, 65), fine=INT8X4),
    Chain("matrices", (1, 3, 16, 64, 4, 84), (-5, 127, 0, -1), bias=(1, 3, 16, 64), fine=INT16X4),
    Chain("shared", (2, 6, 19, 37, 16, 16), (3, -128, 127, 5), bias=(1, 1, 19, 37)),
    Chain("shared", (2, 4, 3, 67, 16, 20), (127, 3, -128, -5), mask=(2, 1, 1, 67), fine=INT8X4, even=True),
    Chain("values", (2, 3, 1, 530, 16, 20), (127, -128, 3, 5), mask=(2, 1, 1, 530), even=True),
    Chain("values", (2, 4, 3, 67, 16, 16), (3, -128, 127, 5), bias=(1, 1, 3, 67), fine=INT16X4),
    Chain("shared", (1, 2, 37, 150, 16, 16), (3, -128, 127, 5), mask=(1, 1, 37, 150)),
)


class _Builder:
    def __init__(self) -> None:
        self.graph, self.inputs = Graph(), dict[str, Array]()
        self.rng = np.random.default_rng(0)

    def given(self, name: str, shape: Shape, zero: int) -> str:
        self.graph.inputs.append(name)
        self.graph.types[name] = TensorType(shape, INT8X4, QParams(0.03, zero))
        self.inputs[name] = op_graphs.extremes(self.rng, shape)
        return name

    def emit(self, op: str, inputs: tuple[str, ...], attrs: Attrs, q: QParams | None = None) -> str:
        types = tuple(self.graph.types[name] for name in inputs)
        shape, dtype = OPS[op].check(types, attrs)
        name = self.graph.fresh(op)
        found = q or types[0].q
        self.graph.types[name] = TensorType(shape, found.dtype if found else dtype, found)
        self.graph.nodes.append(Node(op, inputs, name, attrs))
        return name

    def attention(self, operands: tuple[str, str, str], chain: Chain) -> str:
        """One whose weights are of all sizes, and whose results fill the int8 range and go beyond."""
        depth, zeros = chain.sizes[4], chain.zeros
        gain = 1.0 if abs(zeros[2]) > 100 else 3.0
        out = QParams(0.05 / (256 if chain.fine == INT16X4 else 1), zeros[3], chain.fine or INT8X4)
        precision, low = FINE if chain.fine else COARSE, out.range[0]
        fractions = arithmetic.fraction(out.dtype) - precision.reciprocal
        attrs = {
            **{"even": chain.even, "lo": low, "hi": -low * 15 // 16, "sizes": (), **dict.fromkeys(STRIDES, ())},
            "score_multiplier": float(np.float32(precision.steps / (73.0**2 * depth**0.5))),
            "multiplier": float(np.float32(gain * 0.05 / out.scale * 2.0**fractions)),
        }
        bias = np.zeros(chain.bias, np.int32)
        if bias.size > 1:
            bias[...] = self.rng.integers(-200, 200, bias.shape)
            later = np.triu(np.ones(bias.shape[2:], bool), 1 if bias.shape[2] > 1 else bias.shape[3] // 2)
            bias[np.broadcast_to(later, bias.shape)] = EXCLUDED
            bias[0, 0, 0] = EXCLUDED
        constants = (self.graph.add_constant("powers", powers(precision)), self.graph.add_constant("bias", bias))
        mask = (self.bools(chain.mask),) if chain.mask else ()
        return self.emit("q8ta_attention", (*operands, *constants, *mask), attrs, out)

    def bools(self, shape: Shape) -> str:
        """An input that chooses elements, of each row up to a later one, and none of some rows."""
        self.given("mask", shape, 0)
        self.graph.types["mask"] = TensorType(shape, INT8X4, BOOL)
        mask = self.rng.integers(0, 2, shape).astype(np.int8)
        rows = mask.reshape(-1, shape[-1])
        rows[np.arange(shape[-1]) > np.linspace(1, shape[-1] * 0.9, len(rows))[:, None]] = 0
        rows[::3] = 0
        self.inputs["mask"] = mask
        return "mask"


def chain_graph(chain: Chain) -> tuple[Graph, dict[str, Array]]:
    """The runnable graph of a chain, and its inputs."""
    b, (batch, heads, queries, keys, depth, width) = _Builder(), chain.sizes
    rows = ((queries, depth), (keys, depth), (keys, width))
    match chain.form:
        case "slices":
            x, third = b.given("x", (batch, queries, 3 * heads * depth), chain.zeros[0]), heads * depth
            cuts = ({"dim": 2, "start": i * third, "end": (i + 1) * third, "step": 1, "extent": 0} for i in range(3))
            parts = [b.emit("slice", (x,), attrs) for attrs in cuts]
            parts = [b.emit("view", (part,), {"shape": (0, 0, heads, depth)}) for part in parts]
            parts = [b.emit("permute", (part,), {"dims": (0, 2, 1, 3)}) for part in parts]
        case "planes":
            x = b.given("x", (batch, queries, 3 * heads * depth), chain.zeros[0])
            x = b.emit("view", (x,), {"shape": (batch, queries, 3, heads, depth)})
            x = b.emit("permute", (x,), {"dims": (2, 0, 3, 1, 4)})
            cuts = ({"dim": 0, "start": i, "end": i + 1, "step": 1, "extent": 0} for i in range(3))
            parts = [b.emit("slice", (x,), attrs) for attrs in cuts]
            parts = [b.emit("view", (part,), {"shape": (batch, heads, queries, depth)}) for part in parts]
        case "values":
            parts = [b.given(n, (batch, heads, *r), z) for n, r, z in zip("qkv", rows, chain.zeros, strict=False)]
        case "shared":
            q, k, v = (
                b.given(n, (batch, heads // (1 + (n != "q")), *r), z)
                for n, r, z in zip("qkv", rows, chain.zeros, strict=False)
            )
            parts = [q]
            for x, (count, width_of) in ((k, rows[1]), (v, rows[2])):
                x = b.emit("view", (x,), {"shape": (batch, heads // 2, 1, count, width_of)})
                x = b.emit("expand", (x,), {"shape": (-1, -1, 2, -1, -1)})
                parts.append(b.emit("view", (x,), {"shape": (batch, heads, count, width_of)}))
        case _:
            parts = [b.given(n, (batch * heads, *r), z) for n, r, z in zip("qkv", rows, chain.zeros, strict=False)]
    y = b.attention((parts[0], parts[1], parts[2]), chain)
    if chain.form in ("slices", "planes"):
        y = b.emit("permute", (y,), {"dims": (0, 2, 1, 3)})
        y = b.emit("view", (y,), {"shape": (batch, queries, heads * width)})
    b.graph.outputs = [y]
    return b.graph, b.inputs


def alone(graph: Graph) -> Graph:
    """The one attention of a lowered graph, by itself."""
    (node,) = (node for node in graph.nodes if node.op == "q8ta_attention")
    found = Graph([n for n in dict.fromkeys(node.inputs) if n not in graph.constants], [node.output], [node])
    found.types = {name: graph.types[name] for name in (*node.inputs, node.output)}
    found.constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    return found


def fused_graphs() -> Iterator[Graph]:
    """The attention that each chain becomes, and a softmax whose mask is computed."""
    for chain in CHAINS:
        yield alone(lower(chain_graph(chain)[0], harness.UNITS))
    yield masked_softmax((2, 3, 5, 7), (2, 1, 1, 7))[0]


def masked_softmax(
    shape: Shape, masked: Shape, even: bool = False, dtype: str = INT8X4
) -> tuple[Graph, dict[str, Array]]:
    """A softmax of int8 over the last dimension, of the elements that bools of another shape name, and its inputs."""
    wide, b = dtype == INT16X4, _Builder()
    x, mask = b.given("x", shape, -7), b.bools(masked)
    out = QParams(2.0**-16, -(2**15), INT16X4) if wide else QParams(1 / 256, -128)
    low, high = out.range
    attrs = {"dim": len(shape) - 1, "even": even, "lo": low, "hi": high, "inverse": 1 / out.scale}
    inputs = (x, b.graph.add_constant("powers", q8ta_softmax.powers(0.04)), mask)
    b.graph.outputs = [b.emit("q8ta_softmax", inputs, attrs, out)]
    return b.graph, b.inputs


def sink(keys: int, share: float, stored: str, result: str) -> tuple[Graph, dict[str, Array], Array]:
    """The graph before the passes of an attention whose first key has a share of the weight, its inputs, and the exact
    result. `stored` is the dtype in which the program stores the weights, if any; `result` that of the result."""
    g, depth = np.random.default_rng(keys), 64
    q, k, v = (g.normal(0, 1, (1, 2, rows, depth)) for rows in (32, keys, keys))
    axis = np.eye(depth)[0]  # along which all queries are alike
    q[..., 0] = 4.0
    others = np.log(np.exp(q @ k[:, :, 1:].swapaxes(-1, -2) / depth**0.5).sum(-1)).mean()
    k[:, :, 0] = axis * (others + np.log(share / (1 - share))) * depth**0.5 / 4
    graph, inputs, real = Graph(list("qkv"), ["y"]), dict[str, Array](), dict[str, Array]()
    for name, x in zip("qkv", (q, k, v), strict=True):
        to = QParams(float(np.abs(x).max() / 127), 0)
        graph.types[name], graph.types[f"{name}.real"] = TensorType(x.shape, INT8X4, to), TensorType(x.shape)
        graph.nodes.append(Node("dequantize", (name,), f"{name}.real"))
        inputs[name] = arithmetic.quantize(x, to)
        real[name] = inputs[name].astype(np.float64) * to.scale
    scores = real["q"] @ real["k"].swapaxes(-1, -2) / depth**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ real["v"]
    assert abs((weights / weights.sum(-1, keepdims=True))[..., 0].mean() - share) < 0.1
    values = dict.fromkeys(("scores", "scaled", "soft", "weights"), TensorType(scores.shape))
    graph.types |= {**values, "turned": TensorType((1, 2, depth, keys)), "context": TensorType(exact.shape)}
    graph.nodes += [
        Node("permute", ("k.real",), "turned", {"dims": (0, 1, 3, 2)}),
        Node("matmul", ("q.real", "turned"), "scores"),
        Node("divide", ("scores",), "scaled", {"divisor": depth**0.5}),
        Node("softmax", ("scaled",), "soft", {"dim": 3}),
    ]
    if stored:
        to = QParams(1.0 / RANGES[stored][1], 0, stored)
        graph.types["stored"] = TensorType(scores.shape, stored, to)
        low, high = to.range
        graph.nodes += [
            Node("quantize", ("soft",), "stored", {"lo": low, "hi": high}),
            Node("dequantize", ("stored",), "weights"),
        ]
    out = QParams(float(np.abs(exact).max() / RANGES[result][1]), 0, result)
    graph.types["y"] = TensorType(exact.shape, result, out)
    last, (low, high) = "weights" if stored else "soft", out.range
    graph.nodes += [
        Node("matmul", (last, "v.real"), "context"),
        Node("quantize", ("context",), "y", {"lo": low, "hi": high}),
    ]
    graph.prune()
    return graph, inputs, exact
