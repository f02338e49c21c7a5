"""What the kernel tests share: data for the cases of the operator table, single-operator graphs, forced layouts."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, INT16X4, INT32, RANGES, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Product, WeightedSum
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import Layout, pack, packed_axis, unpack
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.product.units import NVIDIA
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.limits import allowed as allowed_layouts
from q8ta_wgpu.passes.layout_sync.limits import input_layouts
from q8ta_wgpu.passes.layout_sync.plan import Plan, Step, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Port, Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor

POISON = 0x8F7F80FF


def sampled(device: Device) -> bool:
    """Whether a device meets a part of the kernels that Vulkan meets: OpenGL, and SwiftShader through Dawn, where the
    same WGSL goes through another compiler."""
    return not device.name.endswith("(Vulkan, wgpu-native)")


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


WIDE_SUMS = (
    Setting((300, -7, -5000), "random", (INT16X4, INT8X4, INT16X4)),
    Setting((-32768, 32767, 127), "random", (INT16X4, INT16X4, INT8X4)),
    Setting((-128, 32767, -32768), "saturate", (INT8X4, INT16X4, INT16X4)),
    Setting((0, 0, 0), "ties", (INT16X4, INT16X4, INT16X4)),
)
"""Of an add with int16."""

WIDE_RESIDUALS = (
    Setting((3, 300, -5000), "random", (INT8X4, INT16X4, INT16X4)),
    Setting((-128, 127, 32767), "saturate", (INT8X4, INT8X4, INT16X4)),
    Setting((127, -32768, -128), "random", (INT8X4, INT16X4, INT8X4)),
)
"""Of a weighted sum with a residual, where it or the result is int16."""

WIDE_NORMS = (
    Setting((0, 0, 5), "random", (INT16X4, INT16X4, INT8X4)),
    Setting((-32768, 0, -128), "saturate", (INT16X4, INT16X4, INT8X4)),
)
"""Of a norm that reads a stream."""

LONG_ROWS = Case(((2, 4096), (4096,), (4096,)), {"eps": 1e-6})

WIDE_MOVES = Setting((-700, -700, -700), "random", (INT16X4, INT16X4, INT16X4))


def wide_graphs() -> Iterator[tuple[str, Setting, Graph, dict[str, Array]]]:
    """Int16 wherever it can be: a name, the setting, the graph before the passes and its inputs."""
    for index, setting in enumerate(WIDE_SUMS):
        yield f"add {index}", setting, *unfused_graph(OPS["add"], OPS["add"].cases[index], setting)
    for name, settings in (
        ("linear", WIDE_RESIDUALS),
        ("conv2d", WIDE_RESIDUALS[:1]),
        ("conv_transpose2d", WIDE_RESIDUALS[:1]),
    ):
        for index, setting in enumerate(settings):
            op = OPS[name]
            yield f"{name} {index}", setting, *unfused_epilogue(op, op.cases[index], setting, "residual requantize")
    yield "linear", WIDE_RESIDUALS[0], *unfused_graph(OPS["linear"], OPS["linear"].cases[0], WIDE_RESIDUALS[0])
    for name, setting, case in (
        ("layer_norm", WIDE_NORMS[0], 0),
        ("layer_norm", WIDE_NORMS[1], 2),
        ("rms_norm", WIDE_NORMS[1], 1),
    ):
        yield f"{name} {case}", setting, *unfused_graph(OPS[name], OPS[name].cases[case], setting)
    for name, case in (("view", 0), ("pad", 2), ("permute", 0), ("slice", 0), ("slice", 4), ("cat", 0), ("cat", 8)):
        yield f"{name} {case}", WIDE_MOVES, *unfused_graph(OPS[name], OPS[name].cases[case], WIDE_MOVES)
    for index, (setting, shape) in enumerate(
        zip(WIDE_SUMS, ((2, 5, 3, 7), (3, 13), (2, 8, 4, 4), (257,)), strict=True)
    ):
        yield f"requantize {index}", setting, *_converted(setting, shape, "dequantize", "quantize")
        yield f"dequantize {index}", setting, *_converted(setting, shape, "dequantize")
        yield f"quantize {index}", setting, *_converted(setting, shape, "quantize")


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
    if op.name in ("batch_norm", "sqrt", "rsqrt", "log", "pow", "pow_tensors"):
        arrays = [np.abs(a) + np.float32(0.1) for a in arrays]
    return arrays


def single_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node as it stands, on float values where the operator takes them, else on int8; and its inputs."""
    return (float_graph if FLOAT32 in op.operands[0].dtypes else int8_only_graph)(op, case)


def float_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one float node, and its inputs."""
    graph = Graph()
    inputs: dict[str, Array] = {}
    names = []
    for position, array in enumerate(float_inputs(op, case)):
        if op.operand(position, case.attrs).constant:
            dtype = op.operand(position, case.attrs).dtypes[0]
            names.append(graph.add_constant(f"c{position}", array if dtype == FLOAT32 else places(op, case)))
            continue
        name = f"x{position}"
        graph.inputs.append(name)
        graph.types[name] = TensorType(array.shape)
        inputs[name] = array
        names.append(name)
    shape, dtype = op.check(tuple(graph.types[n] for n in names), case.attrs)
    q = QParams(0.05, -3) if dtype == INT8X4 else None
    graph.types["y"] = TensorType(shape, dtype, q)
    graph.nodes.append(Node(op.name, tuple(names), "y", case.attrs))
    graph.outputs.append("y")
    return graph, inputs


def places(op: Op, case: Case) -> Array:
    """The operand of integers: places along a dimension."""
    return rng(op.name, case).integers(0, case.attrs["extent"], case.shapes[1]).astype(np.int32)


def int8_only_graph(op: Op, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node on one int8 value, for operators that read int8 alone, and its input."""
    q = QParams(0.037, -11)
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
    graph, inputs, out = _unfused(op, case, setting)
    low, high = out.range
    graph.types["y"] = TensorType(graph.types["real"].shape, out.dtype, out)
    graph.nodes.append(Node("quantize", ("real",), "y", {"lo": low, "hi": high}))
    graph.outputs = ["y"]
    return graph, inputs


SIMPLE = (
    "residual requantize",
    "curve requantize",
    "requantize add",
    "requantize table",
    "requantize pixel_shuffle dequantize",
    "requantize add pixel_shuffle dequantize",
    "scale",
    "scale pixel_shuffle",
)
COMBINED = tuple(
    " ".join(filter(None, stages))
    for stages in itertools.product(
        ("", "residual", "curve"), ("requantize",), ("", "add", "table"), ("", "dequantize", "pixel_shuffle dequantize")
    )
)[1:]
EPILOGUES = tuple(dict.fromkeys((*SIMPLE, *COMBINED)))
"""What may follow a weighted sum in its dispatch, but for rounding alone: names of stages."""

EVERY_COMBINED = 5
"""Stages know nothing of each other, so not every case meets every combination of them: each meets the simple ones, and
of the others every so-manieth, in turn."""


def epilogues_of(index: int) -> tuple[str, ...]:
    """The epilogues that a case meets."""
    return tuple(e for n, e in enumerate(EPILOGUES) if e in SIMPLE or (n + index) % EVERY_COMBINED == 0)


def epilogue_graph(op: Op, case: Case, setting: Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """The fused graph of a weighted operator with what follows it, one of EPILOGUES. A pixel_shuffle is left out where
    the channels allow none."""
    graph, inputs = unfused_epilogue(op, case, setting, after)
    return run_passes(graph), inputs


def unfused_epilogue(op: Op, case: Case, setting: Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """`epilogue_graph` as it is before the passes."""
    graph, inputs, out = _unfused(op, case, setting)
    shape = graph.types["real"].shape
    factor, last, made = _factor(shape), "real", out

    def emit(kind: str, sources: tuple[str, ...], t: TensorType, **attrs: object) -> str:
        name = graph.fresh(f"{kind}.y")
        graph.types[name] = t
        graph.nodes.append(Node(kind, sources, name, attrs))
        return name

    def other(name: str) -> str:
        graph.inputs.append(name)
        narrower = 256 if (setting.dtypes[1], out.dtype) == (INT8X4, INT16X4) else 1
        wider = 256 if (setting.dtypes[1], out.dtype) == (INT16X4, INT8X4) else 1
        ratio = 0.9 if setting.zeros[1] % 2 else 1.7  # with a residual, those up to 1.0 round by an addition
        q = setting.q(1, out.scale * ratio * narrower / wider)
        graph.types[name] = TensorType(shape, q.dtype, q)
        inputs[name] = extremes(rng(op.name, case, after, name), shape, q.dtype)
        return emit("dequantize", (name,), TensorType(shape))

    def rounded(value: str, q: QParams, lo: int, hi: int) -> str:
        return emit("quantize", (value,), TensorType(shape, q.dtype, q), lo=lo, hi=hi)

    for stage in after.split():
        match stage:
            case "residual":
                last = emit("add", (last, other("residual")), TensorType(shape), alpha=1.0)
            case "curve":
                last = emit("silu", (last,), TensorType(shape))
            case "requantize":
                last = rounded(last, out, out.range[0] + 8, out.range[1])
            case "add" | "table":
                real = emit("dequantize", (last,), TensorType(shape))
                joined = (real, other("addend")) if stage == "add" else (real,)
                kind, attrs = ("add", {"alpha": 1.0}) if stage == "add" else ("silu", {})
                made = QParams(out.scale * 1.3, setting.zeros[2])
                last = rounded(emit(kind, joined, TensorType(shape), **attrs), made, -128, 121)
            case "pixel_shuffle" if factor > 1:
                moved, _ = OPS["pixel_shuffle"].check((graph.types[last],), {"upscale_factor": factor})
                moved_type = TensorType(moved) if after.startswith("scale") else TensorType(moved, INT8X4, made)
                last = emit("pixel_shuffle", (last,), moved_type, upscale_factor=factor)
            case "dequantize":
                last = emit("dequantize", (last,), TensorType(graph.types[last].shape))
    graph.outputs = [last]
    return graph, inputs


def graphs() -> Iterator[tuple[Graph, int, int]]:
    """The fused graphs of every operator's cases: as it stands, in int8, and weighted sums with what follows them. With
    each the index of its case, and of its epilogue from 1 on (0: none)."""
    for op in OPS.values():
        for index, case in enumerate(op.cases):
            yield single_graph(op, case)[0], index, 0
            if FLOAT32 in op.operands[0].dtypes and op.int8:
                yield int8_graph(op, case, SETTINGS[0])[0], index, 0
            if isinstance(op.int8, WeightedSum):
                for after in epilogues_of(index):
                    yield epilogue_graph(op, case, SETTINGS[0], after)[0], index, EPILOGUES.index(after) + 1
    for index, (_, _, graph, _) in enumerate(wide_graphs()):
        yield run_passes(graph), index, 0


def stages_of(node: Node) -> str:
    """The names of a node's stages, a pixel_shuffle left out; none where there is no epilogue."""
    names = [stage.name for stage in node.attrs["epilogue"].stages] if "epilogue" in node.attrs else []
    return " ".join(name for name in names if name != "pixel_shuffle")


def rounding(node: Node) -> Requantize:
    """The stage in which a weighted sum is rounded."""
    found: Requantize = next(stage for stage in node.attrs["epilogue"].stages if isinstance(stage, Requantize))
    return found


PARTS = {"add": "q8ta_add", "table": "q8ta_table"}


def parts(node: Node) -> list[str]:
    """The int8 operators one node stands for: those folded into it one by one."""
    return [node.op, *(PARTS[name] for name in stages_of(node).split() if name in PARTS)]


def _factor(shape: Sequence[int]) -> int:
    """The largest pixel_shuffle factor the channels of (n, c, h, w) allow; 1 for other ranks."""
    return max(f for f in (1, 2, 3) if shape[1] % f**2 == 0) if len(shape) == 4 else 1


def _unfused(op: Op, case: Case, setting: Setting) -> tuple[Graph, dict[str, Array], QParams]:
    generator = rng(op.name, case, setting)
    graph = Graph()
    inputs: dict[str, Array] = {}
    names: list[str] = []
    for position, shape in enumerate(case.shapes):
        if op.operand(position, case.attrs).dtypes[0] == INT32:
            names.append(graph.add_constant(f"c{position}", places(op, case)))
            continue
        if op.operand(position, case.attrs).constant:
            weight = position == 1 and isinstance(op.int8, WeightedSum)
            names.append(_constant(graph, generator, position, shape, setting, weight))
            if op.operand(position, case.attrs).name == "variance":
                graph.constants[names[-1]] = np.abs(graph.constants[names[-1]]) + np.float32(0.125)
            continue
        name, real = f"x{position}", f"r{position}"
        scale = 2.0**-4 if setting.mode == "ties" else float(np.float32(generator.uniform(0.01, 0.08)))
        first = min(position, 1)
        q = setting.q(first, scale if setting.dtypes[first] == INT8X4 else scale / 256)
        if op.keeps_int8 and position:
            q = graph.types["x0"].q or q
        turned = isinstance(op.int8, Product) and position == 1
        stored = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
        graph.inputs.append(name)
        graph.types[name] = TensorType(stored, q.dtype, q)
        graph.types[real] = TensorType(stored)
        graph.nodes.append(Node("dequantize", (name,), real))
        inputs[name] = extremes(generator, stored, q.dtype)
        names.append(_turned(graph, real, shape) if turned else real)
    shape, _ = op.check(tuple(graph.types[n] for n in names), case.attrs)
    graph.types["real"] = TensorType(shape)
    graph.nodes.append(Node(op.name, tuple(names), "real", case.attrs))
    graph.outputs = ["real"]
    shared = graph.types["x0"].q if op.keeps_int8 else None
    return graph, inputs, shared or _output(graph, inputs, setting)


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
    graph: Graph, g: np.random.Generator, position: int, shape: tuple[int, ...], setting: Setting, weight: bool
) -> str:
    """An int8 weight with a scale per output channel, or float parameters."""
    if not weight:
        return graph.add_constant(f"c{position}", (g.normal(0, 0.5, shape) * 64).round().astype(np.float32) / 64)
    channels = shape[0]
    scale, values = g.uniform(0.001, 0.02, channels), extremes(g, shape)
    if setting.mode == "ties":  # a step of the sum is no small part of a step of the result, so that many are half-way
        scale, values = np.full(channels, 2.0**-5), g.integers(-1, 2, shape).astype(np.int8)
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


UNITS = replace(BASELINE, name="matrix units", workgroup_memory=49152, matrix_units=(NVIDIA,))
"""A GPU with matrix units, which no adapter of CI's has: what runs there alone is linked and compiled in CI, and its
bytes are compared by `python -m bench check` on such a GPU."""


def plans(graph: Graph, index: int, targets: Sequence[Target] = (BASELINE, SOFTWARE)) -> Iterator[tuple[str, Plan]]:
    """For a graph of one node: a plan for every kernel that runs on one of the targets, in enough layouts that each one
    is read and written."""
    assert len(graph.nodes) == 1, graph
    node = graph.nodes[0]
    op, call = OPS[node.op], graph.call(node)
    for kernel in op.kernels:
        if not any(kernel.runs(call, target) for target in targets):
            continue
        for layouts, out in combinations(op, kernel, graph, node, index):
            step = Step(node, call, Variant(kernel, layouts, out))
            placed = {n: layout for n, layout in zip(node.inputs, layouts, strict=True) if layout is not None}
            text = " ".join(layout.short for layout in layouts if layout is not None)
            yield f"{kernel.name} {text} -> {out.short}", Plan((step,), {**placed, node.output: out})


def plans_or_none(graph: Graph, index: int) -> Sequence[tuple[str, Plan | None]]:
    """`plans`, and for what several nodes run, or will once it is lowered, None: the plan of layout sync."""
    return (list(plans(graph, index)) if len(graph.nodes) == 1 else []) or [("lowered", None)]


def combinations(
    op: Op, kernel: Kernel, graph: Graph, node: Node, index: int
) -> Iterator[tuple[tuple[Layout | None, ...], Layout]]:
    """Layouts of the inputs and the output: in turn, shifted against each other, every one at least once."""
    call = graph.call(node)
    options = input_layouts(kernel, call)
    outs = allowed_layouts(kernel.output, call.output.dtype)
    rounds = max([len(o) for o in options] + [len(outs)])
    for turn in range(rounds):
        layouts: list[Layout | None] = []
        axis: int | None = None
        for position, choice in enumerate(options):
            if kernel.synced and axis is not None:
                choice = tuple(c for c in choice if packed_axis(c) == axis)
            layout = choice[(turn + position) % len(choice)] if choice else None
            axis = packed_axis(layout) if layout is not None else axis
            layouts.append(layout)
        allowed = tuple(o for o in outs if not kernel.synced or packed_axis(o) == axis)
        yield tuple(layouts), allowed[(turn + index % 2) % len(allowed)]


def dispatches(graph: Graph, plan: Plan) -> Iterator[tuple[Step, Plan, Graph]]:
    """Every dispatch of a network's plan alone: its step, the plan and the graph of its one node."""
    for step in plan.steps:
        node, out = step.node, step.node.output
        alone = Graph(list(dict.fromkeys(n for n in node.inputs if n not in graph.constants)), [out], [node])
        alone.types = {**dict(zip(node.inputs, step.call.inputs, strict=True)), out: step.call.output}
        alone.constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
        layouts = {
            name: layout for name, layout in zip(node.inputs, step.variant.reads, strict=True) if layout is not None
        }
        yield step, Plan((step,), {**layouts, out: step.variant.out}), alone


def assert_close(op: Op, found: Array, expected: Array, what: str) -> None:
    """Equal bytes, or floats within the operator's own tolerance, relative to each value or to the largest."""
    if op.tolerance == 0:
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    size = max(float(np.abs(expected).max()), 1.0)
    np.testing.assert_allclose(found, expected, rtol=op.tolerance, atol=op.tolerance * size, err_msg=what)


def words_of(array: Array, port: Port) -> Array:
    """An input as its port wants it, with garbage in the padding lanes."""
    if port.dtype not in RANGES:
        return array
    layout = next(layout for layout in Layout if layout.short == port.layout)
    used = pack(np.full(array.shape, -1, DTYPES[port.dtype]), layout)
    return pack(array, layout) | (~used & np.uint32(POISON))


def program_of(graph: Graph, target: Target = BASELINE) -> Program:
    """The program of a runnable graph, in the layouts that layout sync chooses."""
    lowered = lower(graph, target)
    return build(lowered, target, sync_layouts(lowered, target))


def run_poisoned(
    graph: Graph, inputs: dict[str, Array], plan: Plan | None, device: Device, target: Target | None = None
) -> list[Array]:
    """Runs on a device with every slot and every padding lane of the inputs filled with garbage; `target` is what it is
    scheduled for, if not the device's own."""
    target = target or device.target
    executor = Executor(program_of(graph, target) if plan is None else build(graph, target, plan), device)
    try:
        executor.poison(POISON)
        words = [words_of(inputs[port.name], port) for port in executor.program.inputs]
        found = executor.run(words)
        return [
            unpack(w, port.shape, next(layout for layout in Layout if layout.short == port.layout), DTYPES[port.dtype])
            if port.dtype in RANGES
            else w.reshape(port.shape)
            for w, port in zip(found, executor.program.outputs, strict=True)
        ]
    finally:
        executor.close()


def flat(outputs: object) -> list[Array]:
    """The arrays of a session's outputs, whatever their structure."""
    if isinstance(outputs, np.ndarray):
        return [outputs]
    assert isinstance(outputs, (tuple, list, dict))
    items = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for item in items for array in flat(item)]
