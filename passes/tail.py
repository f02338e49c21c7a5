"""What follows an operator up to the quantize behind it, and so becomes part of its int8 form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Graph, Node, QParams
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Joined, Normalization, Product, Sloped, WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.operands import factor_of, int8_behind
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Tail:
    """What follows an operator: the value that is quantized, clamps and a factor on the way, and what joins before
    rounding: a batch norm, an addend, an activation, or of elementwise operators further ones."""

    value: str
    clamps: tuple[tuple[float, float], ...] = ()
    norm: Node | None = None
    residual: str | None = None
    activation: Node | None = None
    functions: tuple[Node, ...] = ()
    factor: float = 1.0


def tail_of(rewriter: Rewriter, node: Node) -> Tail:
    """Follows single readers: for sums what their kinds say joins them, for products of activations a positive factor,
    for elementwise operators others, then clamps."""
    kind = OPS[node.op].int8
    if isinstance(kind, Product):
        scaled = _next(rewriter, node.output)
        factor = factor_of(scaled)
        if scaled is not None and factor is not None:
            return replace(_clamped(rewriter, Tail(scaled.output)), factor=factor)
    tail = Tail(node.output)
    if isinstance(kind, WeightedSum | Arithmetic | Normalization | Sloped):
        for what in kind.joined:
            reader = _next(rewriter, tail.value)
            tail = (reader and _joined(rewriter, node, tail, reader, what)) or tail
    elif isinstance(kind, Elementwise):
        tail = replace(tail, functions=tuple(_functions(rewriter, node)))
        tail = replace(tail, value=tail.functions[-1].output if tail.functions else node.output)
    joined = _clamped(rewriter, tail)
    if any(reader.op == "quantize" for reader in rewriter.readers(joined.value)):
        return joined
    return _clamped(rewriter, Tail(node.output))


def _next(rewriter: Rewriter, value: str) -> Node | None:
    """The node that alone reads a value and does not stay in float."""
    reader = rewriter.only_reader(value)
    return None if reader is None or reader.output in rewriter.graph.kept else reader


def _joined(rewriter: Rewriter, node: Node, tail: Tail, reader: Node, what: Joined) -> Tail | None:
    """The tail with its reader, where that is what joins `node` next."""
    graph, kind, value = rewriter.graph, OPS[reader.op].int8, tail.value
    longer = replace(tail, value=reader.output)
    match what:
        case "norm" if isinstance(kind, Normalization) and all(name in graph.constants for name in reader.inputs[1:]):
            return replace(longer, norm=reader)
        case "addend" if reader.op == "add" and reader.attrs["alpha"] == 1:
            other = reader.inputs[1] if reader.inputs[0] == value else reader.inputs[0]
            addend = int8_behind(rewriter, other)
            same = graph.types[value].shape == graph.types[reader.output].shape == graph.types[other].shape
            return replace(longer, residual=addend) if addend is not None and same else None
        case "activation" if isinstance(kind, Elementwise) and not kind.clamp:
            return replace(longer, activation=reader)
        case "activation" if isinstance(kind, Sloped) and reader.inputs[1] in graph.constants:
            by_channel = node.op != "linear" or len(graph.types[value].shape) == 2
            return replace(longer, activation=reader) if by_channel else None
    return None


def _functions(rewriter: Rewriter, node: Node) -> list[Node]:
    """The elementwise operators behind one, each the only reader, without clamps at the end."""
    found: list[Node] = []
    while (reader := _next(rewriter, (found or [node])[-1].output)) is not None:
        if not isinstance(OPS[reader.op].int8, Elementwise):
            break
        found.append(reader)
    while found and _is_clamp(found[-1]):
        found.pop()
    return found


def _is_clamp(node: Node) -> bool:
    kind = OPS[node.op].int8
    return isinstance(kind, Elementwise) and kind.clamp is not None


def _clamped(rewriter: Rewriter, tail: Tail) -> Tail:
    """The tail with the clamps behind it that are each the only reader."""
    clamps: list[tuple[float, float]] = []
    value = tail.value
    while (reader := _next(rewriter, value)) is not None:
        kind = OPS[reader.op].int8
        if not isinstance(kind, Elementwise) or not kind.clamp:
            break
        clamps.append(kind.clamp(reader.attrs))
        value = reader.output
    return replace(tail, value=value, clamps=tuple(clamps))


def rounded_to(graph: Graph, tail: Tail, quantize: Node) -> tuple[QParams, int, int]:
    """The quantization of a result before the factor behind it, and its range with the clamps there."""
    out, lo, hi = graph.types[quantize.output].q, quantize.attrs["lo"], quantize.attrs["hi"]
    assert out is not None
    if tail.clamps:
        low, high = tail.clamps[0]
        for bounds in tail.clamps[1:]:  # the last one wins where they do not overlap
            low, high = (float(np.clip(end, *bounds)) for end in (low, high))
        lo, hi = arithmetic.clamp_bounds(out, low, high, lo, hi)
    if tail.factor != 1.0:  # rounding factor * x at a scale is rounding x at the scale / factor
        out = replace(out, scale=out.scale / tail.factor)
    return out, lo, hi
