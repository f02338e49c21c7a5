"""Graphs of one operator, for each case of the operator table: in float and in int8. And their data."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import (
    DTYPES,
    FLOAT32,
    INT8,
    INT8X4,
    INT16,
    INT32,
    RANGES,
    Array,
    Graph,
    Node,
    QParams,
    TensorType,
)
from q8ta_wgpu.ir.int8 import Product, Recurrent, WeightedSum
from q8ta_wgpu.ir.op import FLOAT_MAX, Case, Op
from q8ta_wgpu.kernels.recurrent.q8ta_recurrent import PROJECTED
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes


@dataclass(frozen=True)
class Setting:
    """Quantization of a test: zero points of inputs and output, and how results fall.

    mode: 'random' spans the output range; 'saturate' passes it both ways; 'overflow' passes 2^31 in 2^-14 steps;
    'ties' uses power-of-two scales so that many results are exactly half-way.
    dtypes: of the first operand, of the others and what joins an epilogue, of the result.
    """

    zeros: tuple[int, int, int]
    mode: str = "random"
    dtypes: tuple[str, str, str] = (INT8X4, INT8X4, INT8X4)

    def q(self, position: int, scale: float) -> QParams:
        """Of the first operand (0), another one (1) or the result (2)."""
        return QParams(scale, self.zeros[position], self.dtypes[position])


SETTINGS = (
    Setting((3, -7, 5)),
    Setting((-128, 127, 127)),
    Setting((127, -128, -128)),
    Setting((0, 0, 0), "ties"),
    Setting((-128, 3, 11), "saturate"),
    Setting((11, -128, 0), "overflow"),
)


def settings_for(op: Op, index: int) -> list[Setting]:
    """The first case of an operator meets every setting, the others one each, in turn, plus their own data rule."""
    if index == 0:
        return list(SETTINGS)
    named = {"saturate": SETTINGS[4], "ties": SETTINGS[3]}
    case = op.cases[index]
    return [named.get(case.values, SETTINGS[index % len(SETTINGS)])]


def rng(*key: object) -> np.random.Generator:
    """A generator seeded by what is tested."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def float_inputs(op: Op, case: Case) -> list[Array]:
    """Float operands of a case; 'special' data holds NaN, infinities, denormals, huge and half-way values."""
    generator = rng(op.name, case)
    arrays = [generator.normal(0, 2, shape).astype(np.float32) for shape in case.shapes]
    if case.values == "special":
        special = np.array([np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 0.0, -0.0, 0.5, 1.5, -2.5], np.float32)
        arrays[0].reshape(-1)[: special.size] = special[: arrays[0].size]
    if case.values == "ties":
        arrays[0] = (np.rint(arrays[0] * 4) / 8).astype(np.float32)
    if op.name in ("batch_norm", "sqrt", "rsqrt", "log", "log1p", "pow", "pow_tensors"):
        arrays = [np.abs(a) + np.float32(0.1) for a in arrays]
    if op.name == "update":
        arrays[2] = np.rint(arrays[2] * 2)
    if op.name == "ranked":
        arrays = [np.rint(a * 2) for a in arrays]
    if op.name in ("asin", "acos", "atanh"):
        arrays = [np.tanh(a) for a in arrays]
    if op.name == "acosh":
        arrays = [np.abs(a) + np.float32(1) for a in arrays]
    return arrays


def single_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node as it stands, on float values where the operator takes them, else on int8; and its inputs."""
    if op.operands[0].dtypes == (INT32,):
        return integer_graph(op, case)
    return (float_graph if takes_floats(op) else int8_only_graph)(op, case)


def float_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one float node, and its inputs."""
    graph = Graph()
    inputs: dict[str, Array] = {}
    names = []
    for position, array in enumerate(float_inputs(op, case)):
        if op.operand(position, case.attrs).constant:
            dtypes = op.operand(position, case.attrs).dtypes
            dtype = INT16 if case.values == "int16" and INT16 in dtypes else dtypes[0]
            steps = {FLOAT32: array, INT8: np.clip(50 * array, -127, 127).astype(np.int8)}
            steps[INT16] = np.clip(13_000 * array, -32767, 32767).astype(np.int16)
            names.append(graph.add_constant(f"c{position}", steps[dtype] if dtype in steps else places(op, case)))
            continue
        name = f"x{position}"
        graph.inputs.append(name)
        integers = op.operand(position, case.attrs).dtypes == (INT32,)
        graph.types[name] = TensorType(array.shape, INT32 if integers else FLOAT32)
        inputs[name] = array
        names.append(name)
    shape, dtype = op.check(tuple(graph.types[n] for n in names), case.attrs)
    q = QParams(0.05, -3) if dtype == INT8X4 else None
    graph.types["y"] = TensorType(shape, dtype, q)
    graph.nodes.append(Node(op.name, tuple(names), "y", case.attrs))
    graph.outputs.append("y")
    return graph, inputs


def takes_floats(op: Op) -> bool:
    """Whether a case of an operator is one of float32, or of numbers that are not rounded."""
    return not {FLOAT32, INT32}.isdisjoint(op.operands[0].dtypes) or op.operands[0].constant


def takes_integers(op: Op) -> bool:
    """Whether an activation of an operator may be int32."""
    return any(INT32 in operand.dtypes and not operand.constant for operand in op.operands)


def takes_steps(op: Op) -> bool:
    """Whether an operator without an int8 form reads int8 as it is stored, beside float32."""
    return op.int8 is None and {FLOAT32, INT8X4} <= set(op.operands[0].dtypes)


def _whole(value: float) -> float:
    """A number of an attribute as an integer; a bound that leaves a side open stays one."""
    return value if abs(value) == FLOAT_MAX else float(round(4 * value))


def integer_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """`float_graph` with int32 where the operator takes it: small numbers, and the ends of what int32 holds."""
    attrs = {name: _whole(v) if isinstance(v, float) else v for name, v in case.attrs.items()}
    graph, inputs = float_graph(op, replace(case, attrs=attrs))
    for position, (name, array) in enumerate(inputs.items()):
        if INT32 in op.operand(position, case.attrs).dtypes:
            drawn = rng(op.name, case, position).integers(-9, 10, array.shape).astype(np.int32)
            if op.operand(position, case.attrs).name != "indices":
                drawn.reshape(-1)[:4] = np.array([2**31 - 1, -(2**31), 2**24 + 1, -(2**30)])[: drawn.size]
            graph.types[name], inputs[name] = TensorType(array.shape, INT32), drawn
            graph.values.set(name, bounds=(-(2**31), 2**31 - 1))
    graph.types["y"] = TensorType(*op.check(tuple(graph.types[n] for n in graph.nodes[0].inputs), attrs))
    return graph, inputs


def places(op: Op, case: Case) -> Array:
    """The operand of integers: places along a dimension."""
    return rng(op.name, case).integers(0, case.attrs["extent"], case.shapes[1]).astype(np.int32)


def int8_only_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node on one int8 value, whole numbers for operators that read float32 too, and its input."""
    q = QParams(1.0 if takes_steps(op) else 0.037, -11)
    graph = Graph(["x"], ["y"], [Node(op.name, ("x",), "y", case.attrs)])
    graph.types["x"] = TensorType(case.shapes[0], INT8X4, q)
    shape, dtype = op.check((graph.types["x"],), case.attrs)
    graph.types["y"] = TensorType(shape, dtype, q if dtype == INT8X4 else None)
    return graph, {"x": extremes(rng(op.name, case), case.shapes[0])}


def int8_graph(op: Op, case: Case, setting: Setting) -> tuple[Graph, dict[str, Array]]:
    """The fused graph of dequantize -> op -> quantize around a case, and its int8 inputs."""
    graph, inputs = unfused_graph(op, case, setting)
    return run_passes(graph), inputs


def unfused_graph(op: Op, case: Case, setting: Setting) -> tuple[Graph, dict[str, Array]]:
    """`int8_graph` as it is before the passes."""
    graph, inputs, out = float_result(op, case, setting)
    if case.attrs.get("result") in ("state", "both"):  # of a recurrent layer, which is float32
        return graph, inputs
    low, high = out.range
    graph.types["y"] = TensorType(graph.types["real"].shape, out.dtype, out)
    graph.nodes.append(Node("quantize", ("real",), "y", {"lo": low, "hi": high}))
    graph.outputs = ["y"]
    return graph, inputs


def float_ended(op: Op, case: Case, setting: Setting, after: str = "") -> tuple[Graph, dict[str, Array]]:
    """A graph of a float operator of int8 or int16 values whose result nothing quantizes, before the passes."""
    graph, inputs, _ = float_result(op, case, setting)
    return graph, inputs


def float_result(op: Op, case: Case, setting: Setting) -> tuple[Graph, dict[str, Array], QParams]:
    """dequantize -> op around a case, its inputs, and the scale and zero point that its result would be stored with."""
    generator = rng(op.name, case, setting)
    graph = Graph()
    inputs: dict[str, Array] = {}
    names: list[str] = []
    for position, shape in enumerate(case.shapes):
        if op.operand(position, case.attrs).dtypes[0] == INT32:
            names.append(graph.add_constant(f"c{position}", places(op, case)))
            continue
        if op.operand(position, case.attrs).constant:
            weight = position == 1 and isinstance(op.int8, WeightedSum | Recurrent)
            group = int(case.values.removeprefix("bits")) if weight and case.values.startswith("bits") else 0
            names.append(_constant(graph, generator, position, shape, setting, weight, group))
            if isinstance(op.int8, Recurrent) and weight:
                graph.constants["w.scale"] /= np.float32(16)  # layers that do not stretch what is rounded step by step
            if op.operand(position, case.attrs).name == "variance":
                graph.constants[names[-1]] = np.abs(graph.constants[names[-1]]) + np.float32(0.125)
            continue
        name, real = f"x{position}", f"r{position}"
        if op.operand(position, case.attrs).real:
            names.append(_state(graph, generator, name, shape, inputs))
            if op.name == "update":
                inputs[names[-1]] = np.rint(inputs[names[-1]] * 4)
            continue
        scale = 2.0**-4 if setting.mode == "ties" else float(np.float32(generator.uniform(0.01, 0.08)))
        first = min(position, 1)
        q = setting.q(first, scale if setting.dtypes[first] == INT8X4 else scale / 256)
        if op.keeps_int8 and position:
            q = graph.types["x0"].q or q
        q = PROJECTED if isinstance(op.int8, Recurrent) else q
        turned = isinstance(op.int8, Product) and position == 1
        stored = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
        graph.inputs.append(name)
        graph.types[name] = TensorType(stored, q.dtype, q)
        graph.types[real] = TensorType(stored)
        graph.nodes.append(Node("dequantize", (name,), real))
        inputs[name] = extremes(generator, stored, q.dtype)
        if q is PROJECTED:
            inputs[name] = np.rint(generator.normal(0, 2 / q.scale, stored)).astype(np.int16)
        names.append(_turned(graph, real, shape) if turned else real)
    shape, _ = op.check(tuple(graph.types[n] for n in names), case.attrs)
    graph.types["real"] = TensorType(shape)
    graph.nodes.append(Node(op.name, tuple(names), "real", case.attrs))
    graph.outputs = ["real"]
    shared = graph.types["x0"].q if op.keeps_int8 else None
    return graph, inputs, shared or _output(graph, inputs, setting)


def _state(
    graph: Graph, generator: np.random.Generator, name: str, shape: tuple[int, ...], inputs: dict[str, Array]
) -> str:
    """An operand in float32: a state that a recurrent layer begins with."""
    graph.inputs.append(name)
    graph.types[name] = TensorType(shape)
    inputs[name] = generator.normal(0, 0.5, shape).astype(np.float32)
    return name


def _turned(graph: Graph, name: str, shape: tuple[int, ...]) -> str:
    """The last two dimensions swapped: a product's second operand comes as its int8 form reads it, in one node."""
    graph.types["turned"] = TensorType(shape)
    dims = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    graph.nodes.append(Node("permute", (name,), "turned", {"dims": dims}))
    return "turned"


def extremes(generator: np.random.Generator, shape: Sequence[int], dtype: str = INT8X4) -> Array:
    """Random integers of a dtype with a good share of the smallest and the largest."""
    low, high = RANGES[dtype]
    values = generator.integers(low, high + 1, shape, dtype=np.int16 if dtype == INT8X4 else np.int32)
    values[generator.random(shape) < 0.15] = low
    values[generator.random(shape) < 0.15] = high
    return values.astype(DTYPES[dtype])


def _constant(
    graph: Graph,
    g: np.random.Generator,
    position: int,
    shape: tuple[int, ...],
    setting: Setting,
    weight: bool,
    group: int = 0,
) -> str:
    """An int8 weight with a scale per output channel, or one of 4 bits with a factor for each `group` of inputs; or
    float parameters."""
    if not weight:
        return graph.add_constant(f"c{position}", (g.normal(0, 0.5, shape) * 64).round().astype(np.float32) / 64)
    channels = shape[0]
    scale, values = g.uniform(0.001, 0.02, channels), extremes(g, shape)
    if setting.mode == "ties":  # a step of the sum is no small part of a step of the result, so that many are half-way
        scale, values = np.full(channels, 2.0**-5), g.integers(-1, 2, shape).astype(np.int8)
    if group:
        factors = extremes(g, (channels, -(-shape[1] // group))).clip(-127).astype(np.int16)
        steps = (extremes(g, shape) >> 4).astype(np.int16)
        scale, values = scale / 64, steps * np.repeat(factors, group, axis=1)[:, : shape[1]]
    parts = (
        graph.add_constant("w", values),
        graph.add_constant("w.scale", scale.astype(np.float32)),
        graph.add_constant("w.zero", np.zeros(channels, np.int32)),
    )
    graph.types["w.real"] = TensorType(shape)
    graph.nodes.append(Node("dequantize_weight", parts, "w.real", {"axis": 0}))
    return "w.real"


def _output(graph: Graph, inputs: dict[str, Array], setting: Setting) -> QParams:
    real = reference.run(graph, inputs)["real"].astype(np.float64)
    real = real[np.isfinite(real)] if np.isfinite(real).any() else np.ones(1)  # int8 inputs leave log's domain
    span = max(float(np.ptp(real)), float(np.abs(real).max()), 1e-3)
    steps = RANGES[setting.dtypes[2]][1] * 2 + 1
    scale = {
        "random": span / steps,
        "saturate": span * 0.28 / steps,
        "overflow": span * 1e-9,
        "ties": 2.0 ** np.ceil(np.log2(span / steps)),
    }[setting.mode]
    return setting.q(2, float(scale))
