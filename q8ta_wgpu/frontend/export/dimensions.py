"""The sizes of inputs that `dynamic_shapes` allows (in the form that torch.export takes), and at which of them to
trace."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import _DerivedDim, _DimHint

from q8ta_wgpu.errors import InputError, shown
from q8ta_wgpu.frontend.notes import SIZES, noted
from q8ta_wgpu.ir.size import MOST, UNBOUNDED, Dynamic, Point, Size, Terms, leading_slice, solved, traced_points


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of inputs that have more than one size.

    Attributes:
        sizes: number of the input, number of the dimension, terms of its size.
        ranges: the lowest and the highest value of each symbol.
        points: the symbols' values at which the module was traced; the first is that of the example, but at least 2.
        tables: shapes of parameters of which only a slice is read, by their names in the program, as plain terms of
            each dimension.
        free: the symbols for which no lowest value was given. `formulas.check_ends` finds out whether it is 1.
        example: the symbols' values in the example.
    """

    sizes: tuple[tuple[int, int, Terms], ...]
    ranges: Mapping[str, tuple[int, int]]
    points: tuple[Point, ...]
    tables: Mapping[str, Any] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    example: Point = field(default_factory=dict)

    def shapes(self, shapes: Sequence[Sequence[int]], point: Point) -> list[list[int]]:
        """The shapes of inputs at a point."""
        found = [list(shape) for shape in shapes]
        for index, dim, terms in self.sizes:
            found[index][dim] = int(Size(terms, point))
        return found

    @property
    def plain(self) -> dict[str, Any]:
        """The dimensions as JSON values, which `of` reads."""
        here = self.points[0]
        sizes = [[index, dim, Size(terms, here).plain] for index, dim, terms in self.sizes]
        ranges = {symbol: list(ends) for symbol, ends in self.ranges.items()}
        points, tables = list(self.points), dict(self.tables)
        return {"sizes": sizes, "ranges": ranges, "points": points, "tables": tables, "example": self.example}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Dimensions:
        """The dimensions from the JSON values of `plain`."""
        points = tuple(plain["points"])
        sizes = tuple((index, dim, Size.of(terms, points[0]).terms) for index, dim, terms in plain["sizes"])
        ranges = {symbol: (low, high) for symbol, (low, high) in plain["ranges"].items()}
        return Dimensions(sizes, ranges, points, plain["tables"], example=plain["example"])

    @property
    def nearest(self) -> Point:
        """The sizes of the example, or the lowest where it is below."""
        return {symbol: max(value, self.ranges[symbol][0]) for symbol, value in self.example.items()}

    @property
    def ends(self) -> list[Point]:
        """Points with the smallest sizes, and with sizes larger than the example's if there are any."""
        here = self.points[0]
        least = {s: low for s, (low, _) in self.ranges.items()}
        larger = {s: max(here[s], min(high, 2 * here[s] + 1)) for s, (_, high) in self.ranges.items()}
        return [point for point in (least, larger) if point not in self.points]

    def from_two(self, symbols: Container[str]) -> Dimensions:
        """The dimensions with these symbols from 2 on."""
        ranges = {s: (max(low, 2) if s in symbols else low, high) for s, (low, high) in self.ranges.items()}
        return replace(self, ranges=ranges, free=frozenset(s for s in self.free if s not in symbols))

    def enlarged(self, example: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """An example of the first point's sizes: elements are repeated along dimensions that are larger there."""
        found = list(example)
        for index, shape in enumerate(self.shapes([x.shape for x in example], self.points[0])):
            for dim, size in enumerate(shape):
                x = found[index]
                if size != x.shape[dim]:
                    found[index] = x.index_select(dim, torch.arange(size, device=x.device) % x.shape[dim])
        return tuple(found)

    def of_program(self, program: ExportedProgram) -> Dimensions:
        """The dimensions with the tables of a program. They are computed again since torch does not save notes of
        parameters."""
        specs = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs}
        said = {specs[n.name]: noted(n, SIZES, {}) for n in program.graph.find_nodes(op="placeholder")}
        return replace(self, tables={name: each["shape"] for name, each in said.items() if "shape" in each})

    def table_slice(self, name: str, tensor: Tensor, point: Point) -> Tensor:
        """The leading slice of a table that is read at a point."""
        terms = self.tables.get(name)
        if terms is None:
            return tensor
        found: Tensor = leading_slice(tensor, [int(Size.of(size, point)) for size in terms]).contiguous()
        return found

    def point(self, shapes: Sequence[Sequence[int]]) -> Point | str:
        """The symbols' values for inputs of these shapes, or what is wrong with the shapes."""
        here = self.points[0]
        sizes = Dynamic(dict(self.ranges), {(str(index), dim): Size(terms, here) for index, dim, terms in self.sizes})
        return sizes.point({str(index): shape for index, shape in enumerate(shapes)})

    def at(self, tensors: Sequence[Tensor], point: Point) -> tuple[Tensor, ...]:
        """Zeros of the inputs' shapes at a point."""
        shapes = self.shapes([x.shape for x in tensors], point)
        return tuple(x.new_zeros(shape) for x, shape in zip(tensors, shapes, strict=True))


def dimensions(module: torch.nn.Module, example: Sequence[Tensor], dynamic_shapes: Any) -> Dimensions:
    """The dimensions that `dynamic_shapes`, in the form that torch.export takes, gives to inputs of the example's rank.
    Raises InputError if it is invalid."""
    sizes: list[tuple[int, int, Terms]] = []
    ranges: dict[str, tuple[int, int]] = {}
    here: dict[str, int] = {}
    free = set[str]()
    for index, entry in enumerate(_entries(module, len(example), dynamic_shapes)):
        for dim, spec in _specs(entry, example[index].dim(), index):
            size = int(example[index].shape[dim])
            if (found := _symbol(spec, size, index, dim)) is None:
                continue
            symbol, terms, given, largest = found
            least = given or 1
            _, value, rest = solved(terms, size)
            if rest or not least <= value <= largest or here.setdefault(symbol, value) != value:
                raise InputError(
                    f"dynamic_shapes says that dimension {dim} of example input {index} is {Size(terms, {symbol: 0})!r}"
                    f" with {symbol} from {least} to {largest}, found {size}. Give an example of such a size, or "
                    "another Dim(min=..., max=...)"
                )
            sizes.append((index, dim, terms))
            ranges[symbol] = (least, largest)
            if not given:
                free.add(symbol)
    if not sizes:
        raise InputError("dynamic_shapes names no dimension of any size: leave it out, or name one by torch.export.Dim")
    if len(ranges) > MOST:
        raise InputError(f"dynamic_shapes may have {MOST} different sizes, found {len(ranges)}: {', '.join(ranges)}")
    beside = {n for x in (*example, *module.parameters(), *module.buffers()) for n in x.shape}
    first = {symbol: min(max(value, 2), ranges[symbol][1]) for symbol, value in here.items()}
    points = traced_points(first, ranges, beside)
    return Dimensions(tuple(sizes), ranges, tuple(points), free=frozenset(free), example=here)


def _entries(module: torch.nn.Module, count: int, dynamic_shapes: Any) -> list[Any]:
    """The entry of `dynamic_shapes` for each input."""
    if isinstance(dynamic_shapes, Mapping):
        names = [
            name
            for name, parameter in inspect.signature(module.forward).parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        ]
        if other := [name for name in dynamic_shapes if name not in names[:count]]:
            raise InputError(
                f"dynamic_shapes names {shown(other[0])}, the example has inputs for {', '.join(names[:count])}"
            )
        return [dynamic_shapes.get(name) for name in names[:count]]
    entries = list(dynamic_shapes) if isinstance(dynamic_shapes, (tuple, list)) else None
    inner = entries[0] if entries is not None and len(entries) == 1 else None
    if isinstance(inner, (tuple, list)) and (count > 1 or [type(e) for e in inner] in ([dict], [tuple], [list])):
        entries = list(inner)  # of *args
    if entries is None or len(entries) != count:
        raise InputError(
            f"dynamic_shapes has an entry for each of the {count} inputs, as torch.export takes it: a dict of "
            f"dimensions and torch.export.Dim, or None; found {shown(dynamic_shapes)}"
        )
    return entries


def _specs(entry: Any, rank: int, index: int) -> Iterator[tuple[int, Any]]:
    """The dimensions of an input that have an entry, each with it."""
    if entry is None:
        return
    if isinstance(entry, (tuple, list)) and len(entry) == rank:
        entry = dict(enumerate(entry))
    if not isinstance(entry, Mapping) or not all(isinstance(d, int) and -rank <= d < rank for d in entry):
        raise InputError(
            f"dynamic_shapes of input {index} is a dict of its {rank} dimensions, or a list of them, found "
            f"{shown(entry)}"
        )
    yield from ((dim % rank, spec) for dim, spec in entry.items())


def _symbol(spec: Any, size: int, index: int, dim: int) -> tuple[str, Terms, int, int] | None:
    """The symbol of a dimension, the terms of its size, and the lowest and highest value of the symbol, the lowest 0
    where none was given; None for a dimension of one size."""
    if spec is None or (isinstance(spec, int) and not isinstance(spec, bool)):
        if spec not in (None, size):
            raise InputError(f"dynamic_shapes says {spec} of dimension {dim} of example input {index}, found {size}")
        return None
    if isinstance(spec, _DimHint):
        hint = str(spec).rpartition("(")[2].split(")")[0].split(",")[0]
        return None if hint.endswith("STATIC") else (f"n{size}", {(f"n{size}",): 1}, 0, UNBOUNDED)
    if not isinstance(spec, Dim):
        raise InputError(
            f"dynamic_shapes of dimension {dim} of input {index} must be a torch.export.Dim, found {shown(spec)}"
        )
    root = spec.root if isinstance(spec, _DerivedDim) else spec
    terms: Terms = {(root.__name__,): 1}
    if isinstance(spec, _DerivedDim):
        offset = int(spec.fn(0))
        terms = {(root.__name__,): int(spec.fn(1)) - offset, **({(): offset} if offset else {})}
    largest = int(root.max) if isinstance(root.max, int) and root.max < UNBOUNDED else UNBOUNDED
    return root.__name__, terms, max(int(root.min), 0), largest
