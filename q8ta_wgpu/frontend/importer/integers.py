"""Integers of a network, which a graph holds as float32 numbers: how large they may become, so that all are exact."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.importer.builder import RefusedError
from q8ta_wgpu.frontend.nodes import kind, named_arguments
from q8ta_wgpu.ir.int8 import Monotonic, Moves

EXACT = 1 << 24
"""Up to which float32 holds every integer."""

INTEGERS = (torch.int64, torch.int32, torch.int16)
"""Dtypes of integers that a network computes with."""

Range = tuple[float, float] | None
"""The smallest and the largest integer a value may hold; None where that is not known, as of a float32 number that was
made an integer, which keeps its 24 bits."""


class Ranges:
    """The ranges of a graph's integers. `known` are the values of parameters, and of what follows from them alone."""

    def __init__(self, known: Mapping[Node, Any]) -> None:
        self._known = known
        self._found: dict[Node, Range] = {}

    def check(self, node: Node) -> None:
        """Notes what a call may give. Raises RefusedError where that is integers which float32 does not hold."""
        value = node.meta.get("val")
        if not any(is_integer(part) for part in (value if isinstance(value, (list, tuple)) else (value,))):
            return
        found = self._found[node] = self._of_call(node)
        most = max(map(abs, found)) if found else 0
        if most > EXACT:
            raise RefusedError(
                f"its integers may reach {most:.0f}, and those of a graph are float32 numbers, exact up to {EXACT}"
            )

    def of(self, value: Any) -> Range:
        """The range of an argument."""
        if not isinstance(value, Node):
            return (value, value) if isinstance(value, (bool, int, float)) else None
        tensor = self._known.get(value)
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            return float(tensor.min()), float(tensor.max())
        if getattr(value.meta.get("val"), "dtype", None) == torch.bool:
            return 0, 1
        if value.target is operator.getitem:
            source, index = value.args
            assert isinstance(source, Node)
            return self.of(source) if index else self.of(source.args[0])
        return self._found.get(value)

    def _of_call(self, node: Node) -> Range:
        given, name = named_arguments(node), str(node.target).split(".")[1]
        if name in _PLACES or (name in ("max", "min") and "dim" in given):
            shape, dim = given["self"].meta["val"].shape, given.get("dim", -1 if name in ("topk", "sort") else None)
            return 0, int(math.prod(shape) if dim is None or not shape else shape[dim]) - 1
        if name in ("sum", "cumsum"):
            count, ends = _joined(node, given), self.of(given["self"])
            return ends and (min(ends[0], count * ends[0]), max(ends[1], count * ends[1]))
        if name in ("prod", "cumprod"):
            count, ends = _joined(node, given), self.of(given["self"])
            return ends and _power(ends, count)
        if name in ("mm", "bmm", "matmul"):
            first, second = given["self"], given.get("mat2", given.get("other"))
            products = (first.meta["val"].shape[-1] * a * b for a, b in _pairs(self.of(first), self.of(second)))
            return _ends(products)
        if name in _LINEAR:
            first, second = (self.of(given.get(key, 0)) for key in ("self", "other"))
            return _ends(_LINEAR[name](a, b, given.get("alpha", 1)) for a, b in _pairs(first, second))
        if name in _SMALLER:
            ends = self.of(given[_SMALLER[name]])
            most = max(map(abs, ends)) if ends else 0
            return (-most, most) if ends else None
        if name == "pow":
            ends, power = self.of(given["self"]), given["exponent"]
            if ends is None or not isinstance(power, int) or power < 1:
                return None
            return _power(ends, power)
        if name == "clamp":
            low, high = self.of(given["self"]) or (-math.inf, math.inf)
            if given.get("min") is not None:
                low = max(low, given["min"])
            if given.get("max") is not None:
                high = min(high, given["max"])
            return (low, high) if math.isfinite(low) and math.isfinite(high) else None
        if name not in _CHOICES and not isinstance(kind(node), Moves | Monotonic):
            return None
        sources = [given[key] for key in ("self", "other", "value") if key in given] or node.all_input_nodes
        ranges = [self.of(source) for source in sources]
        return None if None in ranges else _ends(end for ends in ranges for end in ends or ())


def is_integer(value: Any) -> bool:
    """Whether an example value is a tensor of integers."""
    return isinstance(value, torch.Tensor) and value.dtype in INTEGERS


def _pairs(first: Range, second: Range) -> Iterable[tuple[float, float]]:
    return itertools.product(first, second) if first and second else ()


def _joined(node: Node, given: Mapping[str, Any]) -> int:
    """How many elements a result is made of, by a sum or product, or at most by a running one."""
    x, y = (n.meta["val"] for n in (given["self"], node))
    if str(node.target).startswith("aten.cum"):
        return int(x.shape[given["dim"]]) if x.dim() else 1
    return int(x.numel() // y.numel())


def _power(ends: tuple[float, float], count: int) -> Range:
    """What products of as many factors may reach."""
    most = min(max(map(abs, ends)), EXACT) ** min(count, 32)  # 2^32 is too large already
    return -most, most


def _ends(values: Iterable[float]) -> Range:
    found = list(values)
    return (min(found), max(found)) if found else None


_PLACES = ("argmax", "argmin", "topk", "sort", "cummax", "cummin")
"""Operators whose integers are places."""

_LINEAR: Mapping[str, Callable[[float, float, float], float]] = {
    "add": lambda a, b, alpha: a + alpha * b,
    "sub": lambda a, b, alpha: a - alpha * b,
    "rsub": lambda a, b, alpha: b - alpha * a,
    "mul": lambda a, b, _: a * b,
    "neg": lambda a, _, __: -a,
}
"""Operators whose extremes are those of their operands' extremes."""

_SMALLER = {"abs": "self", "floor_divide": "self", "div": "self", "remainder": "other", "fmod": "other"}
"""Operators whose results are no larger than an operand."""

_CHOICES = ("where", "masked_fill", "gather", "index", "maximum", "minimum", "max", "min", "to", "_to_copy", "clone")
"""Operators whose results are elements of their operands, beside those that move bytes."""
