"""The generic fusion: dequantize -> x -> (clamps) -> quantize becomes the int8 form of x, for every operator x."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, INT32, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import (
    MASK,
    RESIDUAL,
    ROWS,
    Arithmetic,
    Elementwise,
    Int8Form,
    Monotonic,
    Moves,
    NoInt8Form,
    Normalization,
    PRelu,
    Product,
    QuantizedCall,
    Recurrent,
    Rowwise,
    Weight,
    WeightedSum,
)
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.elementwise import chain
from q8ta_wgpu.passes.operands import affine_of, int8_behind, rows_behind, transposed, unscaled
from q8ta_wgpu.passes.plan.regions import Region, Regions, rounded_to
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.unmask import FLOAT_MASK, adds_float_numbers, unmasked


def fuse_int8(graph: Graph) -> None:
    """Replaces regions by int8 operators, and notes why an operator with an int8 form stays in float32."""
    rewriter = Rewriter(graph)
    regions = Regions(rewriter)
    for node in rewriter.nodes():
        kind = OPS[node.op].int8
        if kind is None or isinstance(kind, Moves | Monotonic):
            continue
        if reason := graph.values[node.output].in_float:
            _note(graph, node, reason)
            continue
        if graph.types[node.inputs[0]].dtype == INT32:
            continue
        region = regions.find(node)
        readers = rewriter.readers(region.end)
        for quantize in (r for r in readers if r.op == "quantize" and not _is_state(node)):
            if reason := _fuse(rewriter, region, quantize):
                float_mask = reason.startswith(_NOT_QUANTIZED) and adds_float_numbers(rewriter, node)
                _note(graph, node, FLOAT_MASK if float_mask else reason)
        read_as_float = region.end in graph.outputs or any(reader.op != "quantize" for reader in readers)
        if (isinstance(kind, WeightedSum | Recurrent) and read_as_float) or _is_state(node):
            reason = _fuse(rewriter, Region.of(node), None)
            if reason and not reason.startswith(_NOT_QUANTIZED):
                _note(graph, node, reason)
    rewriter.commit()


def _is_state(node: Node) -> bool:
    """Whether a node computes the last state of a recurrent layer, which is float32 in the int8 form, too."""
    return isinstance(OPS[node.op].int8, Recurrent) and bool(node.attrs["result"] != "sequence")


_NOT_QUANTIZED = "an input is not quantized"


def _without_scale(name: str) -> str:
    """The reason that names an input which is not quantized. The report counts such reasons as one cause."""
    return f"{_NOT_QUANTIZED}; {name} is float32"


def _note(graph: Graph, node: Node, reason: str) -> None:
    text = f"{node.output}: {node.op} stays in float32: {reason}{node.origin}"
    if text not in graph.notes:
        graph.notes.append(text)


def _fuse(rewriter: Rewriter, region: Region, quantize: Node | None) -> str:
    """Replaces `quantize`, or with None the region's first node, by the int8 form of the region. Returns the reason
    where there is no such form, else an empty string."""
    node = region.first
    reader, mask = unmasked(rewriter, node)
    reader, factor = unscaled(rewriter, reader)
    call = _quantized_call(rewriter, reader, replace(region, factor=region.factor * factor), quantize)
    if isinstance(call, str):
        return call
    try:
        form = _int8_form(node, replace(call, masked=mask.name is not None, even=mask.even))
    except NoInt8Form as error:
        return str(error)
    old = quantize or node

    def source(operand: int | Array) -> str | Array:
        if mask.name is not None and operand is MASK:
            return mask.name
        return _int8_source(rewriter, old, reader, region, operand)

    try:
        inputs, dtype = _inputs(rewriter, old, form, source)
    except GraphError as error:
        return str(error)
    found = rewriter.graph.types[old.output].dtype
    if found not in (dtype, *OPS[form.op].results):
        return f"{form.op} gives {dtype}, not {found}"
    rewriter.replace(old, Node(form.op, inputs, old.output, form.attrs, node.source))
    return ""


def _inputs(
    rewriter: Rewriter, old: Node, form: Int8Form, source: Callable[[int | Array], str | Array]
) -> tuple[tuple[str, ...], str]:
    """The names of an int8 form's operands, and the dtype of its result.

    New constants are added to the graph, and nodes of forms that are operands are inserted before `old`, the node that
    is replaced. Raises GraphError where an operator does not take its operands; few operators take int16.
    """
    graph, op = rewriter.graph, OPS[form.op]
    sources, types = list[str | Array](), list[TensorType]()
    for operand in form.operands:
        found = _inserted(rewriter, old, operand, source) if isinstance(operand, Int8Form) else source(operand)
        sources.append(found)
        types.append(graph.types[found] if isinstance(found, str) else TensorType(found.shape, str(found.dtype)))
    _, dtype = op.check(tuple(types), form.attrs)
    names = (
        found if isinstance(found, str) else graph.add_constant(f"{old.output}.{op.operand(i, form.attrs).name}", found)
        for i, found in enumerate(sources)
    )
    return tuple(names), dtype


def _inserted(rewriter: Rewriter, old: Node, form: Int8Form, source: Callable[[int | Array], str | Array]) -> str:
    """Inserts the node of a form that is an operand of another one; returns its value's name."""
    inputs, _ = _inputs(rewriter, old, form, source)
    return rewriter.insert(old, form.op, inputs, form.attrs, f"{old.output}.{form.op}", form.q)


def _int8_source(rewriter: Rewriter, old: Node, node: Node, region: Region, operand: int | Array) -> str | Array:
    """An operand of an int8 form: a new constant, or the name of the value that a node's float operand is made of. The
    second operand of a product is transposed before `old`."""
    if isinstance(operand, np.ndarray):
        return operand
    if operand in (0, ROWS) and (rows := _rows(rewriter, node)) is not None:
        return rows[operand == ROWS]
    if operand != RESIDUAL and OPS[node.op].operand(operand, node.attrs).real:
        return node.inputs[operand]
    name = region.addend if operand == RESIDUAL else node.inputs[operand]
    int8 = int8_behind(rewriter, name) if name is not None else None
    if int8 is None and _reads_float32(OPS[node.op], operand):
        return node.inputs[operand]
    assert int8 is not None
    second = isinstance(OPS[node.op].int8, Product) and operand == 1
    return transposed(rewriter, old, int8) if second else int8


def _rows(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    """(int8 rows, scales) of a node's first operand, if its rows have a scale each and the node supports that."""
    kind = OPS[node.op].int8
    return rows_behind(rewriter, node.inputs[0]) if isinstance(kind, WeightedSum) and kind.reads_rows else None


def _reads_float32(op: Op, position: int) -> bool:
    return position == 0 and op.int8 is not None and op.int8.reads_float32


def _quantized_call(rewriter: Rewriter, node: Node, region: Region, quantize: Node | None) -> QuantizedCall | str:
    """A region as its operator's `lower` reads it, or the reason why it is not quantized."""
    graph, op = rewriter.graph, OPS[node.op]
    rows = _rows(rewriter, node)
    operands = _operands(rewriter, node, rows)
    if isinstance(operands, str):
        return _without_scale(operands)
    q, constants = operands
    out, lo, hi = rounded_to(graph, region, quantize) if quantize else (None, -128, 127)
    if reason := _too_wide(op, q, out):
        return reason
    addend = int8_behind(rewriter, region.addend) if region.addend else None
    residual = graph.types[addend].q if addend else None
    slopes = activation = None
    if region.activation and isinstance(OPS[region.activation.op].int8, PRelu):
        slopes = graph.constants[region.activation.inputs[1]]
    elif region.activation:
        activation = _function(region.activation)
    elif region.functions:
        activation = _chained(region.functions)
    inputs = tuple(graph.types[name] for name in node.inputs)
    affine = _affine(graph, region.norm) if region.norm else None
    fused = (residual, affine, activation, slopes)
    largest = _largest_scale(rewriter, rows[1]) if rows is not None else 0.0
    return QuantizedCall(node.attrs, inputs, tuple(q), constants, out, lo, hi, *fused, rows=largest)


def _operands(
    rewriter: Rewriter, node: Node, rows: tuple[str, str] | None
) -> tuple[list[QParams | None], dict[int, Weight | Array]] | str:
    """The quantization of each operand, None for constants and float32, and the constants by position. Or the name of
    an operand that is float32 but that the operator needs quantized."""
    graph, op = rewriter.graph, OPS[node.op]
    q: list[QParams | None] = []
    constants: dict[int, Weight | Array] = {}
    for position, name in enumerate(node.inputs):
        if rows is not None and position == 0:
            q.append(graph.types[rows[0]].q)
            continue
        if op.operand(position, node.attrs).real:
            q.append(None)
            continue
        int8 = int8_behind(rewriter, name)
        if int8 is not None and not op.operand(position, node.attrs).constant:
            q.append(graph.types[int8].q)
            continue
        q.append(None)
        constant = _constant(rewriter, name)
        if constant is None and _reads_float32(op, position):
            continue
        if constant is None:
            return name
        weighted = isinstance(op.int8, WeightedSum | Recurrent)
        constants[position] = constant if weighted else _real(constant)
    return q, constants


def _largest_scale(rewriter: Rewriter, scale: str) -> float:
    """The largest scale that a row may have, in steps of the integers that scales are computed from."""
    row_scale = rewriter.producer(scale)
    q = rewriter.graph.types[row_scale.inputs[0]].q if row_scale is not None else None
    return float(arithmetic.row_scale(np.array(q.span if q is not None else arithmetic.ROW_LIMIT)))


def _too_wide(op: Op, q: Sequence[QParams | None], out: QParams | None) -> str:
    """The reason why an operator does not take its operands or result, if they are int16; else an empty string."""
    kind = op.int8
    if kind is None or isinstance(kind, Recurrent):  # a recurrent layer's projected input is int16
        return ""
    if not kind.reads_int16 and any(each is not None and each.dtype == INT16X4 for each in q):
        return "it reads int8 alone, and an operand is int16"
    return "it gives int8 alone, not int16" if out and out.dtype == INT16X4 and not kind.gives_int16 else ""


def _affine(graph: Graph, norm: Node) -> tuple[Array, Array]:
    kind = OPS[norm.op].int8
    assert isinstance(kind, Normalization)
    return kind.affine([graph.constants[name] for name in norm.inputs[1:]], norm.attrs)


def _function(node: Node) -> Callable[[Array], Array]:
    kind = OPS[node.op].int8
    assert isinstance(kind, Elementwise)
    return lambda x: kind.function(x, node.attrs)


def _chained(nodes: Sequence[Node]) -> Callable[[Array], Array]:
    """The functions of nodes one after the other, with float32 values in between, as in torch."""

    def function(x: Array) -> Array:
        for each in map(_function, nodes):
            x = each(x.astype(np.float32).astype(np.float64))
        return x

    return function


def _constant(rewriter: Rewriter, name: str) -> Weight | Array | None:
    """A constant, float32 or dequantized; None of any other value."""
    graph = rewriter.graph
    if name in graph.constants:
        return graph.constants[name]
    node = rewriter.producer(name)
    if node is None or any(i not in graph.constants for i in node.inputs):
        return None
    if node.op == "dequantize_weight":
        values, scale, zero = (graph.constants[i] for i in node.inputs)
        return Weight(values, scale.astype(np.float64), zero.astype(np.int64), node.attrs["axis"])
    if node.op == "dequantize":
        t = graph.types[node.inputs[0]]
        assert t.q is not None
        channels = t.shape[0] if t.shape else 1
        scale = np.full(channels, t.q.scale)
        return Weight(graph.constants[node.inputs[0]], scale, np.full(channels, t.q.zero), 0)
    return None


def _real(constant: Weight | Array) -> Array:
    """A constant as float32, as parameters of norms are read."""
    if not isinstance(constant, Weight):
        return constant
    along = [-1 if i == constant.axis else 1 for i in range(constant.values.ndim)]
    steps = constant.values.astype(np.int64) - constant.zero.reshape(along)
    return np.asarray(steps * constant.scale.reshape(along)).astype(np.float32)


def _int8_form(node: Node, call: QuantizedCall) -> Int8Form:
    match kind := OPS[node.op].int8:
        case Elementwise(function):
            if call.q[0] is None or call.out is None:
                raise NoInt8Form(_without_scale(node.inputs[0]))
            if affine := _affine_int16(node, call.q[0], call.out, call):
                return affine
            values = function(arithmetic.levels(call.q[0]), call.attrs)
            if call.activation:
                values = call.activation(values)
            return Int8Form("q8ta_table", (0, arithmetic.table(values, call.out, call.lo, call.hi)), {})
        case WeightedSum() | Normalization() | PRelu() | Rowwise() | Arithmetic() | Product() | Recurrent():
            return kind.lower(call)
    raise NoInt8Form(_NOT_QUANTIZED)


def _affine_int16(node: Node, x: QParams, out: QParams, call: QuantizedCall) -> Int8Form | None:
    """x * factor + term of int16 as a batch norm of one channel, which needs no table of 65,536 entries. None of other
    functions, and where the term exceeds the limit of offsets."""
    numbers = affine_of(node)
    if numbers is None or x.dtype != INT16X4 or call.activation is not None:
        return None
    factor, term = (np.array([number]) for number in numbers)
    if abs(numbers[1]) / out.scale * 2.0 ** arithmetic.fraction(out.dtype) > arithmetic.OFFSET_LIMIT:
        return None
    affine = replace(call, affine=(factor, term))
    with contextlib.suppress(NoInt8Form):
        return chain.lower(affine, "q8ta_batch_norm", x.scale, x.scale * x.span, (0,), {})
    return None
