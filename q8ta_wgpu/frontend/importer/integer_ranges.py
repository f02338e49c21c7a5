"""The ranges of a network's integers, which a graph stores as int32 or float32 numbers. Integers that these may not
represent exactly are refused."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.nodes import INTEGERS, is_qdq, kind, named_arguments
from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.importing.import_table import ATEN
from q8ta_wgpu.ir.graph import INT32
from q8ta_wgpu.ir.int8 import Monotonic, Moves

EXACT = 1 << 24
"""float32 represents every integer up to this."""

LARGEST = (1 << 31) - 1
"""The largest integer of int32."""

Range = tuple[float, float] | None
"""The smallest and the largest integer of a value. None if they are unknown, as for a float32 number that was converted
to an integer, which is exact whatever its size."""

ROUNDED = (-math.inf, math.inf)
"""The range of a result of such integers: if it is beyond EXACT, a graph has the nearest float32 number."""


class Ranges:
    """The ranges of a graph's integers.

    Args:
        known: values of parameters, and of nodes that depend only on them.
        inputs: ranges of inputs.
    """

    def __init__(self, known: Mapping[Node, Any], inputs: Mapping[Node, tuple[int, int]]) -> None:
        self._known = known
        self._found: dict[Node, Range] = dict(inputs)

    def check(self, node: Node) -> None:
        """Records the range of a call's result. Raises RefusedError if it has integers beyond those with which the call
        computes."""
        value = node.meta.get("val")
        items = value if isinstance(value, (list, tuple)) else (value,)
        if any(is_integer(item) or getattr(item, "dtype", None) == torch.bool for item in items):
            self._check_rounded(node)
        whole, name = any(map(is_integer, items)), name_of(node)
        if not whole and name not in _BOUNDED:
            if name in _REAL:
                self._found[node] = self._of_real(node)
            return
        found = self._of_call(node)
        most = max(map(abs, found)) if found else 0
        limit = LARGEST if self.computes_int32(node) else EXACT
        if not whole:  # floats beyond EXACT are exact integers
            found = found if most <= LARGEST else None
        elif limit < (reached := max(most, self.read(node) if limit == EXACT else 0)) < math.inf:
            raise beyond(reached, limit)
        elif _wraps(node) and not (found and found[0] >= 0 and found[1] <= 255):
            raise RefusedError("its result is uint8, which wraps past 255: compute in float32, x.float()")
        self._found[node] = found

    def check_result(self, node: Node, stays: bool) -> None:
        """Raises RefusedError for a result of the network that may be rounded, or for a new value of a state that int32
        may not hold."""
        if not is_integer(node.meta.get("val")):
            return
        found = self.of(node)
        if found == ROUNDED or (stays and found is None):
            raise _unbounded()
        if found and max(map(abs, found)) > LARGEST:
            raise beyond(max(map(abs, found)), LARGEST)

    def read(self, node: Node) -> float:
        """The largest integer among the operands of a call; 0 if it is unknown."""
        ranges = (self.of(n) for n in node.all_input_nodes if is_integer(n.meta.get("val")))
        return max((abs(end) for found in ranges if found and found != ROUNDED for end in found), default=0)

    def needs_int32(self, node: Node) -> bool:
        """Whether a call must compute with int32: float32 would not represent its numbers exactly, or it adds,
        multiplies, computes with bits or gives indices, as that of the last token that is 1 in a mask."""
        reached = max(self.read(node), *map(abs, self.of(node) or (0,)))
        return self.computes_int32(node) and (EXACT < reached < math.inf or name_of(node) in _WHOLE)

    def computes_int32(self, node: Node) -> bool:
        """Whether a call computes with int32 if its operands are int32."""
        if any(is_integer(n.meta.get("val")) and self.of(n) in (None, ROUNDED) for n in node.all_input_nodes):
            return False
        arguments = named_arguments(node)
        if arguments.get("rounding_mode") == "trunc" and isinstance(arguments["other"], Node):
            return False
        op = ATEN[str(node.target)][0] if str(node.target) in ATEN else None
        return op is None or any(INT32 in operand.dtypes for operand in op.operands if not operand.constant)

    def _check_rounded(self, node: Node) -> None:
        """Raises RefusedError for calls whose results would differ if integers were rounded. These are all but those
        that select among them or compare them."""
        if not any(self.of(n) == ROUNDED for n in node.all_input_nodes):
            return
        others = [r for r in map(self.of, node.args[:2]) if r != ROUNDED]
        compares = name_of(node) in _COMPARISONS and all(r and max(map(abs, r)) <= EXACT for r in others) and others
        if not compares and (_is_uint8(node) or not _chooses(node)) and name_of(node) not in ("clamp", "neg", "abs"):
            raise _unbounded()

    def of(self, value: Any) -> Range:
        """The range of an argument."""
        while isinstance(value, Node):
            tensor = self._known.get(value)
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                return float(tensor.detach().min()), float(tensor.detach().max())
            if value.op == "placeholder" and value in self._found:
                return self._found[value]
            if small := _SMALL.get(getattr(value.meta.get("val"), "dtype", None)):
                return small
            if value.target is not operator.getitem:
                return self._found.get(value)
            source, index = value.args
            assert isinstance(source, Node)
            value = source if index else source.args[0]
        return (value, value) if isinstance(value, (bool, int, float)) else None

    def _of_call(self, node: Node) -> Range:
        arguments, name = named_arguments(node), name_of(node)
        if name in _FINITE:
            return _FINITE[name]
        if name in _INDEX_OPERATORS or (name in ("max", "min") and "dim" in arguments):
            shape, dim = (
                arguments["self"].meta["val"].shape,
                arguments.get("dim", -1 if name in ("topk", "sort") else None),
            )
            return 0, int(math.prod(shape) if dim is None or not shape else shape[dim]) - 1
        if name in ("sum", "cumsum"):
            count, ends = _combined(node, arguments), self._bounded(arguments["self"])
            return min(ends[0], count * ends[0]), max(ends[1], count * ends[1])
        if name in ("prod", "cumprod"):
            return _power(self._bounded(arguments["self"]), _combined(node, arguments))
        if name in ("mm", "bmm", "matmul"):
            first, second = arguments["self"], arguments.get("mat2", arguments.get("other"))
            pairs = itertools.product(self._bounded(first), self._bounded(second))
            return _ends(first.meta["val"].shape[-1] * a * b for a, b in pairs)
        if name in _BITS:
            return _BITS[name](*(self._bounded(arguments.get(key, 0)) for key in ("self", "other")))
        if name in _LINEAR:
            first, second = (self.of(arguments.get(key, 0)) for key in ("self", "other"))
            if first is None or second is None:
                return None if name == "neg" else ROUNDED
            return _ends(_LINEAR[name](a, b, arguments.get("alpha", 1)) for a, b in itertools.product(first, second))
        if name in _SMALLER:
            known = self.of(arguments[_SMALLER[name]])
            most = max(map(abs, known)) if known else math.inf
            return (-most, most) if known or "div" in name else None
        if name == "pow":
            power = arguments["exponent"]
            return _power(self._bounded(arguments["self"]), power) if isinstance(power, int) else None
        if name == "clamp":
            low, high = self.of(arguments["self"]) or (-math.inf, math.inf)
            low = max(low, arguments["min"]) if isinstance(arguments.get("min"), (int, float)) else low
            high = min(high, arguments["max"]) if isinstance(arguments.get("max"), (int, float)) else high
            return (low, high) if math.isfinite(low) and math.isfinite(high) else self.of(arguments["self"])
        if not _chooses(node):
            return None
        sources = [arguments[key] for key in ("self", "other", "value") if key in arguments] or node.all_input_nodes
        ranges = [self.of(source) for source in sources]
        return None if None in ranges and ROUNDED not in ranges else _ends(end for ends in ranges for end in ends or ())

    def _of_real(self, node: Node) -> Range:
        """The range of a call's finite floats, which may later be converted to integers. (torch's conversion of
        infinities is undefined.)"""
        arguments, name = named_arguments(node), name_of(node)
        if name in _FINITE:
            return _FINITE[name]
        first, second = self.of(arguments["self"]), self.of(arguments.get("other", 0))
        if first is None or second is None or not all(map(math.isfinite, (*first, *second))):
            return None
        if name == "div":
            divides = arguments.get("rounding_mode") is None and second[0] == second[1] != 0
            return _ends(end / second[0] for end in first) if divides else None
        if name in _LINEAR:
            return _ends(_LINEAR[name](a, b, arguments.get("alpha", 1)) for a, b in itertools.product(first, second))
        return float(math.floor(first[0])), float(math.ceil(first[1]))

    def _bounded(self, value: Any) -> tuple[float, float]:
        """The range of a value. Raises RefusedError if it has none."""
        if (found := self.of(value)) is None:
            raise _unbounded()
        return found


def operands_of(node: Node) -> list[str]:
    """The names of the arguments with which a call computes in integers; empty if it computes only with floats, uint8
    or bools."""
    arguments = {key: value for key, value in named_arguments(node).items() if key in _OPERANDS}
    items = [item for value in arguments.values() for item in (value if isinstance(value, (list, tuple)) else (value,))]
    values = [item.meta.get("val") for item in items if isinstance(item, Node)]
    whole = all(is_integer(v) or getattr(v, "dtype", None) == torch.bool for v in values)
    floats = not whole or any(isinstance(item, float) for item in items) or _is_uint8(node)
    return [] if floats or not any(map(is_integer, (*values, node.meta.get("val")))) else list(arguments)


def is_integer(value: Any) -> bool:
    """Whether an example value is a tensor of integers."""
    return isinstance(value, torch.Tensor) and value.dtype in INTEGERS


def beyond(reached: float, limit: int) -> RefusedError:
    """The error for integers that may be rounded."""
    return RefusedError(f"its integers may reach {reached:.0f}, and are exact up to {limit} here")


def _unbounded() -> RefusedError:
    return RefusedError(
        "it computes with integers made of floats of any size, and only those within int32 are exact: bound them where "
        "they are made, x.clamp(-n, n).long()"
    )


def name_of(node: Node) -> str:
    """The name of an operator without its overload."""
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _chooses(node: Node) -> bool:
    """Whether results are elements of the operands."""
    return name_of(node) in _CHOICES or isinstance(kind(node), Moves | Monotonic)


def _is_uint8(node: Node) -> bool:
    return bool(getattr(node.meta.get("val"), "dtype", None) == torch.uint8)


def _wraps(node: Node) -> bool:
    """Whether a call computes in uint8, instead of only storing what was computed or selected."""
    return _is_uint8(node) and not _chooses(node) and not is_qdq(node)


def _combined(node: Node, arguments: Mapping[str, Any]) -> int:
    """The number of elements that are summed or multiplied for one element of a result; for a running sum, for the last
    one."""
    x, y = (n.meta["val"] for n in (arguments["self"], node))
    if str(node.target).startswith("aten.cum"):
        return int(x.shape[arguments["dim"]]) if x.dim() else 1
    return int(x.numel() // y.numel())


def _power(ends: tuple[float, float], count: int) -> Range:
    """The range of a product of that many factors."""
    most = min(max(map(abs, ends)), LARGEST) ** min(count, 32)  # 2^32 already exceeds every limit
    return -most, most


def _ends(values: Iterable[float]) -> Range:
    found = list(values)
    return (min(found), max(found)) if found else None


_SMALL: Mapping[Any, tuple[int, int]] = {torch.bool: (0, 1), torch.uint8: (0, 255)}
"""The ranges of dtypes with small numbers only."""

_BOUNDED = ("clamp", "to", "_to_copy")
"""Operators of floats whose range also holds for integers converted from them."""

_OPERANDS = ("self", "other", "value", "tensors")
"""Arguments that are operands of integer operators."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

_INDEX_OPERATORS = ("argmax", "argmin", "topk", "sort")
"""Operators whose integer results are indices."""


def _or_range(a: tuple[float, float], b: tuple[float, float]) -> Range:
    """The range of `a | b` and `a ^ b` for integers of these ranges."""
    bits = max(int(end if end >= 0 else -1 - end).bit_length() for end in (*a, *b))
    return (0.0 if min(*a, *b) >= 0 else -(2.0**bits)), 2.0**bits - 1


def _and_range(a: tuple[float, float], b: tuple[float, float]) -> Range:
    """The range of `a & b`: at most that of an operand that is not negative."""
    whole = [high for low, high in (a, b) if low >= 0]
    return (0.0, min(whole)) if whole else _or_range(a, b)


def _shifted_left(a: tuple[float, float], b: tuple[float, float]) -> Range:
    return _ends(x * 2.0 ** min(max(n, 0), 64) for x in a for n in b)


def _shifted_right(a: tuple[float, float], b: tuple[float, float]) -> Range:
    return _ends(math.floor(x / 2.0 ** min(max(n, 0), 31)) for x in a for n in b)


_BITS: Mapping[str, Callable[[tuple[float, float], tuple[float, float]], Range]] = {
    "bitwise_and": _and_range,
    **dict.fromkeys(("bitwise_or", "bitwise_xor"), _or_range),
    **dict.fromkeys(("bitwise_left_shift", "__lshift__"), _shifted_left),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__"), _shifted_right),
    "bitwise_not": lambda a, _: (-1 - a[1], -1 - a[0]),
}
"""Bitwise operators of integers."""

_LINEAR: Mapping[str, Callable[[float, float, float], float]] = {
    "add": lambda a, b, alpha: a + alpha * b,
    "sub": lambda a, b, alpha: a - alpha * b,
    "rsub": lambda a, b, alpha: b - alpha * a,
    "mul": lambda a, b, _: a * b,
    "neg": lambda a, _, __: -a,
}
"""Operators whose result is extreme where their operands are."""

_FINITE: Mapping[str, tuple[int, int]] = {
    **{"log": (-104, 89), "log2": (-150, 128), "log10": (-46, 39)},
    **dict.fromkeys(("sin", "cos", "tanh", "erf", "sign"), (-1, 1)),
    "sigmoid": (0, 1),
}
"""The ranges of the finite results of functions of any float32 number."""

_WHOLE = ("sum", "cumsum", *_BITS, *_LINEAR, *_INDEX_OPERATORS)
"""Operators that compute with integers as int32, also with those that were bools."""

_REAL = (*_FINITE, "add", "sub", "rsub", "mul", "neg", "div", "floor", "ceil", "round", "trunc")
"""Operators of floats whose results have a range if their operands do."""

_SMALLER = {"abs": "self", "floor_divide": "self", "div": "self", "remainder": "other", "fmod": "other"}
"""Operators whose results are not larger than an operand."""

_CHOICES = ("where", "masked_fill", "gather", "index", "maximum", "minimum", "max", "min", "to", "_to_copy", "clone")
"""Operators whose results are elements of their operands, besides those that move bytes."""
