"""Calls that reach a kernel: the operators' cases, passed through the passes as a model would be."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.commands import case_graphs
from q8ta_wgpu.errors import InputError, nearest
from q8ta_wgpu.ir.graph import (
    BOOL,
    DTYPES,
    FLOAT32,
    INT8X4,
    INT16X4,
    RANGES,
    Array,
    Call,
    Graph,
    Node,
)
from q8ta_wgpu.ir.int8 import Arithmetic
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


def example(name: str, targets: Sequence[Target]) -> tuple[Variant, Call, Target]:
    """The first case that reaches the kernel `name`: a variant, the call, and the first target it runs on.

    Raises InputError where no kernel has that name, with similar names, or where it runs on none of the targets.
    """
    names = sorted(kernel.name for op in OPS.values() for kernel in op.kernels)
    if name not in names:
        raise InputError(f"no kernel is called {name!r}; there are, among others, {', '.join(nearest(name, names))}")
    for target in targets:
        for graph, kernels in reached(target, DTYPES, name.split(".")[0].removeprefix("q8ta_").removeprefix("q16ta_")):
            for kernel in (each for each in kernels.values() if each.name == name):
                call = graph.call(graph.nodes[0])
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


def reached(target: Target, dtypes: Container[str], first: str = "") -> Iterator[tuple[Graph, dict[str, Kernel]]]:
    """Graphs of one node, whose result has one of the dtypes, with the kernels that no graph before them reached. With
    int16, and with an optional operand, a kernel is another one. Cases of an operator whose name `first` begins with
    come first."""
    seen = set[str]()
    for graph in (_alone(several, node) for several in _several(target, first) for node in several.nodes):
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


def _several(target: Target, first: str) -> Iterator[Graph]:
    """Graphs of the cases, and graphs for operators that only fusion makes."""
    yield from case_graphs.runnable()
    for op in sorted(OPS.values(), key=lambda op: not first.startswith(op.name)):
        for case in sorted(op.cases, key=_size, reverse=True) if op.kernels else ():
            yield from _graphs(op, case, target)
    for graph in case_graphs.fused():
        yield lower(run_passes(graph), target)


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


def _graphs(op: Op, case: Case, target: Target) -> Iterator[Graph]:
    """Graphs of a case: as it is, on int8 values, on float values that are quantized first, on int16 values where it
    takes them, and for two operands with an activation before the result is rounded."""
    yield lower(run_passes(case_graphs.graph_of(op, case, False, False)), target)
    if op.int8 is None or FLOAT32 not in op.operands[0].dtypes:
        return
    wide = [True] * (op.int8.reads_int16 or op.int8.gives_int16)
    for image, activation, int16 in (
        *((False, "", False), (True, "", False), (False, "hardswish", False)),
        *((False, activation, int16) for activation in ("", "hardswish") for int16 in wide),
    ):
        if not activation or (isinstance(op.int8, Arithmetic) and len(op.operands) == 2):
            yield lower(run_passes(case_graphs.graph_of(op, case, True, image, activation, int16)), target)
