"""The rules of a graph, checked after every pass and on every loaded model."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import BOOL, DTYPES, FLOAT32, INT32, RANGES, UINT8, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.op import INT16_RANGE, MAX_WORK, Op
from q8ta_wgpu.kernels import OPS

RUNNABLE = "runnable"
"""The stage of graphs in model files. Every operator has a kernel. Constant operands are constants, with values that
kernels can rely on. No value has more than MAX_ELEMENTS elements, no dispatch more than MAX_WORK steps. Inputs and
outputs are float32, int32, int8x4 or int16x4."""

LOWEST = -(1 << 31)
"""The smallest int32."""

RESCALES = "view"
"""The move that may change scale and zero point: slices with different scales are stored in one tensor (see
passes/scale_slices.py)."""

WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64")
"""Dtypes of states that hold whole numbers."""

MAX_ELEMENTS = 1 << 31
"""Limit of elements of a value: addresses are u32. Larger ones, which no device can bind, are refused before they are
allocated."""


def verify(graph: Graph, stage: str = "", known: Graph | None = None) -> None:
    """Raises GraphError for the first rule that `graph` breaks. `stage` names the last pass, or is RUNNABLE. Nodes that
    are also in a `known` graph of this stage, with the same operands, are not verified once more: the weights of a
    decoder alone took a second at every opening."""
    where = f" after {stage}" if stage not in ("", RUNNABLE) else ""
    defined = dict.fromkeys((*graph.inputs, *graph.constants))
    for name in (*graph.inputs, *graph.constants, *graph.outputs):
        if name not in graph.types:
            raise GraphError(f"value {name} has no type{where}")
    for name, t in graph.types.items() if stage == RUNNABLE else ():
        if t.numel > MAX_ELEMENTS:
            raise GraphError(f"value {name} would have {t.numel} elements, more than {MAX_ELEMENTS}")
    for name, array in graph.constants.items():
        t = graph.types[name]
        if array.shape != t.shape or array.dtype != np.dtype(DTYPES[t.dtype]):
            raise GraphError(f"constant {name} is {array.dtype}{list(array.shape)}, its type says {t}{where}")
    before = {id(node): node for node in known.nodes} if known else {}
    for node in graph.nodes:
        _verify_order(graph, node, defined, where)
        if not (known and id(node) in before and _same_operands(node, graph, known)):
            _verify_node(graph, node, where, stage == RUNNABLE)
        defined[node.output] = None
    for name in graph.outputs:
        if name not in defined:
            raise GraphError(f"output {name} is written by no node{where}")
    _verify_states(graph, where)
    if not graph.results:
        raise GraphError(f"the graph has no outputs{where}")
    if stage == RUNNABLE:
        _verify_ports(graph, defined)


def _verify_states(graph: Graph, where: str) -> None:
    if len(graph.buffers) > min(len(graph.inputs), len(graph.outputs)):
        raise GraphError(f"{len(graph.buffers)} states are read and written, found fewer inputs or outputs{where}")
    for state in graph.states:
        if state.dtype not in (FLOAT32, *WHOLE):
            raise GraphError(f"buffer {state.name} is {state.dtype}: it must be one of {', '.join(WHOLE)}{where}")
        if state.initial not in graph.constants:
            raise GraphError(f"state {state.name} begins with {state.initial}, which is no constant{where}")
        types = [graph.types[name] for name in (state.read, state.written, state.initial)]
        if set(types) != {types[0]}:
            raise GraphError(f"state {state.name} is read as {types[0]}, written as {types[1]}, begins as {types[2]}")
        if graph.values[state.read].given:
            raise GraphError(f"state {state.name} is no argument, so it can have no other dtype{where}")


def _verify_ports(graph: Graph, defined: dict[str, None]) -> None:
    seen: set[str] = set()
    for name in graph.inputs:
        if name in seen or name in graph.constants:
            raise GraphError(f"input {name} is also {'a constant' if name in graph.constants else 'another input'}")
        seen.add(name)
    for name in (*graph.inputs, *graph.outputs):
        if graph.types[name].dtype not in (FLOAT32, INT32, *RANGES):
            wanted = " or ".join((FLOAT32, INT32, *RANGES))
            raise GraphError(f"{name} goes in or out, so it must be {wanted}, found {graph.types[name]}")
    for name in {*graph.inputs, *graph.values}:
        _verify_port(graph, name)
    for name in graph.types:
        if name not in defined:
            raise GraphError(f"value {name} is neither input, constant nor the output of a node")


def _verify_port(graph: Graph, name: str) -> None:
    """Raises GraphError if what is known of a value can only be known of an input, or of one of another type."""
    known, t = graph.values[name], graph.types.get(name) if name in graph.inputs else None
    for dtype, q in _GIVEN.items():
        if known.given == dtype and (t is None or name in graph.outputs or t.q != q):
            said = f"scale 1 and zero point {q.zero}"
            raise GraphError(f"{name} is given as {dtype}, so it must be an input alone, of {said}")
    low, high = known.bounds or (0, -1)
    integers = t is not None and t.dtype == INT32
    if (known.bounds or integers) and not (integers and LOWEST <= low <= 0 <= high <= -LOWEST - 1):
        raise GraphError(f"{name}: an int32 input, and no other value, has bounds within int32 that enclose 0")
    for dim, (step, _) in known.fixed.items():
        if t is None or not 0 <= dim < len(t.shape) or not 0 <= step <= MAX_ELEMENTS:
            raise GraphError(f"dimension {dim} of {name} changes by multiples of {step}: it must be one of an input")


_GIVEN = {"uint8": UINT8, "bool": BOOL}


def _what(node: Node, where: str) -> str:
    return f"node {node.output} ({node.op}){where}" + (f", from {node.source}" if node.source else "")


def _verify_order(graph: Graph, node: Node, defined: dict[str, None], where: str) -> None:
    if node.op not in OPS:
        raise GraphError(f"{_what(node, where)}: there is no operator {node.op!r}")
    for name in node.inputs:
        if name not in defined:
            raise GraphError(f"{_what(node, where)} reads {name}, which nothing before it writes")
    if node.output in defined:
        raise GraphError(f"{_what(node, where)} writes {node.output} a second time")
    if node.output not in graph.types:
        raise GraphError(f"{_what(node, where)}: its output has no type")


def _same_operands(node: Node, graph: Graph, known: Graph) -> bool:
    """Whether the values that a node reads and writes have the same types and constants in both graphs."""
    return all(
        graph.types[name] == known.types.get(name) and graph.constants.get(name) is known.constants.get(name)
        for name in (*node.inputs, node.output)
    )


def _verify_node(graph: Graph, node: Node, where: str, runnable: bool) -> None:
    what, op = _what(node, where), OPS[node.op]
    inputs, found = tuple(graph.types[name] for name in node.inputs), graph.types[node.output]
    try:
        shape, dtype = op.check(inputs, node.attrs)
    except GraphError as error:
        raise GraphError(f"{what}: {error}") from None
    if found.shape != shape or found.dtype not in (dtype, *op.results):
        raise GraphError(f"{what} gives {_type_text(shape, dtype)}, its type says {found}")
    if found.q and op.schema.get("lo") is INT16_RANGE:
        (low, high), (lo, hi) = found.q.range, (node.attrs["lo"], node.attrs["hi"])
        if lo < low or hi > high:
            raise GraphError(f"{what} has the range {lo}..{hi}, its result is {found.dtype}: {low}..{high}")
    operands = [op.operand(i, node.attrs) for i in range(len(inputs))]
    moving = [t for t, operand in zip(inputs, operands, strict=True) if not (operand.constant or operand.real)]
    if op.keeps_int8 and op.name != RESCALES and dtype != FLOAT32 and any(t.q != found.q for t in moving):
        raise GraphError(f"{what} only moves bytes, but scale or zero point change: {inputs[0]} to {found}")
    if runnable:
        _verify_runnable(graph, node, op, what)


def _verify_runnable(graph: Graph, node: Node, op: Op, what: str) -> None:
    call = graph.call(node)
    if not op.kernels:
        raise GraphError(f"{what}: the operator has no kernel")
    if (steps := op.steps(call)) > MAX_WORK:
        raise GraphError(f"{what} would take {steps:.3g} steps, more than the {MAX_WORK:.3g} one dispatch may take")
    arrays = [graph.constants.get(name) for name in node.inputs]
    for position, array in enumerate(arrays):
        operand = op.operand(position, call.attrs)
        if not operand.constant:
            continue
        if array is None:
            raise GraphError(f"{what}: input {position} ({operand.name}) must be a constant")
        if operand.valid is not None and (text := operand.valid(call, arrays)):
            raise GraphError(f"{what}: input {position} ({operand.name}) {text}")


def _type_text(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def infer(graph: Graph, node: Node, q: QParams | None = None) -> TensorType:
    """The type of a node's output by its shape rule, with scale and zero point `q`. Without `q`, an operator that moves
    elements keeps its first input's."""
    op = OPS[node.op]
    inputs = tuple(graph.types[name] for name in node.inputs)
    shape, dtype = op.check(inputs, node.attrs)
    if q is None and op.keeps_int8:
        q = inputs[0].q
    return TensorType(shape, q.dtype if q else dtype, q)
