"""The passes leave a graph's results as they were: random graphs, run before and after by the reference.

Every scale is a power of two and every constant a small multiple of one, so that float32 holds each result exactly and
the integer forms round what the float operators round: results are equal, to the last bit.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from q8ta_wgpu.ir.graph import INT8X4, UINT8, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.lower import lower

CHANNELS = 4
RANGES = ((-128, 127), (-128, 127), (-127, 127), (0, 127), (-20, 33))


class Imported:
    """A random graph as an importer would give it: float operators, quantizes and dequantizes at any place.

    Images are (1 or 2, CHANNELS, h, w). `small` values have few enough bits for a weighted sum to be exact in float32;
    `sums` are unrounded weighted sums, whose activations are fitted curves in int8, not exact.
    """

    def __init__(self, random: Random) -> None:
        self.random, self.graph = random, Graph()
        self.small: set[str] = set()
        self.sums: set[str] = set()
        self.convolutions: set[str] = set()
        self.weights: list[tuple[str, str]] = []
        for name, uint8 in (("x", False), ("u", True))[: random.choice((1, 2))]:
            self.graph.inputs.append(name)
            self.graph.types[name] = TensorType((2, CHANNELS, 4, 4), *((INT8X4, UINT8) if uint8 else ()))
            self.graph.values.set(name, given="uint8" if uint8 else "")
        self.small.add("x")
        self.values = ["x"] if len(self.graph.inputs) == 1 else ["x", self.add("dequantize", "u")]

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        node = Node(op, inputs, self.graph.fresh(op), attrs, "net")
        self.graph.types[node.output] = infer(self.graph, node)
        self.graph.nodes.append(node)
        if op == "dequantize" or (OPS[op].keeps_int8 and set(inputs) <= self.small):
            self.small.add(node.output)
        if op == "conv2d":
            self.convolutions.add(node.output)
        if op == "conv2d" or (op != "dequantize" and self.sums & set(inputs)):
            self.sums.add(node.output)
        return node.output

    def constant(self, low: int, high: int, shape: tuple[int, ...], unit: float) -> str:
        numbers = [self.random.randint(low, high) for _ in range(int(np.prod(shape)))]
        return self.graph.add_constant("c", (np.reshape(numbers, shape) * unit).astype(np.float32))

    def quantized(self, x: str) -> str:
        q = QParams(2.0 ** -self.random.randint(3, 6), self.random.choice((0, 0, 5, -128, 127)))
        lo, hi = self.random.choice(RANGES)
        name = self.graph.fresh("int8")
        self.graph.types[name] = TensorType(self.graph.types[x].shape, INT8X4, q)
        self.graph.nodes.append(Node("quantize", (x,), name, {"lo": lo, "hi": hi}, "net"))
        return name

    def weight(self) -> tuple[str, str]:
        """A weight and a bias, at times of an operator before."""
        if self.weights and self.random.random() < 0.3:
            return self.random.choice(self.weights)
        channels = CHANNELS
        values = np.array([self.random.randint(-128, 127) for _ in range(channels * channels)], np.int8)
        values = values.reshape(channels, channels, 1, 1)
        match self.random.choice(("channel", "channel", "tensor", "float", "moved")):
            case "tensor":
                weight = self.add("dequantize", self.graph.add_constant("w", values, INT8X4, QParams(2.0**-6, 0)))
            case "float":
                weight = self.graph.add_constant("w", values.astype(np.float32) * np.float32(2.0**-6))
            case kind:
                flat = self.graph.add_constant("w", values.reshape(channels, channels) if kind == "moved" else values)
                scale = self.graph.add_constant("s", 2.0 ** -np.array([4, 5, 6, 6], np.float32))
                zero = self.graph.add_constant("z", np.zeros(channels, np.int32))
                axis = self.random.choice((0, 1)) if kind == "moved" else 0
                weight = self.add("dequantize_weight", flat, scale, zero, axis=axis)
                if axis:
                    weight = self.add("permute", weight, dims=(1, 0))
                if kind == "moved":
                    weight = self.add("view", weight, shape=(channels, channels, 1, 1))
        self.weights.append((weight, self.constant(-30, 30, (channels,), 0.125)))
        return self.weights[-1]

    def same(self, x: str) -> str:
        """Another value of the shape of x, which may be x."""
        shape = self.graph.types[x].shape
        values = [v for v in self.values if self.graph.types[v].shape == shape]
        return self.constant(-20, 20, shape, 0.25) if self.random.random() < 0.1 else self.random.choice(values)

    def step(self) -> str:
        """One more operator on a value there is."""
        random = self.random
        x = random.choice(self.values[-4:] if random.random() < 0.7 else self.values)
        n, c, h, w = self.graph.types[x].shape
        square = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0), "ceil_mode": False}
        match random.choice(
            ("qdq",) * 5
            + ("conv",) * 4
            + ("relu", "clamp", "unary", "move", "pad", "cat") * 2
            + ("add",) * 3
            + ("mul", "max", "avg", "norm", "flat")
        ):
            case "conv" if c == CHANNELS:
                x = x if x in self.small else self.add("dequantize", self.quantized(x))
                geometry = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
                return self.add("conv2d", x, *self.weight(), **geometry)
            case "relu":
                return self.add("relu", x)
            case "clamp":
                low = random.choice((-2.0, 0.0, 0.3))
                return self.add("clamp", x, min=low, max=low + random.choice((0.0, 1.5, 6.0)))
            case "unary" if x not in self.sums:
                function = random.choice(("abs", "affine", "leaky_relu"))
                attrs: dict[str, Any] = {"affine": {"factor": 0.5, "term": 0.25}, "leaky_relu": {"slope": 0.5}}
                return self.add(function, x, **attrs.get(function, {}))
            case "move":
                move = random.choice(("permute", "slice", "view", "flip"))
                moves: dict[str, Any] = {
                    "permute": {"dims": random.choice(((0, 1, 3, 2), (0, 1, 2, 3)))},
                    "slice": {
                        "dim": random.choice((1, 2)),
                        "start": random.choice((0, 1)),
                        "end": 9,
                        "step": 1,
                        "extent": 0,
                    },
                    "view": {"shape": (n, c, w, h)},
                    "flip": {"dims": (3,)},
                }
                return x if move == "slice" and min(c, h) < 2 else self.add(move, x, **moves[move])
            case "pad" if h < 6:
                padding = random.choice(((0,) * 8, (0, 0, 0, 0, 1, 0, 0, 1)))
                return self.add("pad", x, padding=padding, value=random.choice((0.0, 0.0, 0.25, -9.0)))
            case "cat":
                return self.add(
                    "cat", *(self.same(x) for _ in range(random.choice((1, 2, 3)))), dim=random.choice((1, 2))
                )
            case "add":
                return self.add("add", x, self.same(x), alpha=random.choice((1.0, 1.0, -1.0, 0.5)))
            case "mul":
                small = [v if v in self.small else self.add("dequantize", self.quantized(v)) for v in (x, self.same(x))]
                return self.add("mul", *small)
            case "max":
                overlapping = {**square, "stride": (1, 1), "padding": (1, 1, 1, 1)}
                return self.add("max_pool2d", x, **(square if min(h, w) > 1 else overlapping), dilation=(1, 1))
            case "avg" if min(h, w) > 1 and x in self.small:
                return self.add("avg_pool2d", x, **square, count_include_pad=True, divisor_override=0)
            case "norm" if c == CHANNELS and (x in self.small or x in self.convolutions):
                eps = 2.0**-10
                gamma = self.graph.add_constant("gamma", np.array([0.5, 1, -1, 2], np.float32))
                variance = self.graph.add_constant("variance", np.full(c, 1 - eps, np.float32))
                beta, mean = (self.constant(-8, 8, (c,), 0.125) for _ in range(2))
                return self.add("batch_norm", x, gamma, beta, mean, variance, eps=eps)
            case _:
                return self.add("dequantize", self.quantized(x))

    def finish(self, steps: int) -> Graph:
        for _ in range(steps):
            value = self.step()
            if np.prod(self.graph.types[value].shape) <= 2048:
                self.values.append(value)
        given = {name for node in self.graph.nodes for name in node.inputs}
        loose = [v for v in self.values[1:] if v not in given] or self.values[-1:]
        ints = [node.output for node in self.graph.nodes if node.op == "quantize"]
        extra = [self.random.choice(pool) for pool in (self.values, ints, loose) if pool and self.random.random() < 0.3]
        self.graph.outputs = loose + extra
        return self.graph


def _inputs(graph: Graph, random: Random) -> dict[str, Array]:
    generator = np.random.default_rng(random.randint(0, 99))
    x = generator.integers(-600, 600, graph.types["x"].shape) * 2.0**-8
    arrays = {"x": x.astype(np.float32)}
    if "u" in graph.inputs:
        arrays["u"] = generator.integers(-128, 128, graph.types["x"].shape).astype(np.int8)
    return arrays


@settings(max_examples=250)
@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_results_stay_as_they_were(seed: int, steps: int) -> None:
    random = Random(seed)
    graph = Imported(random).finish(steps)
    inputs = _inputs(graph, random)
    expected = list(map(reference.run(graph, inputs).__getitem__, graph.outputs))
    fused = run_passes(graph)
    for runnable in (fused, lower(fused, BASELINE)):
        found = reference.run(runnable, inputs)
        for name, array in zip(runnable.outputs, expected, strict=True):
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name}\n{graph}\n{runnable}")


def test_copies_of_a_channel_are_an_expand() -> None:
    """The demo adds nine copies of its image: as one operator that writes whole words, not as two cats of operands."""
    graph = Graph(["x"], ["y"], [Node("cat", ("x",) * 9, "y", {"dim": 1})])
    graph.types = {"x": TensorType((1, 1, 4, 6)), "y": TensorType((1, 9, 4, 6))}
    found = run_passes(graph)
    assert [(node.op, node.attrs) for node in found.nodes] == [("expand", {"shape": (-1, 9, -1, -1)})]
