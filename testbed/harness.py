"""What the kernel tests share: what a fused node holds, every kernel in every layout, runs on poisoned memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, RANGES, Array, Graph, Node
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import Layout, pack, packed_axis, unpack
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.product.units import NVIDIA
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step, sync_layouts
from q8ta_wgpu.passes.layout_sync.limits import allowed as allowed_layouts
from q8ta_wgpu.passes.layout_sync.limits import input_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Port, Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed.epilogue_graphs import EPILOGUES, epilogue_graph
from testbed.int16_graphs import single_nodes
from testbed.op_graphs import (
    SETTINGS,
    int8_graph,
    int8_only_graph,
    integer_graph,
    single_graph,
    takes_integers,
    takes_steps,
)
from testbed.sample import EVERYTHING, in_turn

POISON = 0x8F7F80FF


def graphs() -> Iterator[tuple[Graph, int, int]]:
    """`plain_graphs`, and weighted sums with what follows them. With each the index of its case, and of its epilogue
    from 1 on (0: none)."""
    yield from ((graph, index, 0) for graph, index in plain_graphs())
    for op in OPS.values():
        for index, case in enumerate(op.cases) if isinstance(op.int8, WeightedSum) else ():
            for after in in_turn(EPILOGUES, index, 4):
                yield epilogue_graph(op, case, SETTINGS[0], after)[0], index, EPILOGUES.index(after) + 1


def plain_graphs() -> Iterator[tuple[Graph, int]]:
    """The fused graphs of every operator's cases, as it stands and in int8, with the index of the case."""
    for op in OPS.values():
        for index, case in enumerate(op.cases):
            yield single_graph(op, case)[0], index
            if takes_integers(op):
                yield integer_graph(op, case)[0], index
            if takes_steps(op):
                yield int8_only_graph(op, case)[0], index
            if FLOAT32 in op.operands[0].dtypes and op.int8:
                yield int8_graph(op, case, SETTINGS[0])[0], index
    yield from ((graph, index) for index, (_, graph, _) in enumerate(single_nodes()))


def stages_of(node: Node) -> str:
    """The names of a node's stages, a pixel_shuffle left out; none where there is no epilogue."""
    names = [stage.name for stage in node.attrs["epilogue"].stages] if "epilogue" in node.attrs else []
    return " ".join(name for name in names if name != "pixel_shuffle")


def rounding(node: Node) -> Requantize:
    """The stage in which a weighted sum is rounded."""
    found: Requantize = next(stage for stage in node.attrs["epilogue"].stages if isinstance(stage, Requantize))
    return found


PARTS = {"add": "q8ta_add", "mul": "q8ta_mul", "table": "q8ta_table"}


def parts(node: Node) -> list[str]:
    """The int8 operators one node stands for: those folded into it one by one."""
    return [node.op, *(PARTS[name] for name in stages_of(node).split() if name in PARTS)]


UNITS = replace(BASELINE, name="matrix units", workgroup_memory=49152, matrix_units=(NVIDIA,))
"""A GPU with matrix units, which no adapter of CI's has: what runs there alone is linked and compiled in CI, and its
bytes are compared by `python -m bench engines` on such a GPU."""


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


def one_each(found: Iterable[tuple[str, Plan]], index: int) -> Iterator[tuple[str, Plan]]:
    """Of the plans of each kernel one: the layouts whose turn comes with the index of a case."""
    for _, group in itertools.groupby(found, lambda item: item[1].steps[0].variant.kernel):
        plans_of_kernel = list(group)
        yield plans_of_kernel[index % len(plans_of_kernel)]


def sampled_plans(graph: Graph, index: int, every: bool = True) -> Iterator[tuple[str, Plan]]:
    """An operator's first case meets every kernel, in `every` layout or in one. The others meet each kernel in one, in
    turn; of products, whose tiles take long to compile, a third of the kernels and those for one row."""
    found = plans(graph, index)
    if EVERYTHING or (index == 0 and every):
        yield from found
        return
    for name, plan in one_each(found, index):
        (step,) = plan.steps
        few = "epilogue" not in step.node.attrs or "gemv" in name
        if index == 0 or few or taken(step, index, 3):
            yield name, plan


def taken(step: Step, turn: int, every: int) -> bool:
    """Whether the turn of a kernel among its operator's comes: one of `every` turns, or of three where nothing else is
    left out: lavapipe keeps each pipeline until its process ends."""
    kernels = OPS[step.node.op].kernels
    place = next(i for i, kernel in enumerate(kernels) if kernel is step.variant.kernel)
    return (place + turn) % (min(every, 3) if EVERYTHING else every) == 0


def plans_or_none(graph: Graph, index: int, device: Device) -> Sequence[tuple[str, Plan | None]]:
    """`sampled_plans`; for what several nodes run, or will once it is lowered, None: the plan of layout sync."""
    if len(graph.nodes) != 1 or not any(plans(graph, index)):
        return [("lowered", None)]
    sampled = "OpenGL" in device.name or "SwiftShader" in device.name
    return list(sampled_plans(graph, index, every=not sampled))


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
    (found,) = run_each_poisoned(graph, [inputs], plan, device, target)
    return found


def run_each_poisoned(
    graph: Graph, every: Iterable[dict[str, Array]], plan: Plan | None, device: Device, target: Target | None = None
) -> list[list[Array]]:
    """`run_poisoned` for several inputs of one graph, by one executor."""
    target = target or device.target
    executor = Executor(program_of(graph, target) if plan is None else build(graph, target, plan), device)
    results = []
    try:
        for inputs in every:
            executor.poison(POISON)
            found = executor.run([words_of(inputs[port.name], port) for port in executor.program.inputs])
            results.append(list(map(_unpacked, found, executor.program.outputs)))
    finally:
        executor.close()
    return results


def _unpacked(words: Array, port: Port) -> Array:
    """A result as an array of its shape."""
    if port.dtype not in RANGES:
        return words.reshape(port.shape)
    layout = next(layout for layout in Layout if layout.short == port.layout)
    return unpack(words, port.shape, layout, DTYPES[port.dtype])


def flat(outputs: object) -> list[Array]:
    """The arrays of a session's outputs, whatever their structure."""
    if isinstance(outputs, np.ndarray):
        return [outputs]
    assert isinstance(outputs, (tuple, list, dict))
    items = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for item in items for array in flat(item)]
