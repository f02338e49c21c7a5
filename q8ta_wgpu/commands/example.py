"""Calls that reach a kernel: the operators' cases, passed through the passes as a model would be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.errors import InputError
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
    Array,
    Attrs,
    Call,
    Graph,
    Node,
    QParams,
    TensorType,
)
from q8ta_wgpu.ir.int8 import MASKED, Arithmetic, Recurrent, WeightedSum
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import word_count
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.passes.layout_sync.limits import allowed, input_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program import link

_Q = QParams(0.0625, 3)
_WIDE = QParams(_Q.scale / 256, 300, INT16X4)


def example(name: str, targets: Sequence[Target]) -> tuple[Variant, Call, Target]:
    """The first case that reaches the kernel `name`: a variant, the call, and the first target it runs on.

    Raises InputError where no kernel has that name, with similar names, or where it runs on none of the targets.
    """
    names = {kernel.name for op in OPS.values() for kernel in op.kernels}
    if name not in names:
        near = difflib.get_close_matches(name, sorted(names), n=5, cutoff=0.5)
        way = f"near it: {', '.join(near)}" if near else "kernels have names such as relu or q8ta_conv2d.pw_32x64"
        raise InputError(f"no kernel is called {name!r}; {way}")
    own = name.split(".")[0].removeprefix("q8ta_").removeprefix("q16ta_")
    for op in sorted(OPS.values(), key=lambda op: not own.startswith(op.name)):
        for case in op.cases if op.kernels else ():
            for target in targets:
                for call in _calls(op, case, target):
                    for kernel in OPS[call.op].kernels:
                        if kernel.name == name and kernel.runs(call, target):
                            return _variant(kernel, call), call, target
    raise InputError(f"no case reaches {name} on {' or '.join(target.name for target in targets)}")


@dataclass(frozen=True)
class Sample:
    """A kernel with an int8 or int16 result and a call for it: `inputs` by name, optional operands included, and the
    `expected` output of the reference."""

    kernel: str
    graph: Graph
    plan: Plan
    inputs: dict[str, Array]
    expected: Array


def samples(target: Target) -> Iterator[Sample]:
    """Every kernel with an int8 or int16 result that runs on a target, each on a large case that reaches it, with
    random numbers: with int8 and with int16, where it takes both."""
    for graph, kernels in reached(target, RANGES):
        (node,) = graph.nodes
        call, inputs = graph.call(node), _random(graph)
        expected = reference.run(graph, inputs)[node.output]
        for label, kernel in kernels.items():
            variant = _variant(kernel, call)
            named = zip(node.inputs, variant.reads, strict=True)
            layouts = {name: layout for name, layout in named if layout is not None}
            plan = Plan((Step(node, call, variant),), {**layouts, node.output: variant.out})
            yield Sample(label, graph, plan, inputs, expected)


def texts(target: Target) -> Iterator[tuple[str, str]]:
    """Name and WGSL of every kernel that runs on a target, for a case that reaches it."""
    for graph, kernels in reached(target, DTYPES):
        call = graph.call(graph.nodes[0])
        for label, kernel in kernels.items():
            variant, op = _variant(kernel, call), OPS[call.op]
            fields = link.fields(kernel, op, call, word_count(call.output.shape, variant.out))
            yield label, link.link(kernel, op, call, variant.reads, variant.out, fields, target)


def reached(target: Target, dtypes: Container[str]) -> Iterator[tuple[Graph, dict[str, Kernel]]]:
    """Graphs of one node, whose result has one of the dtypes, with the kernels that no graph before them reached. With
    int16, and with an optional operand, a kernel is another one."""
    seen = set[str]()
    for graph in (_alone(several, node) for several in _several(target) for node in several.nodes):
        call = graph.call(graph.nodes[0])
        op = OPS[call.op]
        more = "".join(f" with {o.name}" for o in op.operands[: len(call.inputs)] if o.optional)
        more += " with int16" if _chooses_int16(call) else ""
        kernels = {k.name + more: k for k in op.kernels if k.name + more not in seen and k.runs(call, target)}
        if call.output.dtype in dtypes and kernels:
            seen.update(kernels)
            yield graph, kernels


def _chooses_int16(call: Call) -> bool:
    """Whether a call gives int16, or reads it where it could read int8."""
    pairs = zip(OPS[call.op].operands, call.inputs, strict=False)
    reads = any(t.dtype == INT16X4 and INT8X4 in operand.dtypes for operand, t in pairs)
    return reads or call.output.dtype == INT16X4


def _several(target: Target) -> Iterator[Graph]:
    """Graphs of the cases, and graphs for operators that only fusion makes."""
    yield from (_rows_with_scales(), _written())
    for op in OPS.values():
        for case in sorted(op.cases, key=_size, reverse=True) if op.kernels else ():
            yield from _graphs(op, case, target, random=True)
    for graph in (_attention(), _attention(masked=True), _narrowed(), _normalized(), _masked(3), _masked(1)):
        yield lower(run_passes(graph), target)


def _attention(masked: bool = False) -> Graph:
    """softmax(q kᵀ) v in int8, with rows that end within the blocks of every kernel."""
    graph, names = Graph(), list[str]()
    for name, shape in (("q", (2, 70, 32)), ("k", (2, 83, 32)), ("v", (2, 83, 32))):
        graph.inputs.append(name)
        graph.types[name] = TensorType(shape, INT8X4, QParams(0.01, 3))
        names.append(_appended(graph, "dequantize", name, TensorType(shape)))
    q, k, v = names
    k = _appended(graph, "permute", k, TensorType((2, 32, 83)), {"dims": (0, 2, 1)})
    y = _appended(graph, "matmul", [q, k], TensorType((2, 70, 83)))
    if masked:
        graph.inputs.append("chosen")
        graph.types["chosen"] = TensorType((1, 1, 83), INT8X4, BOOL)
        chosen = _appended(graph, "dequantize", "chosen", TensorType((1, 1, 83)))
        ends = [graph.add_constant(name, np.array([end], np.float32)) for name, end in (("on", 0.0), ("off", MASKED))]
        added = _appended(graph, "where", [chosen, *ends], TensorType((1, 1, 83)))
        y = _appended(graph, "add", [y, added], TensorType((2, 70, 83)), {"alpha": 1.0})
    y = _appended(graph, "softmax", y, TensorType((2, 70, 83)), {"dim": 2})
    y = _appended(graph, "matmul", [y, v], TensorType((2, 70, 32)))
    graph.outputs.append(_requantized(graph, y, QParams(0.004, -5)))
    return graph


def _rows_with_scales() -> Graph:
    """Rows of float32 in int8, of which some saturate."""
    graph = Graph(["x"], types={"x": TensorType((5, 260))})
    scales = np.array([[2**23], [100 * 2**21], [2**28], [2**29], [2**30]], np.float32)
    to = TensorType((5, 260), INT8X4, arithmetic.row_unit(None))
    graph.outputs.append(_appended(graph, "quantize_rows", ["x", graph.add_constant("scales", scales)], to))
    return graph


def _written() -> Graph:
    """Turned rows at all the places of a state."""
    shapes = {"x": (2, 7, 16), "cos": (7, 16), "sin": (7, 16)}
    graph = Graph(list(shapes), types={name: TensorType(shape, INT16X4, _WIDE) for name, shape in shapes.items()})
    places = graph.add_constant("places", np.array([3, 0, 6, 1, -2, 4, 2], np.float32))
    low, high = _WIDE.range
    factors = {f"{name}_multiplier": 2.0**-8 for name in ("cos", "sin")}
    attrs = {"pairs": False, "lo": low, "hi": high, **factors, "dim": 1, "extent": 7, "from_end": True}
    to = TensorType((2, 7, 16), INT16X4, _WIDE)
    graph.outputs.append(_appended(graph, "q8ta_rotary_update", [*shapes, places], to, attrs))
    return graph


def _narrowed() -> Graph:
    """An int16 value requantized to int8."""
    graph = Graph(["x"])
    graph.types["x"] = TensorType((3, 257), INT16X4, QParams(0.05, -7, INT16X4))
    y = _appended(graph, "dequantize", "x", TensorType((3, 257)))
    graph.outputs.append(_requantized(graph, y, _Q))
    return graph


def _normalized() -> Graph:
    """A batch norm of a float32 input, quantized."""
    graph, shape = Graph(["x"]), (2, 21, 5, 70)
    graph.types["x"] = TensorType(shape)
    numbers = (np.linspace(0.5, 1.5, 21), np.linspace(-1, 1, 21), np.linspace(-2, 2, 21), np.linspace(0.5, 2, 21))
    stored = [graph.add_constant(f"p{i}", each.astype(np.float32)) for i, each in enumerate(numbers)]
    y = _appended(graph, "batch_norm", ["x", *stored], TensorType(shape), {"eps": 1e-5})
    graph.outputs.append(_requantized(graph, y, _Q))
    return graph


def _masked(dim: int) -> Graph:
    """A softmax over the elements that bools select."""
    shape = (2, 21, 5, 70)
    powers = np.rint(np.exp(-np.arange(256) * _Q.scale) * 2.0**16)
    graph = Graph(["x", "chosen"])
    graph.types["x"] = TensorType(shape, INT8X4, _Q)
    graph.types["chosen"] = TensorType(shape, INT8X4, BOOL)
    inputs = ["x", graph.add_constant("powers", np.stack((powers, 256 * powers)).astype(np.int32)), "chosen"]
    to = TensorType(shape, INT8X4, QParams(1 / 256, -128))
    attrs = {"dim": dim, "even": True, "lo": -128, "hi": 127}
    graph.outputs.append(_appended(graph, "q8ta_softmax", inputs, to, attrs))
    return graph


def _requantized(graph: Graph, x: str, q: QParams) -> str:
    low, high = q.range
    return _appended(graph, "quantize", x, TensorType(graph.types[x].shape, q.dtype, q), {"lo": low, "hi": high})


def _alone(graph: Graph, node: Node) -> Graph:
    """A node as a graph of its own, whose inputs are the values it reads."""
    read = list(dict.fromkeys(node.inputs))
    types = {name: graph.types[name] for name in (*read, node.output)}
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    return Graph([name for name in read if name not in constants], [node.output], [node], types, constants)


def _size(case: Case) -> int:
    """Elements of a case's operands. Cases that are slow in the reference come last, the largest at the end."""
    size = sum(math.prod(shape) for shape in case.shapes)
    return size if size <= 1 << 16 else -size


def _random(graph: Graph) -> dict[str, Array]:
    """Inputs over the whole range of int8, its ends included, and floats of that range."""
    rng, found = np.random.default_rng(0), dict[str, Array]()
    for name in graph.inputs:
        t = graph.types[name]
        drawn = rng.integers(-160, 160, t.shape).clip(-128, 127)
        if t.q == BOOL:
            drawn = drawn & 1
        elif t.q and t.dtype == INT16X4:  # values up to about 6, whatever its steps are
            drawn = drawn * round(0.05 / t.q.scale)
        stored = np.int16 if t.dtype == INT16X4 else np.int8
        found[name] = (drawn.astype(np.float32) - 3) / 16 if t.dtype == FLOAT32 else drawn.astype(stored)
    return found


def _variant(kernel: Kernel, call: Call) -> Variant:
    """A kernel with the first layouts that it takes."""
    reads = tuple(layouts[0] if layouts else None for layouts in input_layouts(kernel, call))
    return Variant(kernel, reads, allowed(kernel.output, call.output.dtype)[0])


def _calls(op: Op, case: Case, target: Target) -> Iterator[Call]:
    for graph in _graphs(op, case, target):
        yield from (graph.call(node) for node in graph.nodes)


def _graphs(op: Op, case: Case, target: Target, random: bool = False) -> Iterator[Graph]:
    """Graphs of a case: as it is, on int8 values, on float values that are quantized first, on int16 values where it
    takes them, and for two operands with an activation before the result is rounded."""
    yield lower(run_passes(graph_of(op, case, False, False, random)), target)
    if op.int8 is None or FLOAT32 not in op.operands[0].dtypes:
        return
    wide = [True] * (op.int8.reads_int16 or op.int8.gives_int16)
    for image, activation, int16 in (
        *((False, "", False), (True, "", False), (False, "hardswish", False)),
        *((False, activation, int16) for activation in ("", "hardswish") for int16 in wide),
    ):
        if not activation or (isinstance(op.int8, Arithmetic) and len(op.operands) == 2):
            yield lower(run_passes(graph_of(op, case, True, image, random, activation, int16)), target)


def graph_of(
    op: Op,
    case: Case,
    quantized: bool,
    image: bool,
    random: bool = False,
    activation: str = "",
    int16: bool = False,
) -> Graph:
    """A case as a graph: on float values, `quantized` on int8 values, or as an `image` on floats quantized first.

    Constants are ones, or `random`. An `activation` is added before the quantize at the end. With `int16` operands and
    result are int16, where the operator takes and gives them.
    """
    reads = _WIDE if int16 and op.int8 and op.int8.reads_int16 else _Q
    gives = _WIDE if int16 and op.int8 and op.int8.gives_int16 else _Q
    graph, names = Graph(), list[str]()
    for position, shape in enumerate(case.shapes):
        operand = op.operand(position, case.attrs)
        if operand.constant:
            if operand.dtypes[0] in (INT8, INT32):
                names.append(graph.add_constant("numbers", np.zeros(shape, DTYPES[operand.dtypes[0]])))
                continue
            weight = quantized and position == 1 and isinstance(op.int8, WeightedSum | Recurrent)
            group = int(case.values.removeprefix("bits")) if case.values.startswith("bits") else 0
            names.append(_constant(graph, position, shape, weight, random, group))
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
            low, high = q.range
            name = _appended(graph, "quantize", name, TensorType(shape, q.dtype, q), {"lo": low, "hi": high})
        names.append(_appended(graph, "dequantize", name, TensorType(shape)) if rounded else name)
    shape, dtype = op.check(tuple(graph.types[name] for name in names), case.attrs)
    y = _appended(graph, op.name, names, TensorType(shape, dtype, _Q if dtype == INT8X4 else None), case.attrs)
    if activation:
        y = _appended(graph, activation, y, TensorType(shape))
    if quantized:
        y = _requantized(graph, y, gives)
    graph.outputs.append(y)
    return graph


def _appended(graph: Graph, op: str, inputs: str | list[str], t: TensorType, attrs: Attrs | None = None) -> str:
    """The value of a node added at the end."""
    name = graph.fresh(op)
    graph.types[name] = t
    graph.nodes.append(Node(op, (inputs,) if isinstance(inputs, str) else tuple(inputs), name, attrs or {}))
    return name


def _constant(graph: Graph, position: int, shape: tuple[int, ...], weight: bool, random: bool, group: int = 0) -> str:
    """Ones, or random numbers around 1. The weight of a quantized sum is int8 with a scale for each row, or of 4 bits
    with a factor for each `group` of inputs; a random one spreads the sums as its operands are spread."""
    rng = np.random.default_rng(position)
    if not weight:
        values = rng.uniform(0.5, 1.5, shape) if random else np.ones(shape)
        return graph.add_constant(f"c{position}", values.astype(np.float32))
    spread = 1 / (74 * math.prod(shape[1:]) ** 0.5)
    scales = rng.uniform(0.5 * spread, spread, shape[0]) if random else np.full(shape[0], 0.0625)
    weights = rng.integers(-127, 128, shape) if random else np.ones(shape)
    if group:
        factors = rng.integers(1, 17, (shape[0], -(-shape[1] // group)))
        weights = (weights // 16 if random else weights).astype(np.int64) * np.repeat(factors, group, axis=1)[
            :, : shape[1]
        ]
    parts = [
        graph.add_constant("weight", weights.astype(np.int16 if group else np.int8)),
        graph.add_constant("scale", scales.astype(np.float32)),
        graph.add_constant("zero", np.zeros(shape[0], np.int32)),
    ]
    return _appended(graph, "dequantize_weight", parts, TensorType(shape), {"axis": 0})
