"""Importer functions of linear layers, matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Rules
from q8ta_wgpu.ir.graph import FLOAT32
from q8ta_wgpu.ir.int8 import MASKED


def _emit(b: Builder, x: str, weight: str, bias: str | None) -> str:
    return b.emit("linear", (x, weight, bias or b.constant(np.zeros(b.type(weight).shape[0], np.float32), "bias")))


def _import_linear(b: Builder, args: Mapping[str, Any]) -> str:
    return _emit(b, args["input"], args["weight"], args["bias"])


def _product(b: Builder, x: str, matrix: str, bias: str | None = None) -> str:
    """x @ matrix + bias. A constant matrix makes it a `linear`. A constant x makes it a `linear` of the transposed
    operands. Otherwise it is a `matmul`."""
    rank, outputs = len(b.type(matrix).shape), b.type(matrix).shape[-1:]
    fuses_bias = bias is not None and b.type(bias).shape == outputs and b.is_constant(bias)
    if rank == 2 and b.is_constant(matrix) and not b.is_constant(x):
        y = _emit(b, x, b.emit("permute", (matrix,), {"dims": (1, 0)}), bias if fuses_bias else None)
    else:
        fuses_bias = False
        weighted = len(b.type(x).shape) == 2 and rank > 1 and b.is_constant(x) and not b.is_constant(matrix)
        y = _transpose(b, _emit(b, _transpose(b, matrix), x, None)) if weighted else b.emit("matmul", (x, matrix))
    return y if bias is None or fuses_bias else b.emit("add", (y, bias), {"alpha": 1.0})


def _transpose(b: Builder, x: str) -> str:
    rank = len(b.type(x).shape)
    return b.emit("permute", (x,), {"dims": (*range(rank - 2), rank - 1, rank - 2)})


def _import_mm(b: Builder, args: Mapping[str, Any]) -> str:
    return _product(b, args["self"], args["mat2"])


def _import_addmm(b: Builder, args: Mapping[str, Any]) -> str:
    if args["beta"] != 1 or args["alpha"] != 1:
        raise b.refuse(f"addmm takes beta = alpha = 1, found {args['beta']} and {args['alpha']}")
    return _product(b, args["mat1"], args["mat2"], args["self"])


def _onnx_gemm(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Gemm: alpha * A' * B' + beta * C. It is a `linear` if alpha and beta are 1 and B and C are constants."""
    left, right, term = args["inputs"]
    alpha, beta = float(args["alpha"]), float(args["beta"])
    if args["transA"]:
        left = _transpose(b, left)
    if args["transB"]:
        right = _transpose(b, right)
    outputs = b.type(right).shape[-1]
    fuses = term is not None and b.is_constant(term) and b.type(term).shape in ((outputs,), (1, outputs))
    if alpha == beta == 1 and (term is None or fuses):
        return _product(b, left, right, term and b.aten("aten.view.default", {"self": term, "size": (outputs,)}))
    y = _product(b, left, right)
    if alpha != 1:
        y = b.emit("affine", (y,), {"factor": alpha, "term": 0.0})
    if term is None or beta == 0:
        return y
    return b.aten("aten.add.Tensor", {"self": y, "other": term, "alpha": beta})


def _import_matmul(b: Builder, args: Mapping[str, Any]) -> str:
    """torch.matmul. Batch dimensions broadcast. A vector becomes a row if it is the first operand, else a column."""
    left, right = args["self"], args["other"]
    row, column = len(b.type(left).shape) == 1, len(b.type(right).shape) == 1
    if row:
        left = b.emit("view", (left,), {"shape": (1, -1)})
    if column:
        right = b.emit("view", (right,), {"shape": (-1, 1)})
    batch = np.broadcast_shapes(*(b.type(name).shape[:-2] for name in (left, right)))
    if len(batch) > 2:
        # Of more than four dimensions, kernels see the leading ones as one, which does not broadcast.
        left, right = (_expand_batch(b, name, batch) for name in (left, right))
    y = _product(b, left, right)
    shape = [0 if i < len(batch) else -1 for i in range(len(batch) + 2 - row - column)]
    return b.emit("view", (y,), {"shape": shape}) if row or column else y


def _expand_batch(b: Builder, name: str, batch: tuple[int, ...]) -> str:
    shape = b.type(name).shape
    lead = (1,) * (len(batch) + 2 - len(shape)) + shape[:-2]
    if lead[:-1] == batch[:-1] or math.prod(lead[:-1]) == 1:
        return name
    return b.aten("aten.expand.default", {"self": name, "size": (*batch, *shape[-2:])})


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


def _einsum(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Einsum of one or two values, as sums, permutes, views and a matrix product.

    Letters of both values and of the result are batch dimensions of a matrix product. Letters of both values only are
    summed by the product. Letters of one value and the result are its rows or columns. Letters of one value only are
    summed before.

    Raises the builder's refusal for more than two values, '...', diagonals, and extents that differ.
    """
    inputs, equation = [str(name) for name in args["inputs"]], args["equation"].replace(" ", "")
    terms, result = _terms(b, equation, inputs)
    extents: dict[str, int] = {}
    for term, name in zip(terms, inputs, strict=True):
        for letter, extent in zip(term, b.type(name).shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise b.refuse(f"{letter} of {equation!r} is {extents[letter]} and {extent}")
    for i, term in enumerate(terms):
        others = "".join(other for j, other in enumerate(terms) if j != i) + result
        inputs[i], terms[i] = _summed(b, inputs[i], term, others)
    if len(inputs) == 2:
        if b.is_constant(inputs[0]):  # as weights are
            inputs, terms = inputs[::-1], terms[::-1]
        first, second = terms
        both = [letter for letter in first if letter in second]
        rows, columns = ([x for x in one if x not in other] for one, other in (terms, terms[::-1]))
        batch, inner = ([x for x in both if (x in result) == in_result] for in_result in (True, False))
        left = _matrices(b, inputs[0], first, (batch, rows, inner), extents)
        right = _matrices(b, inputs[1], second, (batch, inner, columns), extents)
        product = b.aten("aten.matmul.default", {"self": left, "other": right})
        terms = ["".join((*batch, *rows, *columns))]
        inputs = [b.emit("view", (product,), {"shape": [extents[x] for x in terms[0]]})]
    return _permuted(b, inputs[0], terms[0], result)


def _terms(b: Builder, equation: str, inputs: list[str]) -> tuple[list[str], str]:
    """The letters of each value and of the result."""
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    ranks = [len(b.type(name).shape) for name in inputs]
    if "." in equation or len(inputs) > 2 or any(len(set(term)) != len(term) for term in (*terms, result)):
        raise b.refuse(f"{equation!r}: one or two values are supported, without '...' and diagonals")
    if list(map(len, terms)) != ranks or not set(result) <= set(operands):
        raise b.refuse(f"{equation!r} does not fit values of {', '.join(map(str, ranks))} dimensions")
    letters = sorted(set(operands) - {","})
    return terms, result if arrow else "".join(x for x in letters if operands.count(x) == 1)


def _summed(b: Builder, name: str, term: str, others: str) -> tuple[str, str]:
    """A value summed along the letters that neither `others` has, and the letters that are left."""
    alone = [i for i, letter in enumerate(term) if letter not in others]
    if not alone:
        return name, term
    found = b.aten("aten.sum.dim_IntList", {"self": name, "dim": alone, "keepdim": False, "dtype": None})
    return str(found), "".join(letter for letter in term if letter in others)


def _permuted(b: Builder, name: str, term: str, wanted: Iterable[str]) -> str:
    order = tuple(term.index(letter) for letter in wanted)
    return name if order == tuple(range(len(term))) else b.emit("permute", (name,), {"dims": order})


def _matrices(b: Builder, name: str, term: str, groups: tuple[list[str], ...], extents: Mapping[str, int]) -> str:
    """A value with one dimension for each group of letters. The first group is left out if it is empty."""
    moved = _permuted(b, name, term, [letter for group in groups for letter in group])
    shape = [math.prod(extents[letter] for letter in group) for group in groups]
    return b.emit("view", (moved,), {"shape": shape if groups[0] else shape[1:]})


ATEN: Rules = {
    "linear": {
        "aten.linear.default": _import_linear,
        "aten.mm.default": _import_mm,
        "aten.addmm.default": _import_addmm,
        "aten.matmul.default": _import_matmul,
    },
    "matmul": {
        "aten.bmm.default": _import_bmm,
        "aten.scaled_dot_product_attention.default": _import_attention,
    },
}
ONNX: Rules = {
    "linear": {"Gemm": _onnx_gemm, "MatMul": onnx_calls.by_aten("aten.matmul.default", "self", "other")},
    "matmul": {"Einsum": _einsum},
}
