"""What the layout tests share: random graphs over the operator table, random problems, and brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout, Shape, canonical
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Choice, Option, Problem

CHANNELS = 6


def byte_address(
    n: NDArray[np.int64], c: NDArray[np.int64], h: NDArray[np.int64], w: NDArray[np.int64], shape: Shape, layout: Layout
) -> NDArray[np.int64]:
    """Byte address of element (n, c, h, w) of a tensor of `shape`: the formulas, written
    by hand, that the table of layouts and what is made from it are held against."""
    _, cs, hs, ws = canonical(shape)
    c4, h4, w4 = -(-cs // 4), -(-hs // 4), -(-ws // 4)
    match layout:
        case Layout.PACKED_INT8_4W:
            return (((n * cs + c) * hs + h) * w4 + w // 4) * 4 + w % 4
        case Layout.PACKED_INT8_4C:
            return (((n * hs + h) * ws + w) * c4 + c // 4) * 4 + c % 4
        case Layout.PACKED_INT8_4C1W:
            return (((n * hs + h) * c4 + c // 4) * ws + w) * 4 + c % 4
        case Layout.PACKED_INT8_4W4C:
            return (((n * hs + h) * w4 + w // 4) * c4 + c // 4) * 16 + w % 4 * 4 + c % 4
        case Layout.PACKED_INT8_4H4W:
            return (((n * cs + c) * h4 + h // 4) * w4 + w // 4) * 16 + h % 4 * 4 + w % 4
        case Layout.TENSOR_WIDTH_PACKED:
            return (((n * cs + c) * hs + h) * ws + w) * 4
        case _:
            raise ValueError(f"{layout.short} has no address formula")


def addresses(shape: Shape, layout: Layout) -> Array:
    """The byte address of every element, in the tensor's own shape."""
    n, c, h, w = np.meshgrid(*(np.arange(d) for d in canonical(shape)), indexing="ij")
    return byte_address(n, c, h, w, shape, layout).reshape(shape)


class GraphMaker:
    """Builds quantized graphs an operator at a time: dequantize, the float operator, quantize."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.graph = Graph()

    def input(self, shape: tuple[int, ...], dtype: str = INT8X4) -> str:
        name = f"x{len(self.graph.inputs)}"
        self.graph.types[name] = TensorType(shape, dtype, QParams(0.05, 3) if dtype == INT8X4 else None)
        self.graph.inputs.append(name)
        return name

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The int8 result of a float operator on int8 values and constants."""
        graph, reals = self.graph, []
        for name in inputs:
            if graph.types[name].dtype != INT8X4:
                reals.append(name)
                continue
            reals.append(graph.fresh("real"))
            graph.types[reals[-1]] = TensorType(graph.types[name].shape)
            graph.nodes.append(Node("dequantize", (name,), reals[-1]))
        shape, _ = OPS[op].check(tuple(graph.types[r] for r in reals), attrs)
        real, name = graph.fresh("real"), graph.fresh(f"v{len(graph.nodes)}")
        graph.types[real] = TensorType(shape)
        graph.nodes.append(Node(op, tuple(reals), real, attrs))
        graph.types[name] = TensorType(
            shape, INT8X4, graph.types[inputs[0]].q if OPS[op].keeps_int8 else QParams(0.05, -5)
        )
        graph.nodes.append(Node("quantize", (real,), name, {"lo": -128, "hi": 127}))
        return name

    def weight(self, *shape: int) -> str:
        graph = self.graph
        parts = (
            graph.add_constant("w", self.data.integers(-128, 128, shape, dtype=np.int8)),
            graph.add_constant("w.scale", np.full(shape[0], 0.002, np.float32)),
            graph.add_constant("w.zero", np.zeros(shape[0], np.int32)),
        )
        name = graph.fresh("w.real")
        graph.types[name] = TensorType(shape)
        graph.nodes.append(Node("dequantize_weight", parts, name, {"axis": 0}))
        return name

    def conv(self, x: str, kernel: int = 1, channels: int = CHANNELS, groups: int = 1) -> str:
        inputs = self.graph.types[x].shape[1]
        bias = self.graph.add_constant("bias", np.zeros(channels, np.float32))
        weight = self.weight(channels, inputs // groups, kernel, kernel)
        pad = kernel // 2
        attrs = {"stride": (1, 1), "padding": (pad,) * 4, "dilation": (1, 1), "groups": groups}
        return self.add("conv2d", x, weight, bias, **attrs)

    def linear(self, x: str, outputs: int) -> str:
        bias = self.graph.add_constant("bias", np.zeros(outputs, np.float32))
        return self.add("linear", x, self.weight(outputs, self.graph.types[x].shape[-1]), bias)

    def view(self, x: str, *shape: int) -> str:
        return self.add("view", x, shape=shape)

    def permute(self, x: str, *dims: int) -> str:
        return self.add("permute", x, dims=dims)

    def finish(self, *outputs: str) -> Graph:
        """The fused graph with those outputs."""
        self.graph.outputs = list(outputs)
        self.graph.prune()
        return run_passes(self.graph)


def random_graph(seed: int, nodes: int) -> Graph:
    """A graph of convolutions, linears, sums, products, tables, views and permutes on a 5x7 image."""
    make = GraphMaker(seed)
    image, rows = (1, CHANNELS, 5, 7), (CHANNELS * 5, 7)
    found = {image: [make.input(image)], rows: [make.input(rows)]}
    for _ in range(nodes):
        kind = make.random.choice(("conv", "dw", "linear", "add", "add", "mul", "relu", "sigmoid", "view", "permute"))
        shape = make.random.choice((image, rows))
        x, y = make.random.choice(found[shape]), make.random.choice(found[shape])
        match kind:
            case "conv" | "dw":
                x = make.random.choice(found[image])
                made = make.conv(x, 3, groups=CHANNELS if kind == "dw" else 1)
            case "linear":
                made = make.linear(x, 7)
            case "add":
                made = make.add("add", x, y, alpha=1.0)
            case "mul":
                made = make.add("mul", x, y)
            case "view":
                made = make.view(x, *(rows if shape == image else image))
            case "permute":
                last = make.permute(make.random.choice(found[image]), 0, 2, 3, 1)
                made = make.permute(make.linear(last, CHANNELS), 0, 3, 1, 2)
            case _:
                made = make.add(kind, x)
        found[make.graph.types[made].shape].append(made)
    read = {name for node in make.graph.nodes for name in node.inputs}
    ends = [name for made in found.values() for name in made if name not in read]
    return make.finish(*ends, found[image][len(found[image]) // 2])


def deep_graph(blocks: int) -> Graph:
    """Inverted residual blocks, four nodes each, on a 16x16 image: convolution, depthwise, convolution, sum."""
    make = GraphMaker(0)
    conv, graph = make.finish(make.conv(make.input((1, 8, 16, 16)), 3, 8)), Graph()
    dw = GraphMaker(0)
    wide = dw.finish(dw.conv(dw.input((1, 8, 16, 16)), 3, 8, groups=8))
    both = GraphMaker(0)
    x = both.input((1, 8, 16, 16))
    joined = both.finish(both.add("add", x, both.input((1, 8, 16, 16)), alpha=1.0))
    graph.inputs, graph.types, graph.constants = ["x0"], {"x0": conv.types["x0"]}, {}
    last = "x0"
    for block in range(blocks):
        kept = last
        for place, part in enumerate((conv, wide, conv, joined)):
            (node,) = part.nodes
            for name, array in part.constants.items():
                graph.constants[f"{place}.{name}"], graph.types[f"{place}.{name}"] = array, part.types[name]
            names = {"x0": last, "x1": kept, **{name: f"{place}.{name}" for name in part.constants}}
            last = f"v{block}.{place}"
            graph.types[last] = part.types[node.output]
            graph.nodes.append(Node(node.op, tuple(names[i] for i in node.inputs), last, node.attrs))
    graph.outputs = [last]
    return graph


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    data = np.random.default_rng(seed)
    return {
        name: data.normal(size=t.shape).astype(np.float32)
        if (t := graph.types[name]).dtype == FLOAT32
        else data.integers(-128, 128, t.shape, dtype=np.int8)
        for name in graph.inputs
    }


def random_problem(seed: int, nodes: int, layouts: str = "abc", arity: int = 3) -> Problem[str]:
    """A problem with costs drawn at random: values read twice, read by nobody, constants, free inputs."""
    draw = random.Random(seed)
    values = ["input", "constant"]
    choices = []
    for index in range(nodes):
        inputs = tuple(draw.choice(values[-4:]) for _ in range(draw.randint(1, arity)))
        options = []
        for _ in range(draw.randint(1, 3)):
            reads = [
                {r: draw.randint(0, 4) * 1.0 for r in draw.sample(layouts, draw.randint(1, len(layouts)))}
                for _ in inputs
            ]
            options.append(Option(index, tuple(reads), draw.choice(layouts), draw.randint(0, 9) * 1.0))
        choices.append(Choice(inputs, f"v{index}", tuple(options)))
        values.append(f"v{index}")
    prices = {(v, s, t): draw.randint(1, 12) * 1.0 for v in values for s in layouts for t in layouts}
    return Problem(tuple(choices), {"input": tuple(layouts[:2])}, ["constant"], lambda v, s, t: prices[v, s, t])


def assignments(problem: Problem[str]) -> Iterator[Assignment[str]]:
    """Every assignment there is."""
    for options in itertools.product(*(choice.options for choice in problem.choices)):
        reads = [[tuple(read) for read in option.reads] for option in options]
        per_choice = [list(itertools.product(*layouts)) for layouts in reads]
        for free in itertools.product(*problem.free.values()):
            stored = dict(zip(problem.free, free, strict=True))
            for chosen in itertools.product(*per_choice):
                yield Assignment(options, chosen, stored)


def count(problem: Problem[str]) -> int:
    """An upper bound of the number of assignments."""
    total = 1
    for choice in problem.choices:
        total *= sum(int(np.prod([len(read) for read in option.reads])) for option in choice.options)
    return total * int(np.prod([len(layouts) for layouts in problem.free.values()]))
