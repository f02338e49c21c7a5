"""The generic rule: dequantize -> x -> (clamps) -> quantize becomes the int8 form of x, whatever x is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import (
    MASK,
    MASKED,
    RESIDUAL,
    Arithmetic,
    Elementwise,
    Int8Form,
    Moves,
    Normalization,
    Product,
    QuantizedCall,
    Rowwise,
    Sloped,
    Weight,
    WeightedSum,
)
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter
from q8ta_wgpu.passes.tail import Tail, int8_behind, is_factor, tail_of


def fuse_int8(graph: Graph) -> None:
    """Makes every int8 form there is; notes each operator that stays in float between int8 values, and why."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        kind = OPS[node.op].int8
        if not isinstance(kind, WeightedSum | Normalization | Sloped | Rowwise | Arithmetic | Product | Elementwise):
            continue
        tail = tail_of(rewriter, node)
        readers = rewriter.readers(tail.value)
        for quantize in (reader for reader in readers if reader.op == "quantize"):
            if reason := _fuse(rewriter, node, tail, quantize):
                _note(graph, node, reason)
        real = tail.value in graph.outputs or any(reader.op != "quantize" for reader in readers)
        if isinstance(kind, WeightedSum) and real:
            reason = _fuse(rewriter, node, Tail(node.output), None)
            if reason and reason is not NOT_QUANTIZED:
                _note(graph, node, reason)
    rewriter.commit()


NOT_QUANTIZED = "an input is not quantized"


def _note(graph: Graph, node: Node, reason: str) -> None:
    text = f"{node.output}: {node.op} stays in float32: {reason}{node.origin}"
    if text not in graph.notes:
        graph.notes.append(text)


def _fuse(rewriter: Rewriter, node: Node, tail: Tail, quantize: Node | None) -> str:
    """Replaces `quantize`, or with None `node` itself, by the int8 form of `node`; returns why it cannot."""
    reader, mask = _unmasked(rewriter, node)
    reader, bools = _unchosen(rewriter, reader)
    reader, factor = _unscaled(rewriter, reader)
    call = _quantized_call(rewriter, reader, replace(tail, factor=tail.factor * factor), quantize, mask)
    form = call if isinstance(call, str) else _int8_form(OPS[node.op], replace(call, masked=bools is not None))
    if isinstance(form, str):
        return form
    old = quantize or node
    sources = [
        bools if bools is not None and operand is MASK else _int8_source(rewriter, old, reader, tail, operand)
        for operand in form.operands
    ]
    if reason := _misfit(rewriter.graph, form, sources, old.output):
        return reason
    inputs = [
        source
        if isinstance(source, str)
        else rewriter.graph.add_constant(f"{old.output}.{OPS[form.op].operand(i, form.attrs).name}", source)
        for i, source in enumerate(sources)
    ]
    rewriter.replace(old, Node(form.op, tuple(inputs), old.output, form.attrs, node.source))
    return ""


def _int8_source(rewriter: Rewriter, old: Node, node: Node, tail: Tail, operand: int | Array) -> str | Array:
    """What an operand of an int8 form is: the value behind a dequantize, a product's second one turned before the node
    it replaces, or a new constant."""
    if isinstance(operand, np.ndarray):
        return operand
    int8 = tail.residual if operand == RESIDUAL else int8_behind(rewriter, node.inputs[operand])
    assert int8 is not None
    second = isinstance(OPS[node.op].int8, Product) and operand == 1
    return _turned(rewriter, old, int8) if second else int8


def _misfit(graph: Graph, form: Int8Form, sources: Sequence[str | Array], result: str) -> str:
    """Which dtype an int8 form does not take or give, as few have int16; empty where it fits."""
    op, found = OPS[form.op], graph.types[result].dtype
    types = (graph.types[s] if isinstance(s, str) else TensorType(s.shape, str(s.dtype)) for s in sources)
    try:
        _, dtype = op.check(tuple(types), form.attrs)
    except GraphError as error:
        return str(error)
    return "" if found in (dtype, *op.results) else f"{op.name} gives {dtype}, not {found}"


def _unscaled(rewriter: Rewriter, node: Node) -> tuple[Node, float]:
    """A product of activations reading what positive factors were multiplied with, and these factors' product."""
    inputs, factor = list(node.inputs), 1.0
    for position, name in enumerate(node.inputs if isinstance(OPS[node.op].int8, Product) else ()):
        scaled = rewriter.producer(name)
        if scaled is not None and is_factor(scaled) and int8_behind(rewriter, scaled.inputs[0]):
            inputs[position] = scaled.inputs[0]
            factor *= scaled.attrs["factor"]
    return replace(node, inputs=tuple(inputs)), factor


FAINT = 22.0
"""What is smaller than e^-FAINT of the largest in softmax is 0 in every table."""


def _unmasked(rewriter: Rewriter, node: Node) -> tuple[Node, Array | None]:
    """The node reading what its mask was added to, and the mask: a constant whose numbers in a row are equal, or so
    much lower that no int8 value makes up for them. Views may stand between. The node itself and None where there is
    none."""
    graph, kind = rewriter.graph, OPS[node.op].int8
    views: list[Node] = []
    add = rewriter.producer(node.inputs[0]) if isinstance(kind, Rowwise) and kind.masked else None
    while add is not None and add.op == "view":
        views.append(add)
        add = rewriter.producer(add.inputs[0])
    if add is None or add.op != "add" or add.attrs["alpha"] != 1:
        return node, None
    mask, scores = sorted(add.inputs, key=lambda name: name not in graph.constants)
    int8 = int8_behind(rewriter, scores)
    values, q = graph.constants.get(mask), graph.types[int8].q if int8 else None
    if int8 is None or values is None or q is None or graph.types[scores].shape != graph.types[add.output].shape:
        return node, None
    shape = graph.types[node.inputs[0]].shape
    whole = np.broadcast_to(values, graph.types[add.output].shape).reshape(shape)
    part = _part(whole, q, node.attrs["dim"])
    if part is None:
        return node, None
    for view in reversed(views):
        to = replace(graph.types[int8], shape=graph.types[view.output].shape)
        int8 = rewriter.insert(node, "view", (int8,), view.attrs, to, f"{view.output}.int8")
    real = rewriter.insert(node, "dequantize", (int8,), {}, TensorType(shape), f"{int8}.real")
    return replace(node, inputs=(real, *node.inputs[1:])), part


def _unchosen(rewriter: Rewriter, node: Node) -> tuple[Node, str | None]:
    """The node reading what a choice of 0 or a low number was added to, and the bools by which it is chosen, of as many
    dimensions, in int8: where they are 0 an element takes no part. Moves may stand between choice and sum. The node
    itself and None where there is none."""
    graph, kind = rewriter.graph, OPS[node.op].int8
    add = rewriter.producer(node.inputs[0]) if isinstance(kind, Rowwise) and kind.masked else None
    if add is None or add.op != "add" or add.attrs["alpha"] != 1:
        return node, None
    shape = graph.types[add.output].shape
    for scores, mask in (add.inputs, add.inputs[::-1]):
        int8, choice, moves = int8_behind(rewriter, scores), rewriter.producer(mask), list[Node]()
        while choice is not None and isinstance(OPS[choice.op].int8, Moves) and len(choice.inputs) == 1:
            moves.append(choice)
            choice = rewriter.producer(choice.inputs[0])
        if int8 is None or choice is None or choice.op != "where" or graph.types[scores].shape != shape:
            continue
        bools, q = int8_behind(rewriter, choice.inputs[0]), graph.types[int8].q
        ends = [float(graph.constants[n].max()) if n in graph.constants else np.nan for n in choice.inputs[1:]]
        if bools is None or q is None or graph.types[bools].q != BOOL or 0.0 not in ends or not _is_far(min(ends), q):
            continue
        if ends[0] < 0:
            table = graph.add_constant(f"{bools}.not", (np.arange(-128, 128) == 0).astype(np.int8))
            bools = rewriter.insert(node, "q8ta_table", (bools, table), {}, graph.types[bools], f"{bools}.taken")
        for move in reversed(moves):
            to = replace(graph.types[bools], shape=graph.types[move.output].shape)
            bools = rewriter.insert(node, move.op, (bools,), move.attrs, to, f"{move.output}.int8")
        found = graph.types[bools]
        if len(found.shape) < len(shape):
            to = replace(found, shape=(1,) * (len(shape) - len(found.shape)) + found.shape)
            bools = rewriter.insert(node, "view", (bools,), {"shape": to.shape}, to, f"{bools}.wide")
        return replace(node, inputs=(scores, *node.inputs[1:])), bools
    return node, None


def _is_far(low: float, q: QParams) -> bool:
    """Whether a number is so low that no int8 value makes up for it in softmax."""
    least, most = q.range
    return low <= -((most - least) * q.scale + FAINT)


def _part(mask: Array, q: QParams, dim: int) -> Array | None:
    """Where elements take part in rows along `dim` to which a mask is added. A row with one finite number all over is
    its own softmax, where float32 holds the sums; one of nothing but minus infinities has no part. None where a number
    is neither the largest of its row nor far below, or so large that the sums would be lost in it."""
    largest = mask.max(dim, keepdims=True)
    excluded = np.isneginf(largest) | (largest == MASKED)
    low, high = q.range
    with np.errstate(invalid="ignore"):
        below = mask - largest
    part = (below == 0) & ~excluded
    apart = part | excluded | (below <= -((high - low) * q.scale + FAINT))
    held = excluded | (np.spacing(np.abs(np.where(excluded, 0, largest)).astype(np.float32)) <= q.scale)
    return part if apart.all() and held.all() else None


def _turned(rewriter: Rewriter, before: Node, name: str) -> str:
    """A value with its last two dimensions swapped: of a permuted value the permuted source, or the source itself."""
    shape = rewriter.graph.types[name].shape
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    permute = rewriter.producer(name)
    if permute is not None and permute.op == "permute":
        name, order = permute.inputs[0], [permute.attrs["dims"][d] for d in order]
    if order == sorted(order):
        return name
    source = rewriter.graph.types[name]
    to = replace(source, shape=tuple(source.shape[d] for d in order))
    return rewriter.insert(before, "permute", (name,), {"dims": tuple(order)}, to, f"{name}.turned")


def _quantized_call(
    rewriter: Rewriter, node: Node, tail: Tail, quantize: Node | None, mask: Array | None
) -> QuantizedCall | str:
    graph, op = rewriter.graph, OPS[node.op]
    q: list[QParams | None] = []
    constants: dict[int, Weight | Array] = {}
    for position, name in enumerate(node.inputs):
        int8 = int8_behind(rewriter, name)
        if int8 is not None and not op.operand(position, node.attrs).constant:
            q.append(graph.types[int8].q)
            continue
        q.append(None)
        constant = _constant(rewriter, name)
        if constant is None:
            return NOT_QUANTIZED
        constants[position] = constant
    out = graph.types[quantize.output].q if quantize else None
    lo, hi = (quantize.attrs["lo"], quantize.attrs["hi"]) if quantize else (-128, 127)
    if tail.clamps:
        assert out is not None
        low, high = tail.clamps[0]
        for bounds in tail.clamps[1:]:  # the last one wins where they do not overlap
            low, high = (float(np.clip(end, *bounds)) for end in (low, high))
        lo, hi = arithmetic.clamp_bounds(out, low, high, lo, hi)
    if out is not None and tail.factor != 1.0:  # rounding factor * x at a scale is rounding x at the scale / factor
        out = replace(out, scale=out.scale / tail.factor)
    residual = graph.types[tail.residual].q if tail.residual else None
    slopes = activation = None
    if tail.activation and isinstance(OPS[tail.activation.op].int8, Sloped):
        slopes = graph.constants[tail.activation.inputs[1]]
    elif tail.activation or tail.functions:
        activation = _function((tail.activation,) if tail.activation else tail.functions)
    inputs = tuple(graph.types[name] for name in node.inputs)
    affine = _affine(graph, tail.norm) if tail.norm else None
    return QuantizedCall(
        node.attrs, inputs, tuple(q), constants, out, lo, hi, residual, affine, activation, slopes, mask
    )


def _affine(graph: Graph, norm: Node) -> tuple[Array, Array]:
    kind = OPS[norm.op].int8
    assert isinstance(kind, Normalization)
    return kind.affine([graph.constants[name] for name in norm.inputs[1:]], norm.attrs)


def _function(nodes: Sequence[Node]) -> Callable[[Array], Array]:
    """One function after the other."""

    def function(x: Array) -> Array:
        for node in nodes:
            kind = OPS[node.op].int8
            assert isinstance(kind, Elementwise)
            x = kind.function(x, node.attrs)
        return x

    return function


def _constant(rewriter: Rewriter, name: str) -> Weight | Array | None:
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


def _int8_form(op: Op, call: QuantizedCall) -> Int8Form | str:
    match op.int8:
        case Elementwise(function):
            if call.q[0] is None or call.out is None:
                return NOT_QUANTIZED
            values = function(arithmetic.levels(call.q[0]), call.attrs)
            if call.activation:
                values = call.activation(values)
            return Int8Form("q8ta_table", (0, arithmetic.table(values, call.out, call.lo, call.hi)), {})
        case WeightedSum() | Normalization() | Sloped() | Rowwise() | Arithmetic() | Product():
            return op.int8.lower(call)
    return NOT_QUANTIZED
