"""Questions about operands: the int8 value behind a dequantize, a factor, a transposed matrix."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Node
from q8ta_wgpu.ir.int8 import Product
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter


def int8_behind(rewriter: Rewriter, name: str) -> str | None:
    """The int8 (or int16) value x of which `name` is dequantize(x); None of any other value."""
    node = rewriter.producer(name)
    return node.inputs[0] if node is not None and node.op == "dequantize" else None


def rows_behind(rewriter: Rewriter, name: str) -> tuple[str, str] | None:
    """(int8 rows, scales) of a value `dequantize(quantize_rows(x, scales)) * scales`; None of any other value."""
    node = rewriter.producer(name)
    if node is None or node.op != "mul":
        return None
    int8, scale = int8_behind(rewriter, node.inputs[0]), node.inputs[1]
    rows = rewriter.producer(int8) if int8 is not None else None
    if rows is None or rows.op != "quantize_rows" or rows.inputs[1] != scale:
        return None
    return rows.output, scale


def affine_of(node: Node) -> tuple[float, float] | None:
    """(factor, term) of a node that computes x * factor + term with numbers; None of any other node."""
    match node.op:
        case "affine":
            return node.attrs["factor"], node.attrs["term"]
        case "divide":
            return 1.0 / node.attrs["divisor"], 0.0
    return None


def factor_of(node: Node | None) -> float | None:
    """The positive number by which a node multiplies; None of a node that does anything else."""
    factor, term = (node and affine_of(node)) or (0.0, 0.0)
    return factor if factor > 0 and not term else None


def is_scale(node: Node) -> bool:
    """Whether all that a node does is to multiply by a positive number."""
    return factor_of(node) is not None


def unscaled(rewriter: Rewriter, node: Node) -> tuple[Node, float]:
    """A product of activations without positive factors of its operands, and these factors' product: of
    `(q * 0.5) @ k` it is `q @ k` and 0.5. Other nodes stay as they are, with factor 1."""
    inputs, factor = list(node.inputs), 1.0
    for position, name in enumerate(node.inputs if isinstance(OPS[node.op].int8, Product) else ()):
        scaled = rewriter.producer(name)
        scale = factor_of(scaled)
        if scaled is not None and scale is not None and int8_behind(rewriter, scaled.inputs[0]):
            inputs[position] = scaled.inputs[0]
            factor *= scale
    return replace(node, inputs=tuple(inputs)), factor


def transposed(rewriter: Rewriter, before: Node, name: str) -> str:
    """The name of a value with its last two dimensions swapped, by a permute before a node. Of a permuted value its
    source is permuted, or returned as it is where both permutes cancel."""
    shape = rewriter.graph.types[name].shape
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    permute = rewriter.producer(name)
    if permute is not None and permute.op == "permute":
        name, order = permute.inputs[0], [permute.attrs["dims"][d] for d in order]
    if order == sorted(order):
        return name
    return rewriter.insert(before, "permute", (name,), {"dims": tuple(order)}, f"{name}.turned")
