"""Graphs with int16 wherever it can be: streams, residuals, norms and moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Graph, Node, TensorType
from q8ta_wgpu.ir.int8 import Elementwise, Moves, Product, Rowwise, WeightedSum
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from testbed.epilogue_graphs import unfused_epilogue
from testbed.op_graphs import SETTINGS, Setting, extremes, float_ended, rng, settings_for, unfused_graph

WIDE_SUMS = (
    Setting((300, -7, -5000), "random", (INT16X4, INT8X4, INT16X4)),
    Setting((-32768, 32767, 127), "random", (INT16X4, INT16X4, INT8X4)),
    Setting((-128, 32767, -32768), "saturate", (INT8X4, INT16X4, INT16X4)),
    Setting((0, 0, 0), "ties", (INT16X4, INT16X4, INT16X4)),
)
"""Of an add with int16."""

WIDE_TABLES = (
    Setting((300, 0, -7), "random", (INT16X4, INT8X4, INT8X4)),
    Setting((-7, 0, -5000), "random", (INT8X4, INT8X4, INT16X4)),
    Setting((-32768, 0, 32767), "random", (INT16X4, INT8X4, INT16X4)),
    Setting((127, 0, -32768), "saturate", (INT8X4, INT8X4, INT16X4)),
    Setting((0, 0, 0), "ties", (INT16X4, INT8X4, INT16X4)),
)
"""Of a function of one tensor."""

WIDE_CHOICES = (
    Setting((0, 300, -5000), "random", (INT8X4, INT16X4, INT16X4)),
    Setting((3, -7, 32767), "random", (INT8X4, INT8X4, INT16X4)),
    Setting((-700, 32767, -128), "random", (INT16X4, INT16X4, INT8X4)),
    Setting((0, 0, 0), "ties", (INT8X4, INT16X4, INT16X4)),
)
"""Of a choice between two tensors by a third."""

WIDE_PRODUCTS = (
    Setting((300, -7, -5000), "random", (INT16X4, INT8X4, INT16X4)),
    Setting((-128, 127, -32768), "random", (INT8X4, INT8X4, INT16X4)),
    Setting((-5000, 13000, 32767), "random", (INT16X4, INT16X4, INT16X4)),
    Setting((-13000, -128, 127), "saturate", (INT16X4, INT8X4, INT8X4)),
    Setting((127, -32768, 3), "saturate", (INT8X4, INT16X4, INT16X4)),
    Setting((0, 0, 0), "ties", (INT16X4, INT16X4, INT16X4)),
)
"""Of a product of two tensors."""

WIDE_RESIDUALS = (
    Setting((3, 300, -5000), "random", (INT8X4, INT16X4, INT16X4)),
    Setting((-128, 127, 32767), "saturate", (INT8X4, INT8X4, INT16X4)),
    Setting((127, -32768, -128), "random", (INT8X4, INT16X4, INT8X4)),
)
"""Of a weighted sum with a residual, where it or the result is int16."""

EVERY_INT16 = Setting((5, 0, -300), "random", (INT16X4, INT16X4, INT16X4))

WIDE_OPERANDS = (
    ("requantize", Setting((0, 0, 3), "random", (INT16X4, INT8X4, INT8X4))),
    ("requantize", Setting((-700, 0, -5000), "random", (INT16X4, INT8X4, INT16X4))),
    ("residual requantize", Setting((32767, -7, 11), "saturate", (INT16X4, INT8X4, INT8X4))),
    ("residual requantize", Setting((0, 300, 0), "saturate", (INT16X4, INT16X4, INT16X4))),
    ("curve requantize", Setting((-32768, 0, -100), "random", (INT16X4, INT8X4, INT8X4))),
    ("residual curve requantize", Setting((0, 5, 0), "random", (INT16X4, INT16X4, INT16X4))),
    ("requantize add", Setting((127, 3, -128), "random", (INT16X4, INT8X4, INT8X4))),
    ("", Setting((-1, 0, 0), "random", (INT16X4, INT8X4, INT8X4))),
    ("requantize", Setting((0, 0, 0), "ties", (INT16X4, INT16X4, INT16X4))),
)
"""Of a weighted sum of int16: what follows it, nothing of one whose result is float32, and the setting."""

WIDE_CASES = {
    "linear": (0, 1, 2, 5, 6, 9, 10, 11, 13, 14),
    "conv2d": (0, 1, 4, 6, 8, 9, 13, 15, 17, 18, 19, 22, 26),
    "conv_transpose2d": (0, 1, 2, 3, 4),
}
"""Of a weighted sum of int16: tails, batches, weights of 4 bits, pixels, one channel, groups, strides, dilations."""

WIDE_FACTORS = (
    Setting((0, 3, 0), "random", (INT16X4, INT8X4, INT16X4)),
    Setting((-700, 300, -5000), "random", (INT16X4, INT16X4, INT16X4)),
    Setting((5, -32768, -128), "random", (INT8X4, INT16X4, INT8X4)),
    Setting((0, -128, 0), "saturate", (INT16X4, INT8X4, INT16X4)),
    Setting((32767, 0, 127), "saturate", (INT16X4, INT16X4, INT8X4)),
)
"""Of a product of two activations of which one is int16, or both."""

PROMISED = tuple(
    op
    for op in OPS.values()
    if op.cases and FLOAT32 in op.operands[0].dtypes and op.int8 and (op.int8.reads_int16 or op.int8.gives_int16)
)
"""Operators whose kind reads or gives int16."""


def widths_of(op: Op) -> tuple[tuple[str, str, str], ...]:
    """The dtypes of operands and result that an operator's kind promises, in the order of `Setting.dtypes`."""
    kind = op.int8
    assert kind is not None
    every = (INT16X4, INT16X4, INT16X4) if kind.reads_int16 and kind.gives_int16 else None
    if op.keeps_int8:  # operands and result are of one dtype
        return (every,) if every else ()
    read = (INT16X4, INT16X4, INT8X4) if kind.reads_int16 else None
    given = (INT8X4, INT8X4, INT16X4) if kind.gives_int16 else None
    return tuple(found for found in (every, read, given) if found)


def promised(op: Op, brief: bool = False) -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """What the kind of an operator promises of int16, one operator between dequantizes and a quantize: its first case
    in every width and setting, the others in turn. A name, the setting, the graph before the passes and its inputs.

    brief: a setting for each case; of operators that are tested as int8 in every case, the first one.
    """
    widths = widths_of(op)
    whole = not brief or isinstance(op.int8, Moves | Rowwise)
    for index, case in enumerate(op.cases if whole else op.cases[:1]):
        settings = [s for s in settings_for(op, index) if s.mode != "overflow"] or [SETTINGS[0]]
        for place, dtypes in enumerate(widths):
            if index and place != index % len(widths):
                continue
            for setting in [settings[place % len(settings)]] if brief else settings:
                wide = replace(setting, dtypes=dtypes)
                yield f"{op.name} {index} {place} {wide.mode} {wide.zeros}", wide, *unfused_graph(op, case, wide)


def wide_graphs() -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """Int16 wherever it can be: a name, the setting, the graph before the passes and its inputs."""
    for index, setting in enumerate(WIDE_SUMS):
        yield f"add {index}", setting, *unfused_graph(OPS["add"], OPS["add"].cases[index], setting)
    yield from _elementwise()
    for name, settings in (
        ("linear", WIDE_RESIDUALS),
        ("conv2d", WIDE_RESIDUALS[:1]),
        ("conv_transpose2d", WIDE_RESIDUALS[:1]),
    ):
        for index, setting in enumerate(settings):
            op = OPS[name]
            yield f"{name} {index}", setting, *unfused_epilogue(op, op.cases[index], setting, "residual requantize")
            if name == "linear" or not index:
                after = "residual curve requantize"
                yield f"{name} {after} {index}", setting, *unfused_epilogue(op, op.cases[index], setting, after)
    for index in range(3):
        setting = Setting((3, -128, 300), "random", (INT8X4, INT8X4, INT16X4))
        yield f"matmul {index}", setting, *unfused_graph(OPS["matmul"], OPS["matmul"].cases[index], setting)
    yield "linear", WIDE_RESIDUALS[0], *unfused_graph(OPS["linear"], OPS["linear"].cases[0], WIDE_RESIDUALS[0])
    for op in PROMISED:
        if not isinstance(op.int8, Elementwise | WeightedSum | Product):  # which have generators of their own
            yield from promised(op, brief=True)
    long_norms = {
        "group_norm": Case(((1, 4, 200, 201), (4,), (4,)), {"eps": 1e-5, "groups": 2}),
        "rms_norm": Case(((2, 40001), (40001,)), {"eps": 1e-5}),
    }
    for name, case in long_norms.items():
        yield f"long {name}", EVERY_INT16, *unfused_graph(OPS[name], case, EVERY_INT16)
    for name in ("mean", "sum"):
        for setting in (EVERY_INT16, replace(EVERY_INT16, zeros=(32767, 0, 77))):
            case = Case(((2, 70000),), {"dims": (1,), "keepdim": False})
            yield f"long {name} {setting.zeros}", setting, *unfused_graph(OPS[name], case, setting)
    for index, (setting, shape) in enumerate(
        zip(WIDE_SUMS, ((2, 5, 3, 7), (3, 13), (2, 8, 4, 4), (257,)), strict=True)
    ):
        yield f"requantize {index}", setting, *_converted(setting, shape, "dequantize", "quantize")
        yield f"dequantize {index}", setting, *_converted(setting, shape, "dequantize")
        yield f"quantize {index}", setting, *_converted(setting, shape, "quantize")


def _elementwise() -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """Functions of two tensors, and functions of one tensor."""
    for name, settings in (
        ("mul", WIDE_PRODUCTS),
        ("div", WIDE_SUMS),
        ("where", WIDE_CHOICES),
        ("hypot", WIDE_PRODUCTS[1:2]),
        *((name, WIDE_TABLES) for name in ("gelu", "rsqrt", "elu", "round", "gt_scalar", "affine")),
    ):
        cases = OPS[name].cases
        for index, setting in enumerate(settings):
            yield f"{name} {index}", setting, *unfused_graph(OPS[name], cases[index % len(cases)], setting)


def sums_of_int16() -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """Weighted sums of int16, as `wide_graphs` gives its graphs: several nodes each."""
    for name, cases in WIDE_CASES.items():
        for turn, index in enumerate(cases):
            for place, (after, setting) in enumerate(WIDE_OPERANDS):
                if turn and (place + turn) % len(cases):
                    continue
                op, what = OPS[name], f"{name} {index} {after or 'float32'} {place}"
                yield what, setting, *(unfused_epilogue if after else float_ended)(op, op.cases[index], setting, after)


def products_of_int16() -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """Products of activations, as `wide_graphs` gives its graphs: several nodes each. Every other one times a
    factor."""
    op = OPS["matmul"]
    for place, setting in enumerate(WIDE_FACTORS):
        for index in range(place % 2, len(op.cases), 2):
            graph, inputs = unfused_graph(op, op.cases[index], setting)
            if (place + index // 2) % 2:
                *before, product, quantize = graph.nodes
                graph.types["product"] = graph.types["real"]
                scaled = Node("affine", ("product",), "real", {"factor": 0.75, "term": 0.0})
                graph.nodes = [*before, replace(product, output="product"), scaled, quantize]
            yield f"matmul {index} {place}", setting, graph, inputs


def single_nodes() -> Iterator[tuple[str, Graph, dict[str, Array]]]:
    """Every kind of node that the graphs of this file become, by itself: a name, its graph and inputs."""
    for name, _, graph, inputs in wide_graphs():
        yield name, run_passes(graph), inputs
    for name, _, graph, inputs in itertools.chain(sums_of_int16(), products_of_int16()):
        fused = run_passes(graph)
        values = reference.run(fused, inputs, keep=True)
        last = next(node for node in reversed(fused.nodes) if node.op != "quantize")
        for node in fused.nodes if name.endswith(" 0") or name.startswith("matmul 1") else (last,):
            alone = Graph([n for n in node.inputs if n not in fused.constants], [node.output], [node], fused.types)
            alone.constants = fused.constants
            alone.prune()
            yield f"{name}: {node.output}", alone, {name: values[name] for name in alone.inputs}


def _converted(setting: Setting, shape: tuple[int, ...], *steps: str) -> tuple[Graph, dict[str, Array]]:
    """A graph of a quantize, a dequantize or both, from the first operand's type of a setting to the result's."""
    generator = rng(setting, shape, steps)
    graph, first, last = Graph(["x"], ["y"]), setting.q(0, 2.0**-9), setting.q(2, 2.0**-8 * 1.3)
    stored = steps[0] == "dequantize"
    graph.types["x"] = TensorType(shape, first.dtype, first) if stored else TensorType(shape)
    inputs = {"x": extremes(generator, shape, first.dtype) if stored else generator.normal(0, 50, shape)}
    graph.types["y"] = TensorType(shape, last.dtype, last) if steps[-1] == "quantize" else TensorType(shape)
    graph.types["real"] = TensorType(shape)
    low, high = last.range
    attrs = {"quantize": {"lo": low + 1, "hi": high}, "dequantize": {}}
    names = ("x", "real", "y") if len(steps) == 2 else ("x", "y")
    graph.nodes = [Node(op, (x,), y, attrs[op]) for op, (x, y) in zip(steps, itertools.pairwise(names), strict=True)]
    graph.prune()
    return graph, {"x": inputs["x"].astype(np.float32) if not stored else inputs["x"]}
