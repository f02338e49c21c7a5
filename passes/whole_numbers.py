"""Removes rounding and clamping before a quantize of scale 1, which does both itself.

For example a module that returns uint8 images ends in `x.mul(255).round().clamp(0, 255).to(torch.uint8)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.rewriter import Rewriter

Bounds = tuple[float, float]

_ROUNDS: dict[str, Callable[[float], int]] = {
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}

_BOUNDED: dict[str, Bounds] = {"sigmoid": (0, 1), "softmax": (0, 1), "tanh": (-1, 1), "relu": (0, math.inf)}


def whole_numbers(graph: Graph) -> None:
    """Removes from before quantizes of scale 1: round; floor, ceil and trunc of whole numbers; remainders of numbers
    below the divisor; and clamps to whole numbers, which become the quantize's range, also from before a factor."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        q = graph.types[node.output].q
        if node.op == "quantize" and q is not None and q.scale == 1:
            while (simpler := _simpler(rewriter, node, q.zero)) is not None:
                node = rewriter.replace(node, simpler)
    rewriter.commit()


def _simpler(rewriter: Rewriter, node: Node, zero: int) -> Node | None:
    """The quantize without the operator before it; None where that would change its result."""
    before = rewriter.producer(node.inputs[0])
    if before is None:
        return None
    without = replace(node, inputs=before.inputs[:1])
    match before.op:
        case "round":
            return without
        case "floor" | "ceil" | "trunc" if _is_whole(rewriter, before.inputs[0]):
            return without
        case "remainder":
            low, high = _bounds(rewriter, before.inputs[0])
            return without if low >= 0 and high < before.attrs["divisor"] else None
        case "clamp":
            return _clamped(without, before.attrs["min"] + zero, before.attrs["max"] + zero)
        case "affine" if before.attrs["factor"] > 0:
            return _before_affine(rewriter, node, before, zero)
    return None


def _before_affine(rewriter: Rewriter, node: Node, affine: Node, zero: int) -> Node | None:
    """The quantize of factor * x + term, if x is a clamp, which becomes the quantize's range, or affine itself, so that
    both become one. Else None."""
    x, attrs, found = rewriter.producer(affine.inputs[0]), affine.attrs, None
    if x is not None and x.op == "clamp":
        low, high = (x.attrs[end] * attrs["factor"] + attrs["term"] for end in ("min", "max"))
        found = _clamped(node, low + zero, high + zero)
    if x is not None and x.op == "affine":
        factor, term = (x.attrs[name] * affine.attrs["factor"] for name in ("factor", "term"))
        attrs, found = {"factor": factor, "term": term + affine.attrs["term"]}, node
    if x is None or found is None:
        return None
    return replace(found, inputs=(rewriter.insert(node, "affine", x.inputs, attrs, affine.output),))


def _clamped(node: Node, low: float, high: float) -> Node | None:
    """A quantize whose range is also clamped to [low, high]; None where these are not whole numbers."""
    lo, hi = max(node.attrs["lo"], low), min(node.attrs["hi"], high)
    fits = lo <= hi and float(lo).is_integer() and float(hi).is_integer()
    return replace(node, attrs={**node.attrs, "lo": int(lo), "hi": int(hi)}) if fits else None


def _is_whole(rewriter: Rewriter, name: str) -> bool:
    """Whether all elements of a value are whole numbers."""
    while (node := rewriter.producer(name)) is not None and node.op not in _ROUNDS:
        ends = (node.attrs["min"], node.attrs["max"]) if node.op == "clamp" else ()
        if not (ends or _moves(node)) or not all(float(end).is_integer() for end in ends):
            return False
        name = node.inputs[0]
    return node is not None


def _bounds(rewriter: Rewriter, name: str) -> Bounds:
    """(low, high): bounds of a value's elements, as far as its operators tell."""
    path = list[Node]()
    while (node := rewriter.producer(name)) is not None and (node.op in ("clamp", "affine", *_ROUNDS) or _moves(node)):
        path.append(node)
        name = node.inputs[0]
    found = _BOUNDED.get(node.op if node is not None else "", (-math.inf, math.inf))
    for each in reversed(path):
        found = _bounds_after(each, *found)
    return found


def _bounds_after(node: Node, low: float, high: float) -> Bounds:
    """(low, high) of a node's result, from those of its operand."""
    if node.op == "clamp":
        return max(low, node.attrs["min"]), min(high, node.attrs["max"])
    if node.op == "affine" and math.isfinite(low + high):
        ends = sorted(end * node.attrs["factor"] + node.attrs["term"] for end in (low, high))
        return ends[0], ends[1]
    if node.op in _ROUNDS and math.isfinite(low + high):
        return _ROUNDS[node.op](low), _ROUNDS[node.op](high)
    return (low, high) if _moves(node) else (-math.inf, math.inf)


def _moves(node: Node) -> bool:
    """Whether an operator moves the elements of one value and adds no others."""
    return is_move(node) and node.op != "pad"
