"""matmul of two activations, and the import of scaled_dot_product_attention as several operators.

A product with a constant matrix is imported as `linear` (kernels/linear/linear.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import MASKED, Product
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import Builder, Case, Op, Operand, dims
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.linear import einsum, q8ta_matmul
from q8ta_wgpu.kernels.product import sgemm


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    a, b = types[0].shape, types[1].shape
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise GraphError(f"matmul of {a} and {b}: the columns of the first must be the rows of the second")
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise GraphError(f"matmul of {a} and {b}: their batch dimensions do not broadcast") from None
    shape = (*batch, a[-2], b[-1])
    if any(canonical(s)[0] not in (1, canonical(shape)[0]) for s in (a, b)):
        raise GraphError(f"matmul of {a} and {b} broadcasts in a dimension left of the last three; expand first")
    return shape, FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.float64) for x in arrays)
    return np.asarray(a @ b).astype(np.float32)


def _sizes(call: Call) -> sgemm.Sizes:
    n, c, rows, columns = dims(call.output)
    return sgemm.Sizes(n * c, rows, columns, call.inputs[0].shape[-1])


def _import_bmm(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("matmul", (args["self"], args["mat2"]))


def _mask(b: Builder, args: Mapping[str, Any], queries: int, keys: int) -> str | None:
    """The mask to add to the scores, from aten's mask of floats or bools, or from is_causal; None if there is none.
    Raises the builder's refusal for both at once, and for computed bools."""
    attn_mask = args["attn_mask"]
    if args["is_causal"]:
        if attn_mask is not None:
            raise b.refuse("it has a mask and is_causal: give one of them")
        return b.constant(np.where(np.tri(queries, keys, dtype=bool), 0.0, MASKED).astype(np.float32), "mask")
    if attn_mask is None:
        return None
    array = b.array(attn_mask)
    if array is None and b.type(attn_mask).dtype != FLOAT32:
        raise b.refuse(
            "its mask of bools is computed while the network runs: give one of float32, 0 and -1e4, or take "
            'unsupported="torch"'
        )
    if array is None:
        return str(attn_mask)
    floats = np.where(array, 0.0, MASKED) if array.dtype == bool else np.maximum(array, MASKED)
    return b.constant(floats.astype(np.float32), "mask")


def _repeated(b: Builder, x: str, heads: int) -> str:
    """Keys or values with `heads` heads: for grouped queries, each head is repeated for all heads of its group."""
    *lead, count, length, width = b.type(x).shape
    if count == heads:
        return x
    split = b.emit("view", (x,), {"shape": [*(0 for _ in lead), count, 1, length, width]})
    expanded = b.emit("expand", (split,), {"shape": [*(-1 for _ in lead), -1, heads // count, -1, -1]})
    return b.emit("view", (expanded,), {"shape": [*(0 for _ in lead), heads, length, width]})


def _import_attention(b: Builder, args: Mapping[str, Any]) -> str:
    """softmax(q k^T * scale + mask) v, as separate operators. passes/fuse_attention.py fuses them."""
    if args["dropout_p"]:
        raise b.refuse("dropout_p is not supported: export in eval mode")
    query, key, value = args["query"], args["key"], args["value"]
    if args["enable_gqa"]:
        key, value = (_repeated(b, x, b.type(query).shape[-3]) for x in (key, value))
    q, k = b.type(query).shape, b.type(key).shape
    mask = _mask(b, args, q[-2], k[-2])
    scale = args["scale"] if args["scale"] is not None else 1.0 / math.sqrt(q[-1])
    order = (*range(len(k) - 2), len(k) - 1, len(k) - 2)
    scaled = b.emit("affine", (query,), {"factor": float(scale), "term": 0.0})
    scores = b.emit("matmul", (scaled, b.emit("permute", (key,), {"dims": order})))
    if mask is not None:
        scores = b.emit("add", (scores, mask), {"alpha": 1.0})
    weights = b.emit("softmax", (scores,), {"dim": len(b.type(scores).shape) - 1})
    masked = b.array(mask) if mask is not None else None
    if masked is not None and (masked.max(-1) <= MASKED).any():  # a fully masked row: torch gives zeros
        unmasked = np.asarray(masked.max(-1, keepdims=True) > MASKED, np.float32)
        weights = b.emit("mul", (weights, b.constant(unmasked, "rows")))
    if "is_unmasked" in args:  # torch also gives zeros where computed bools mask a whole row
        weights = b.aten("aten.where.self", {"condition": args["is_unmasked"], "self": weights, "other": 0.0})
    return b.emit("matmul", (weights, value))


OPS = (
    Op(
        name="matmul",
        operands=(Operand("a"), Operand("b")),
        infer=_infer,
        reference=_reference,
        macs=q8ta_matmul.macs,
        kernels=(
            *sgemm.kernels(sgemm.Product("matmul", "matmul", ("a", "b", "y"), _sizes)),
            *share.kernels(
                Kernel("matmul", ("matmul", "map"), (FLOAT,), FLOAT), lambda call: call.inputs[0].shape[-1:]
            ),
        ),
        aten={
            "aten.bmm.default": _import_bmm,
            "aten.scaled_dot_product_attention.default": _import_attention,
        },
        onnx=einsum.RULES,
        int8=Product(q8ta_matmul.lower, reads_int16=True, gives_int16=True),
        cases=(
            Case(((5, 7), (7, 3))),
            Case(((2, 3, 17, 48), (2, 3, 48, 17))),
            Case(((3, 4, 5), (5, 6))),
            Case(((2, 1, 5, 4), (3, 4, 7))),
            Case(((1, 6), (2, 3, 6, 2))),
            Case(((2, 2, 3, 4, 5), (2, 2, 1, 5, 3))),
            Case(((11, 300), (300, 2))),
            Case(((2, 1, 69, 36), (3, 36, 132))),
            Case(((2, 66, 131), (131, 65))),
            Case(((1, 1), (1, 1))),
        ),
        tolerance=1e-5,
        work=q8ta_matmul.macs,
    ),
)
