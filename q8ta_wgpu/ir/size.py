"""Sizes that inputs may have, and the integers of a graph that follow from them.

A program for any length is planned for one. What else its numbers are at other lengths is a formula in symbols, such as
T for the number of tokens: the end of a slice, the extents of a view, how much of a table of positions is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Terms = Mapping[tuple[str, ...], int]
"""Coefficients of products of symbols; of () for the number that is added."""

Point = Mapping[str, int]
"""A value for each symbol."""


UNBOUNDED = 1 << 24
"""The largest size of a dimension without a bound."""

BATCH = "batch"
"""The symbol of a batch of any size."""

MOST = 3
"""Symbols of a program: it is read at two sizes of each, in all combinations."""


class Size(int):
    """An integer that follows from symbols: a sum of products of them with integer coefficients.

    Examples:
        >>> rows = Size({("T",): 2, (): 1}, {"T": 8})
        >>> int(rows), int(rows.at({"T": 3}))
        (17, 7)
    """

    terms: Terms

    def __new__(cls, terms: Terms, point: Point) -> Size:
        """The number at a point."""
        made = super().__new__(cls, sum(c * math.prod(point[s] for s in symbols) for symbols, c in terms.items()))
        made.terms = terms
        return made

    def at(self, point: Point) -> Size:
        """The number at another point."""
        return Size(self.terms, point)

    @property
    def plain(self) -> list[list[Any]]:
        """The terms as lists, each of a coefficient and its symbols: what JSON can hold."""
        return [[c, *symbols] for symbols, c in self.terms.items()]

    @staticmethod
    def of(plain: Sequence[Sequence[Any]], point: Point) -> Size:
        """The size of which these are the plain terms."""
        return Size({tuple(symbols): int(c) for c, *symbols in plain}, point)

    def __repr__(self) -> str:
        parts = ("*".join([str(c)] * (c != 1 or not symbols) + [*symbols]) for symbols, c in self.terms.items() if c)
        return " + ".join(parts) or "0"

    def __reduce__(self) -> Any:
        return Size._restored, (int(self), dict(self.terms))

    @staticmethod
    def _restored(value: int, terms: Terms) -> Size:
        made = int.__new__(Size, value)
        made.terms = terms
        return made


def fitted(points: Sequence[Point], values: Sequence[int]) -> int | None:
    """The size that has these values at these points, the first of which is where it is now: a plain number where all
    are equal. None where none has."""
    if len(set(values)) == 1:
        return values[0]
    symbols = list(points[0])
    subsets = [s for n in range(len(symbols) + 1) for s in itertools.combinations(symbols, n)]
    matrix = np.array([[math.prod(point[s] for s in subset) for subset in subsets] for point in points], np.float64)
    found = np.rint(np.linalg.lstsq(matrix, np.array(values, np.float64), rcond=None)[0]).astype(int)
    terms = {subset: int(c) for subset, c in zip(subsets, found, strict=True) if c}
    sizes = [Size(terms, point) for point in points]
    return sizes[0] if all(int(size) == value for size, value in zip(sizes, values, strict=True)) else None


def solved(terms: Terms, size: int) -> tuple[str, int, int]:
    """The one symbol of a dimension's terms, its value where the dimension has this size, and the rest that a multiple
    of it leaves."""
    (symbol,) = next(symbols for symbols in terms if symbols)
    return symbol, *divmod(size - terms.get((), 0), terms[symbol,])


@dataclass(frozen=True)
class Table:
    """A constant of which a part is read: of each dimension the first elements, as many as `shape` says. A dimension
    along which all are alike may have any size."""

    whole: NDArray[Any]
    shape: tuple[int, ...]

    def at(self, point: Point) -> NDArray[Any]:
        """The part that is read at a point."""
        found = leading_slice(self.whole, [int(at_point(size, point)) for size in self.shape])
        return np.ascontiguousarray(found)


def leading_slice(whole: Any, shape: Sequence[int]) -> Any:
    """The first elements of each dimension of an array or tensor; of one along which all are alike, as many as are
    asked for."""
    for axis, size in enumerate(shape) if whole.ndim == len(shape) else ():
        if size > whole.shape[axis] and is_alike(whole, axis):
            whole = whole[(slice(None),) * axis + ([0] * size,)]
    return whole[tuple(map(slice, shape))]


def is_alike(whole: Any, axis: int) -> bool:
    """Whether an array or tensor has the same elements at each index of a dimension."""
    return bool(whole.shape[axis]) and bool((whole == whole[(slice(None),) * axis + ([0],)]).all())


_OTHER_ENDS = ". For others quantize with torch.export.Dim(min=..., max=...), or sizes of an ONNX file"


@dataclass
class Dynamic:
    """What of a graph changes with the sizes of its inputs.

    Attributes:
        symbols: the least and the largest value of each.
        inputs: by input and dimension, its size: a symbol, a multiple of one, or such a multiple and a number.
        tables: the constants of which a part is read, whole. The graph's own constants are the parts for its sizes.
    """

    symbols: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: dict[tuple[str, int], Size] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.symbols)

    def point(self, shapes: Mapping[str, Sequence[int]]) -> Point | str:
        """The symbols' values for inputs of these shapes; what is wrong with the shapes where they have none."""
        found: dict[str, int] = {}
        for (name, dim), size in self.inputs.items():
            symbol, value, rest = solved(size.terms, shapes[name][dim])
            low, high = self.symbols[symbol]
            what = f"dimension {dim} of input {name} is {size!r}"
            if rest or not low <= value <= high:
                least, next_, most = (int(size.at({symbol: n})) for n in (low, low + 1, high))
                ends = f"{what} with {symbol} from {low} to {high}"
                if next_ - least > 1:
                    ends = f"dimension {dim} of input {name} goes from {least} to {most} in steps of {next_ - least}"
                return f"{ends}, found {shapes[name][dim]}{_OTHER_ENDS}"
            if found.setdefault(symbol, value) != value:
                return f"{what} and {symbol} is {found[symbol]} elsewhere, found {shapes[name][dim]}"
        return found


def at_point(value: Any, point: Point) -> Any:
    """A number or attribute at a point: a size, or a tuple or list that holds some, as a tuple."""
    if isinstance(value, (tuple, list)):
        return tuple(at_point(part, point) for part in value)
    return value.at(point) if isinstance(value, Size) else value


def traced_points(
    here: Mapping[str, int], ranges: Mapping[str, tuple[int, int]], beside: Container[int] = ()
) -> list[Point]:
    """At which sizes a program is read: those given, another size of each symbol in all combinations, and where these
    are checked. Programs leave out operators at size 1, and may merge operators where two sizes are equal: sizes of
    `beside` are taken only where a range has no others."""

    def other(symbol: str, share: float, taken: int = 0) -> int:
        low, high = ranges[symbol]
        size = here[symbol]
        found = range(max(low, 2), size) or range(size + 1, min(high, size + 8) + 1) or [size]
        return min(found, key=lambda n: (n in beside, n == taken, abs(n - int(size * share))))

    second = {symbol: other(symbol, 0.7) for symbol in here}
    every = itertools.product(*((here[s], second[s]) for s in here))
    found: list[Point] = [dict(zip(here, values, strict=True)) for values in every]
    found.append({s: other(s, 0.9, second[s]) for s in here})
    return [point for i, point in enumerate(found) if point not in found[:i]]
