"""ONNX's Einsum of one or two values, imported as sums, permutes, views and a matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from q8ta_wgpu.importing.builder import Builder


def einsum(b: Builder, args: Mapping[str, Any]) -> str:
    """The importer of Einsum.

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


RULES = {"Einsum": einsum}
