"""A call that reaches a kernel: from the operators' cases, through the passes, as a model's would be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Attrs, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.limits import allowed, input_layouts
from q8ta_wgpu.passes.lower import lower

_Q = QParams(0.0625, 3)


def example(name: str, targets: Sequence[Target]) -> tuple[Variant, Call, Target]:
    """The first case that reaches the kernel `name`: a way to run it, the call, and the first target it runs on.

    Raises InputError where no kernel has that name, with near matches, or none of the targets runs it.
    """
    names = {kernel.name for op in OPS.values() for kernel in op.kernels}
    if name not in names:
        near = difflib.get_close_matches(name, sorted(names), n=5, cutoff=0.5)
        raise InputError(f"no kernel is called {name!r}; near it: {', '.join(near) or 'none'}")
    own = name.split(".")[0].removeprefix("q8ta_")
    for op in sorted(OPS.values(), key=lambda op: not own.startswith(op.name)):
        for case in op.cases if op.kernels else ():
            for target in targets:
                for call in _calls(op, case, target):
                    for kernel in OPS[call.op].kernels:
                        if kernel.name == name and kernel.runs(call, target):
                            reads = tuple(layouts[0] if layouts else None for layouts in input_layouts(kernel, call))
                            return Variant(kernel, reads, allowed(kernel.output, call.output.dtype)[0]), call, target
    raise InputError(f"no case reaches {name} on {' or '.join(target.name for target in targets)}")


def _calls(op: Op, case: Case, target: Target) -> Iterator[Call]:
    """The calls that a case becomes: as it is, on int8 values, and on float values that are quantized first."""
    for quantized, image in ((False, False), (True, False), (True, True)):
        if quantized and (op.int8 is None or FLOAT32 not in op.operands[0].dtypes):
            continue
        graph = lower(run_passes(graph_of(op, case, quantized, image)), target)
        yield from (graph.call(node) for node in graph.nodes)


def graph_of(op: Op, case: Case, quantized: bool, image: bool) -> Graph:
    """A case as a graph: on float values, `quantized` on int8 values, or as an `image` on floats quantized first."""
    graph, names = Graph(), list[str]()
    for position, shape in enumerate(case.shapes):
        operand = op.operand(position, case.attrs)
        if operand.constant:
            weight = quantized and position == 1 and isinstance(op.int8, WeightedSum)
            names.append(_constant(graph, position, shape, weight))
            continue
        dtype = INT8X4 if (quantized and not image) or FLOAT32 not in operand.dtypes else FLOAT32
        name = f"x{position}"
        graph.inputs.append(name)
        graph.types[name] = TensorType(shape, dtype, _Q if dtype == INT8X4 else None)
        if image:
            name = _appended(graph, "quantize", name, TensorType(shape, INT8X4, _Q), {"lo": -128, "hi": 127})
        names.append(_appended(graph, "dequantize", name, TensorType(shape)) if quantized else name)
    shape, dtype = op.check(tuple(graph.types[name] for name in names), case.attrs)
    y = _appended(graph, op.name, names, TensorType(shape, dtype, _Q if dtype == INT8X4 else None), case.attrs)
    if quantized:
        y = _appended(graph, "quantize", y, TensorType(shape, INT8X4, _Q), {"lo": -128, "hi": 127})
    graph.outputs.append(y)
    return graph


def _appended(graph: Graph, op: str, inputs: str | list[str], t: TensorType, attrs: Attrs | None = None) -> str:
    """The value of a node added at the end."""
    name = graph.fresh(op)
    graph.types[name] = t
    graph.nodes.append(Node(op, (inputs,) if isinstance(inputs, str) else tuple(inputs), name, attrs or {}))
    return name


def _constant(graph: Graph, position: int, shape: tuple[int, ...], weight: bool) -> str:
    """Ones; the weight of a quantized sum is int8 with a scale for each of its rows."""
    if not weight:
        return graph.add_constant(f"c{position}", np.ones(shape, np.float32))
    scale = graph.add_constant("scale", np.full(shape[0], 0.0625, np.float32))
    zero = graph.add_constant("zero", np.zeros(shape[0], np.int32))
    parts = [graph.add_constant("weight", np.ones(shape, np.int8)), scale, zero]
    return _appended(graph, "dequantize_weight", parts, TensorType(shape), {"axis": 0})
